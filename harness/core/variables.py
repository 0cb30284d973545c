"""Environment variables: which are recorded, and which have their values withheld.

A record has the settings of Python, torch, the libraries below it, Slurm and the harness. A value is
withheld by the name of its variable alone.
"""

from __future__ import annotations

import re

WITHHELD = "[redacted]"  # in place of a value
# Variables of the libraries whose settings bear on a measurement.
LIBRARY_VARIABLE = re.compile(
    r"(ATEN|BLIS|CUDA|CUBLAS|CUBLASLT|CUDNN|NVIDIA|DNNL|ONEDNN|NCCL|GLOO|TORCH|TORCHINDUCTOR"
    r"|TORCHDYNAMO|TORCHELASTIC|PYTORCH|OMP|MKL|KMP|NPY|OPENBLAS|GOMP|MALLOC|SLURM|SLURMD|TOKENIZERS"
    r"|TRITON|HARNESS)_.*|PYTHON.*|LD_(LIBRARY_PATH|PRELOAD)"
)
# Parts of names that speak of a secret. AUTHOR and TOKENIZERS do not, and PWD alone is the working
# folder.
SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE"
    r"|AUTH(?!OR(?:_|$))|COOKIE|SIGNATURE|WEBHOOK|CONNECTION_?STR|JWT|BEARER"
    r"|(?:^|_)(?:PASS|KEY|SIG|PAT|DSN|OTP|CREDS?)(?:_|$)|_PWD(?:_|$)",
    re.IGNORECASE,
)
# Variables that are another's at every trial, that only say where something is kept, that torchrun
# sets and other launchers do not, or that scikit-learn sets in each process that imports it.
INCIDENTAL_VARIABLE = re.compile(
    r"(SLURM|SLURMD|TORCHELASTIC|HARNESS)_.*|.*_CACHE_(DIR|PATH)|CUDA_VISIBLE_DEVICES|(CUDA|TORCH|PYTHON)_?HOME|CUDA_PATH"
    r"|TORCH_NCCL_ASYNC_ERROR_HANDLING|KMP_(DUPLICATE_LIB_OK|INIT_AT_FORK)"
    r"|PYTHON(DONTWRITEBYTECODE|FAULTHANDLER|IOENCODING|UNBUFFERED|WARNINGS)"
)

# Variables by which libraries choose their kernels, and so the order of their sums.
KERNEL_VARIABLE = re.compile(
    r"(ATEN|BLIS|MKL|DNNL|ONEDNN|NPY|OPENBLAS|CUBLAS|CUBLASLT|CUDNN|TORCHINDUCTOR)_.*"
    r"|NVIDIA_TF32_OVERRIDE|NCCL_(ALGO|PROTO)|OMP_(DYNAMIC|NUM_THREADS|SCHEDULE|THREAD_LIMIT)"
    r"|TORCH_(ALLOW_TF32_CUBLAS_OVERRIDE|BLAS_PREFER_CUBLASLT)"
)


def chooses_kernels(name: str) -> bool:
    """Return whether libraries choose their kernels by a variable."""
    return KERNEL_VARIABLE.fullmatch(name) is not None and not is_incidental(name)


def is_incidental(name: str) -> bool:
    """Return whether a variable differs between trials that have everything else in common."""
    return INCIDENTAL_VARIABLE.fullmatch(name) is not None


def is_of_library(name: str) -> bool:
    """Return whether a variable is a setting of a library, which every record has."""
    return LIBRARY_VARIABLE.fullmatch(name) is not None


def is_secret_name(name: str) -> bool:
    """Return whether the name of a variable or an option speaks of a secret."""
    return SECRET_NAME.search(name) is not None


def recorded_value(name: str, value: str) -> str:
    """Return the value of an environment variable as it is recorded."""
    return value if is_of_library(name) and not is_secret_name(name) else WITHHELD
