"""What a trial was measured with: code, software, hardware, torch's settings and variables.

None of it is part of a cell's id, and all of it can change a result: it is recorded so that results
are compared only where it is alike, and so that a difference has an explanation. Values of
variables that are not known to be public are withheld before anything is written.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import harness
from harness.core.cores import usable_cores
from harness.core.errors import HarnessError
from harness.core.git import run_git
from harness.core.redaction import redact_variable
from harness.core.variables import LIBRARY_VARIABLE, PUBLIC_VARIABLES

# Packages whose version can change what a trial computes or how fast it does so.
PACKAGES = (
    "torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "scikit-learn", "mlflow", "submitit",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Code:
    """The version of the harness that ran a trial."""

    version: str  # of the package
    commit: str | None = None  # None where the harness runs from no checkout
    dirty: bool | None = None  # whether tracked files differ from the commit


@dataclass(frozen=True, kw_only=True)
class Software:
    """Python, torch and the packages that bear on a measurement."""

    python: str  # as in 3.11.9
    torch: str  # with its build, as in 2.11.0+cu128
    platform: str | None = None  # operating system and C library, as `platform.platform()` has it
    cuda: str | None = None  # that torch was built for
    nccl: str | None = None  # None without GPUs
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version


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


@dataclass(frozen=True, kw_only=True)
class TorchSettings:
    """Torch's settings for a whole process that bear on speed or bits."""

    threads: int  # intra-op
    interop_threads: int
    float32_matmul_precision: str  # highest, high (TensorFloat-32) or medium
    deterministic_algorithms: bool  # whether torch refuses algorithms that vary between runs


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Everything that a trial was measured with and that is no part of its cell."""

    software: Software  # of rank 0
    hardware: Hardware  # of rank 0's machine
    settings: TorchSettings | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # as rank 0 saw them, redacted
    code: Code | None = None  # None where the launcher did not say
    mlflow: str | None = None  # the version at whoever launched the trial


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that bear on a measurement, sorted by name.

    Those that are not public are there with their values withheld.
    """
    relevant: dict[str, str] = {}
    for name, value in sorted(environment.items()):
        if name in PUBLIC_VARIABLES or LIBRARY_VARIABLE.match(name):
            relevant[name] = redact_variable(name, value)
    return relevant


def describe_environment(code: Code | None = None, mlflow: str | None = None) -> Environment:
    """Describe the environment as this process sees it; loads torch.

    `code` and `mlflow` are known to the launcher only: ranks need neither git nor MLflow.
    """
    return Environment(
        software=describe_software(),
        hardware=describe_hardware(),
        settings=describe_settings(),
        variables=relevant_variables(os.environ),
        code=code,
        mlflow=mlflow,
    )


def describe_code() -> Code:
    """Describe the harness: its version, and its commit where it runs from a checkout.

    Files that git does not track make no checkout dirty: results are usually among them.
    """
    checkout = Path(harness.__file__).parent.parent
    if not (checkout / ".git").exists():
        return Code(version=harness.__version__)
    status = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    dirty = None  # git could not say
    if status is not None:
        dirty = bool(status)
    return Code(
        version=harness.__version__, commit=_git(checkout, "rev-parse", "HEAD"), dirty=dirty
    )


def _git(checkout: Path, *arguments: str) -> str | None:
    """Return what git prints, None where it fails or hangs."""
    try:
        completed = run_git(checkout, *arguments)
    except HarnessError:
        return None
    if completed.returncode != 0:
        return None
    return completed.stdout.strip()


def describe_software() -> Software:
    """Describe Python, torch and the packages beside it; loads torch.

    Packages that are not installed are left out.
    """
    import torch

    packages: dict[str, str] = {}
    for name in PACKAGES:
        version = _version(name)
        if version:
            packages[name] = version
    nccl = None
    if torch.cuda.is_available():
        nccl = _nccl_version()
    return Software(
        python=platform.python_version(),
        torch=torch.__version__,
        platform=platform.platform(),
        cuda=torch.version.cuda,
        nccl=nccl,
        packages=packages,
    )


def _nccl_version() -> str:
    """Return the version of the NCCL that torch uses, as in `2.27.5`."""
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def _version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_settings() -> TorchSettings:
    """Describe torch's settings in this process; loads torch."""
    import torch

    return TorchSettings(
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
    )


def describe_hardware() -> Hardware:
    """Describe the CPU, the memory and the GPUs of this machine; loads torch."""
    import torch

    gpus: list[Gpu] = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        gpus.append(Gpu(name=device.name, memory_bytes=device.total_memory))
    driver = None
    if gpus:
        driver = _driver_version()
    return Hardware(
        cpu=_cpu_model(),
        cpu_version=_cpu_version(),
        cores=os.cpu_count(),
        usable_cores=len(usable_cores()),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=gpus,
        driver=driver,
    )


def _cpu_info() -> dict[str, str]:
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


def _cpu_model() -> str:
    """Return the name of the CPU's model, or else of its architecture."""
    return _cpu_info().get("model name") or platform.processor() or platform.machine()


def _cpu_version() -> str | None:
    """Return family, model and stepping, as in `25.1.1`.

    A virtual machine may hide the name of the CPU's model, but not these.
    """
    info = _cpu_info()
    parts = [info[name] for name in ("cpu family", "model", "stepping") if name in info]
    return ".".join(parts) or None


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
