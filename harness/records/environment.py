"""What a number was measured with: code, software, hardware and settings; without secrets."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import harness

PACKAGES = (
    "torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "scikit-learn", "mlflow", "submitit",
)  # fmt: skip
VARIABLES = re.compile(
    r"^(CUDA|CUBLAS|CUDNN|NCCL|GLOO|TORCH|TORCHINDUCTOR|PYTORCH|OMP|MKL|KMP|OPENBLAS|GOMP|MALLOC|PYTHON|SLURM|TOKENIZERS|HARNESS)_?"
)
SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|AUTH", re.IGNORECASE
)
CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
REDACTED = "[redacted]"


def redact(name: str, value: str) -> str:
    """`value`, or a placeholder where the name speaks of a secret; credentials in URLs are cut out."""
    return REDACTED if SECRET.search(name) else CREDENTIALS_IN_URL.sub(f"{REDACTED}@", value)


def secrets() -> list[str]:
    """The values of this process's variables whose names speak of one, short ones left out as too likely elsewhere."""
    return [value for name, value in os.environ.items() if SECRET.search(name) and len(value) >= 8]


def scrub(text: str, hidden: Iterable[str]) -> str:
    """`text` without credentials in URLs and without any of `hidden`."""
    for secret in hidden:
        text = text.replace(secret, REDACTED)
    return CREDENTIALS_IN_URL.sub(f"{REDACTED}@", text)


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that bear on a measurement."""
    return {
        name: redact(name, value)
        for name, value in sorted(environment.items())
        if VARIABLES.match(name)
    }


def describe_code() -> dict[str, Any]:
    """The harness's version, and its commit where it runs from a checkout."""
    top = Path(harness.__file__).parent.parent
    found: dict[str, Any] = {"version": harness.__version__, "commit": None, "dirty": None}
    if (top / ".git").exists():
        found["commit"] = _git(top, "rev-parse", "HEAD")
        status = _git(top, "status", "--porcelain", "--untracked-files=no")
        found["dirty"] = None if status is None else bool(status)
    return found


def _git(top: Path, *arguments: str) -> str | None:
    done = subprocess.run(
        ["git", "-C", str(top), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def describe_software() -> dict[str, Any]:
    """Python and the packages that bear on a measurement; the torch part needs torch loaded."""
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": _nccl() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def _nccl() -> str:
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_hardware() -> dict[str, Any]:
    """CPU, memory and GPUs."""
    import torch

    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_model(),
        "cpu_version": _cpu_version(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.total_memory} for gpu in gpus],
        "driver": _driver() if gpus else None,
    }


def _cpu_info() -> dict[str, str]:
    """What Linux says of the first core."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _cpu_model() -> str:
    return _cpu_info().get("model name") or platform.processor() or platform.machine()


def _cpu_version() -> str | None:
    """Family, model and stepping, as in `25.1.1`: a virtual machine may hide the model's name but not these."""
    found = _cpu_info()
    parts = [found[name] for name in ("cpu family", "model", "stepping") if name in found]
    return ".".join(parts) or None


def _driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return version.decode() if isinstance(version, bytes) else str(version)


def describe() -> dict[str, Any]:
    """All of it, as seen by this process."""
    return {
        "software": describe_software(),
        "hardware": describe_hardware(),
        "variables": variables(os.environ),
    }
