"""What a trial was measured with: code, software, hardware, torch's settings and variables.

None of it is part of a cell's id, and all of it can change a result: it is recorded so that results
are compared only where it is alike, and so that a difference has an explanation
(`harness.records.differences`). Values of variables that are not known to be public are withheld
before anything is written.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec

from harness.core.cores import usable_cores
from harness.core.packages import installed_version
from harness.core.variables import is_of_library, recorded_value
from harness.records.code import Code, Repository

# Packages whose version can change what a trial computes or how fast it does so.
PACKAGES = (
    "torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "scikit-learn", "mlflow", "submitit",
)  # fmt: skip
# What Linux calls the extensions of an instruction set that kernels are chosen by.
KERNEL_FLAGS = re.compile(
    r"(sse4|avx|fma|f16c|bmi|amx|asimd|neon|sve|sme|bf16|i8mm|fphp|vsx|rvv).*", re.IGNORECASE
)
# The line of torch's build configuration that depends on the machine and on variables.
CAPABILITY_LINE = re.compile(r".*CPU capability usage.*\n")
BLAS_ENTRY = re.compile(r"BLAS_INFO=(\w+)")


@dataclass(frozen=True, kw_only=True)
class Software:
    """Python, torch and the packages that bear on a measurement."""

    python: str  # as in 3.11.9
    torch: str  # with its build, as in 2.11.0+cu128
    platform: str | None = None  # operating system and C library, as `platform.platform()` has it
    cuda: str | None = None  # that torch was built for
    nccl: str | None = None  # None without GPUs
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version
    torch_build: str | None = None  # SHA-256 of how torch was built: compilers, flags, libraries
    blas: str | None = None  # the library that torch was built with, as in mkl


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU of a machine."""

    name: str  # as torch gives it
    memory_bytes: int | None = None  # in all, of which the driver takes some


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """CPU, memory and GPUs of the machine that rank 0 ran on."""

    cpu: str  # the model's name
    usable_cores: int  # that this process may run on
    cpu_version: str | None = None  # family, model and stepping, as in `25.1.1`
    cores: int | None = None  # logical ones of the machine
    memory_bytes: int | None = None  # of the machine, not of a job's share of it
    gpus: Sequence[Gpu] = ()
    driver: str | None = None  # NVIDIA's; None without GPUs
    cpu_flags: str | None = None  # its extensions that kernels use, as in `avx2 fma`


@dataclass(frozen=True, kw_only=True)
class TorchSettings:
    """Torch's settings for a whole process that bear on speed or bits."""

    threads: int  # intra-op
    interop_threads: int
    float32_matmul_precision: str  # highest, high (TensorFloat-32) or medium
    deterministic_algorithms: bool  # whether torch refuses algorithms that vary between runs
    # The instruction set that torch's kernels use, as in AVX2: what the CPU has, or less where
    # ATEN_CPU_CAPABILITY says so.
    cpu_capability: str | None = None
    mkldnn: bool | None = None  # whether oneDNN computes what it can


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Everything that a trial was measured with and that is no part of its cell."""

    software: Software  # of rank 0
    hardware: Hardware  # of rank 0's machine
    settings: TorchSettings | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # as rank 0 saw them, redacted
    code: Code | None = None  # the harness's; None where the launcher did not say
    mlflow: str | None = None  # the version at whoever launched the trial
    repository: Repository | None = None  # the user's; None where the sweep is in none
    # SHA-256 of the list of all installed packages, which the sweep's folder has in a file of that
    # name; None where the launcher did not say.
    installed: str | None = None
    interpreter: str | None = None  # the path by which rank 0's Python knows itself
    # Files of the workload's own tree that were imported although no import statement names them:
    # its cell does not have them. Path -> SHA-256.
    dynamic_files: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Return the hash of all fields, of which mappings have none of their own.

        Functions of an environment are cached by it: the trials of a sweep share a few.
        """
        return hash(msgspec.json.encode(self, order="sorted"))


def relevant_variables(
    environment: Mapping[str, str], axes: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment variables that bear on a measurement, sorted by name.

    Values are withheld as `recorded_value` says. `axes` are variables that the
    sweep sets as axes, whose values are public.
    """
    relevant: dict[str, str] = {}
    for name, value in sorted(environment.items()):
        if name in axes:
            relevant[name] = value
        elif is_of_library(name):
            relevant[name] = recorded_value(name, value)
    return relevant


def describe_environment(
    packages: Sequence[str] = (), *, axes: Collection[str] = ()
) -> Environment:
    """Describe the environment as this process sees it; loads torch.

    `packages` are distributions whose versions are wanted besides those of PACKAGES; `axes`
    are as in `relevant_variables`. What only a launcher knows is left out: ranks need
    neither git nor MLflow.
    """
    return Environment(
        software=describe_software(packages),
        hardware=describe_hardware(),
        settings=describe_settings(),
        variables=relevant_variables(os.environ, axes),
        interpreter=sys.executable,
    )


def describe_software(more: Sequence[str] = ()) -> Software:
    """Describe Python, torch and its companion packages, and `more` of them; loads torch.

    Packages that are not installed are left out.
    """
    import torch

    nccl = None
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    configuration = torch.__config__.show()
    build = CAPABILITY_LINE.sub("", configuration)  # the same on every machine
    blas = BLAS_ENTRY.search(configuration)
    return Software(
        python=platform.python_version(),
        torch=torch.__version__,
        platform=platform.platform(),
        cuda=torch.version.cuda,
        nccl=nccl,
        packages=describe_packages(more),
        torch_build=hashlib.sha256(build.encode()).hexdigest(),
        blas=None if blas is None else blas[1],
    )


def describe_packages(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of the packages in PACKAGES and of `more`, of those that are installed."""
    packages: dict[str, str] = {}
    for name in dict.fromkeys([*PACKAGES, *more]):
        version = _version(name)
        if version:
            packages[name] = version
    return packages


def look_up_software() -> None:
    """Look up what `describe_software` says of each process, in one that others are forked from.

    Python starts a program to describe the platform, and to look up versions takes milliseconds.
    Two questions are left to the rank: who asks for CUDA can't be forked any more, and who asks
    torch for its configuration settles ATEN_CPU_CAPABILITY for all that is forked.
    """
    platform.platform()
    describe_packages()


_version = cache(installed_version)  # asked for twice in a trial


def describe_settings() -> TorchSettings:
    """Describe torch's settings in this process; loads torch."""
    import torch

    return TorchSettings(
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        mkldnn=bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),  # type: ignore[no-untyped-call]
    )


def describe_hardware() -> Hardware:
    """Describe the CPU, the memory and the GPUs of this machine; loads torch."""
    import torch

    info = cpu_info()
    # A virtual machine may hide the name of the CPU's model, but not these.
    version = [info[name] for name in ("cpu family", "model", "stepping") if name in info]
    extensions = set((info.get("flags") or info.get("Features") or "").split())
    kernel_flags = sorted(flag for flag in extensions if KERNEL_FLAGS.fullmatch(flag))
    gpus: list[Gpu] = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        gpus.append(Gpu(name=device.name, memory_bytes=device.total_memory))
    driver = None
    if gpus:
        driver = _driver_version()
    return Hardware(
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        cpu_version=".".join(version) or None,
        cores=os.cpu_count(),
        usable_cores=len(usable_cores()),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=gpus,
        driver=driver,
        cpu_flags=" ".join(kernel_flags) or None,
    )


def cpu_info() -> dict[str, str]:
    """Return what Linux says of the first core, empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    first_core = text.partition("\n\n")[0]
    info: dict[str, str] = {}
    for line in first_core.splitlines():
        name, _, value = line.partition(":")
        info[name.strip()] = value.strip()
    return info


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver, None where NVML can't be reached."""
    import pynvml

    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    if isinstance(version, bytes):  # which older versions of nvidia-ml-py return
        return version.decode()
    return str(version)
