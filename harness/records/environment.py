"""What a trial was measured with: code, software, hardware, torch's settings and variables.

The launcher describes the code, the harness's and the repository of the user's: ranks need no git. The
files of the workload itself are part of its cell (`code` of `harness.sweep.cell.WorkloadRef`).

None of the rest is part of a cell's id, and all of it can change a result: it is recorded so that results
are compared only where it is alike, and so that a difference has an explanation
(`harness.records.differences`). Values of variables that are not known to be public are withheld
before anything is written.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec

import harness
from harness.core.cores import usable_cores
from harness.core.errors import HarnessError
from harness.core.import_path import ROOT
from harness.core.packages import installed_version
from harness.core.variables import is_of_library, recorded_value
from harness.core.worktree import run_git

# Packages whose version can change what a trial computes or how fast it does so.
PACKAGES = (
    "torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "scikit-learn", "mlflow", "submitit",
)  # fmt: skip
# What Linux calls the extensions of an instruction set that kernels are chosen by.
KERNEL_FLAGS = re.compile("(sse4|avx|fma|f16c|bmi|amx|asimd|neon|sve|sme|bf16|i8mm|fphp|vsx|rvv).*")

# The code that decides what a trial computes, besides that of the workload.
DECISIVE_FOLDERS = (ROOT / "harness" / "training", ROOT / "workloads")
# Differences as `git apply` takes them, without the user's own tools and colors. They only name binary
# files that were changed: no secret could be found in their compressed content.
DIFF = (
    "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
MAX_DIFF = 64 * 1024  # characters that are kept


@dataclass(frozen=True, kw_only=True)
class Code:
    """The version of the harness that ran a trial."""

    version: str  # of the package
    commit: str | None = None  # None where the harness runs from no checkout
    dirty: bool | None = None  # whether tracked files differ from the commit
    training: str | None = None  # SHA-256 of the files that train, which tells dirty ones apart


@dataclass(frozen=True, kw_only=True)
class Repository:
    """The repository of the user's sweep and workload, as it was when a trial was launched."""

    commit: str | None  # None before the first one
    dirty: bool | None  # whether its files differ from the commit; None where git could not say
    # SHA-256 of the differences from the commit, which are in the sweep's folder
    # (`SweepFolder.diff_path`); None where there are none.
    diff: str | None = None


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
class Hardware:
    """CPU and GPUs of the machine that rank 0 ran on."""

    cpu: str  # the model's name
    usable_cores: int  # that this process may run on
    cpu_version: str | None = None  # family, model and stepping, as in `25.1.1`
    gpus: Sequence[str] = ()  # their names, as torch gives them
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
    repository: Repository | None = None  # the user's; None where the sweep is in none
    # SHA-256 of the list of all installed packages, which the sweep's folder has in a file of that
    # name; None where the launcher did not say.
    installed: str | None = None
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
    )


_version = cache(installed_version)  # a forkserver asks before its ranks do


def describe_software(more: Sequence[str] = ()) -> Software:
    """Describe Python, torch and its companion packages, and `more` of them; loads torch.

    Packages that are not installed are left out.
    """
    import torch

    nccl = None
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return Software(
        python=platform.python_version(),
        torch=torch.__version__,
        platform=platform.platform(),
        cuda=torch.version.cuda,
        nccl=nccl,
        packages=describe_packages(more),
    )


def describe_packages(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of the packages in PACKAGES and of `more`, of those that are installed."""
    versions = {name: _version(name) for name in (*PACKAGES, *more)}
    return {name: version for name, version in versions.items() if version}


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
    """Describe the CPU and the GPUs of this machine; loads torch."""
    import torch

    info = cpu_info()
    # A virtual machine may hide the name of the CPU's model, but not these.
    version = [info[name] for name in ("cpu family", "model", "stepping") if name in info]
    flags = info.get("flags") or info.get("Features") or ""
    extensions = set(flags.split())
    kernel_flags = sorted(flag for flag in extensions if KERNEL_FLAGS.fullmatch(flag))
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Hardware(
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        cpu_version=".".join(version) or None,
        usable_cores=len(usable_cores()),
        gpus=gpus,
        driver=_driver_version() if gpus else None,
        cpu_flags=" ".join(kernel_flags) or None,
    )


def cpu_info() -> dict[str, str]:
    """Return what Linux says of the first core, empty on other systems."""
    info: dict[str, str] = {}
    with suppress(OSError):
        first_core, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
        for line in first_core.splitlines():
            name, _, value = line.partition(":")
            info[name.strip()] = value.strip()
    return info


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver, None where NVML can't be reached."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


def describe_code() -> Code:
    """Describe the harness: its version, its training code, and its commit in a checkout.

    Files that git does not track make no checkout dirty: results are usually among them.
    """
    version, training = harness.__version__, training_digest()
    if not (ROOT / ".git").exists():
        return Code(version=version, training=training)
    status = git_output(ROOT, "status", "--porcelain", "--untracked-files=no")
    dirty = None if status is None else bool(status)  # None: git could not say
    commit = git_output(ROOT, "rev-parse", "HEAD")
    return Code(version=version, commit=commit, dirty=dirty, training=training)


@cache
def training_digest() -> str:
    """Return the SHA-256 of the harness's files that decide what a trial computes.

    Another version of the report changes no result, so only the code that trains counts. It is as
    this process has found it first.
    """
    digest = hashlib.sha256()
    for folder in DECISIVE_FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            # Relative, as a copy of the code in another folder computes the same.
            name = path.relative_to(ROOT).as_posix()
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{name}\0{content}\0".encode())
    return digest.hexdigest()


def describe_repository(folder: Path, files: Sequence[Path]) -> tuple[Repository | None, str]:
    """Describe the repository that a folder is in; return it with its differences from the commit.

    `files` are those of workloads and of the sweep. Git may not know some of them: they are part of
    the differences as tracked files are. The text has at most MAX_DIFF characters;
    where it was cut, its end says so. Bytes that are not UTF-8 are escaped as surrogates: `encode_diff`
    returns the text's bytes. Returns None where there is no repository.
    """
    top = git_output(folder, "rev-parse", "--show-toplevel")
    if not top:
        return None, ""
    checkout = Path(top)
    commit = git_output(checkout, "rev-parse", "--verify", "HEAD")
    changes = ""
    if commit:
        completed = run_git(checkout, *DIFF, "HEAD", undecodable="surrogateescape")
        if completed.returncode != 0:
            return Repository(commit=commit, dirty=None), ""
        changes = completed.stdout
    differences = "".join([changes, *_untracked_files(checkout, files)])
    text = differences[:MAX_DIFF]
    if len(differences) > MAX_DIFF:
        text = f"{text}\n[cut: {len(differences) - MAX_DIFF} more characters]\n"
    digest = hashlib.sha256(encode_diff(text)).hexdigest() if text else None
    return Repository(commit=commit, dirty=bool(text), diff=digest), text


def encode_diff(text: str) -> bytes:
    """Return the bytes of differences, which keep the encoding of the files that they change."""
    return text.encode(errors="surrogateescape")


def _untracked_files(checkout: Path, files: Sequence[Path]) -> Iterator[str]:
    """Yield the content of those files in a checkout that git does not track, as differences."""
    names = []
    for path in files:
        with suppress(ValueError):  # a file outside of the checkout
            names.append(path.resolve().relative_to(checkout.resolve()).as_posix())
    if not names:
        return
    tracked = git_output(checkout, "ls-files", "-z", "--", *names) or ""
    for name in sorted({*names} - {*tracked.split("\0")}):
        # Its exit code is 1, which says that there are differences.
        completed = run_git(
            checkout, *DIFF, "--no-index", "--", os.devnull, name, undecodable="surrogateescape"
        )
        yield completed.stdout


def git_output(checkout: Path, *arguments: str) -> str | None:
    """Return what git prints, None where it fails or hangs."""
    try:
        completed = run_git(checkout, *arguments)
    except HarnessError:
        return None
    if completed.returncode != 0:
        return None
    return completed.stdout.strip()
