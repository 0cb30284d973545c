"""Finds the folder in which trials share the code that torch has compiled, and bounds its size.

    ~/.cache/distributed-training-harness/compile/
      torch-2.13.0+cpu-9f86d081884c7d65/   of one environment: the conditions that torch's own keys leave out
        environment.json                   these conditions, for people
        mlp/                               graphs and kernels of a workload
        mlp.lock                           locked by ranks that use mlp/; its time is that of their start

Torch looks a graph up by its own code, its configuration, the graph and the GPU. That leaves out the
C++ compiler, the C library and the CPU, which differ between nodes and containers that share a home,
and ATEN_CPU_CAPABILITY: under another limit torch takes loops that advance by 16 numbers, compiles
them for registers of 8, and computes half of a result.

HARNESS_COMPILE_CACHE names another folder than `compile`, such as one on a node's own disk.
TORCHINDUCTOR_CACHE_DIR does not: code there would be taken under whichever conditions it was compiled.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import BadInput
from harness.core.locks import lock_file, share_file
from harness.core.packages import installed_version
from harness.core.paths import cache_folder, safe_folder_name, write_atomically
from harness.core.private import FILE_MODE, make_private_folder
from harness.records.environment import cpu_info

if TYPE_CHECKING:  # commands that only list the cache load no torch
    import torch

# The cache folders of Inductor and Triton; both variables are read when compiling begins.
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
ROOT_VARIABLE = "HARNESS_COMPILE_CACHE"
LIMIT_VARIABLE = "HARNESS_COMPILE_CACHE_GB"
DEFAULT_LIMIT = 5.0  # GB
LOCK_TIMEOUT = 60.0  # seconds that a folder which is being removed is waited for
COMPILER_TIMEOUT = 30.0  # seconds in which the C++ compiler names its version

# Of a 64-bit ELF file: where the table of its sections begins, the size of an entry, and their number.
ELF_HEADER = struct.Struct("=40xQ10xHH2x")

# Of this process, as numbers: a process that a forkserver forks has all inherited files closed, and
# a file object would close whatever has got the same number since.
_cache_lock: int | None = None


@dataclass(frozen=True)
class CacheEntry:
    """A workload's folder in one environment, which is removed as a whole."""

    folder: Path
    used_at: float  # seconds since the epoch
    size: int  # bytes


def root() -> Path:
    """Return the folder of all environments, which only its owner may enter.

    A user whose home can't be written has it in /tmp. Raises BadInput if it belongs to another user
    or the one that the environment names can't be made.
    """
    configured = os.environ.get(ROOT_VARIABLE)
    if configured:
        return _private_root(Path(configured).absolute())
    with suppress(BadInput, RuntimeError):  # of a user without a home
        return _private_root(cache_folder() / "compile")
    return _private_root(Path(f"/tmp/harness-compile-{os.geteuid()}"))


def _private_root(folder: Path) -> Path:
    """Make a folder that only its owner may enter, and return it; raises BadInput."""
    try:
        make_private_folder(folder)
    except OSError as error:
        raise BadInput(
            f"{ROOT_VARIABLE}: {folder}: can't be made: {error.strerror}; allowed: a folder of yours"
        ) from None
    return folder


def size_limit() -> int:
    """Return the bytes that `root` may hold; raises BadInput if the variable is no such number."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit = float(text or DEFAULT_LIMIT)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise BadInput(f"{LIMIT_VARIABLE}: found {text!r}; allowed: gigabytes, such as 5")
    return int(limit * 1e9)


def describe_environment(device: torch.device) -> dict[str, str]:
    """Return the conditions of compiled code that torch's own cache keys leave out.

    The GPU is among torch's keys, and is here for people. The paths of torch and Python are in the
    commands that compile kernels: under other paths, a graph would be found, and its kernels would be
    compiled again.
    """
    import torch

    device_name = device.type
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        device_name = f"{torch.cuda.get_device_name(device)} sm_{major}{minor}"
    info = cpu_info()
    names = ("vendor_id", "model name", "cpu family", "model")
    return {
        "python": f"{platform.python_version()} {sys.implementation.cache_tag}",
        "python_headers": sysconfig.get_path("include"),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "torch_folder": str(Path(torch.__file__).parent),
        "triton": installed_version("triton") or "none",
        "device": device_name,
        "cpu": " ".join(info.get(name, "") for name in names),
        "cpu_flags": info.get("flags") or info.get("Features") or platform.machine(),
        # Inductor writes its kernels for as many lanes as these allow.
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_capability_limit": os.environ.get("ATEN_CPU_CAPABILITY", ""),
        "compiler": _compiler_version(os.environ.get("CXX") or "g++"),
        "libc": " ".join(platform.libc_ver()),
    }


def environment_folder(parent: Path, environment: Mapping[str, str]) -> Path:
    """Return the folder of an environment, which is named by torch's version and a digest."""
    content = json.dumps(environment, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    version = environment["torch"].partition(" ")[0]
    return parent / f"torch-{version}-{digest}"


def share_cache(workload: str, device: torch.device) -> None:
    """Have torch's compilers cache in the folder that trials of a workload share.

    It stays as long as this process, or until `release`. Libraries that a killed compiler has left
    there unfinished are removed. Raises BadInput if there can't be one, if its limit is no number, or
    if another process is removing it for longer than LOCK_TIMEOUT.
    """
    global _cache_lock
    size_limit()  # refused here rather than after hours of training, when the cache is cleared
    folder = _environment_folder(device) / safe_folder_name(workload)
    # Nobody removes the folder while this process has the lock open.
    lock = os.open(_lock_path(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    if not share_file(lock, LOCK_TIMEOUT):
        raise BadInput(f"{folder}: found it locked for {LOCK_TIMEOUT:.0f} s; allowed: a free one")
    os.utime(lock)
    make_private_folder(folder)
    _cache_lock = lock
    remove_torn_libraries(folder)
    for variable in CACHE_VARIABLES:
        os.environ[variable] = str(folder)


def shared_folder() -> Path:
    """Return the folder in which torch's compilers cache, after `share_cache`."""
    return Path(os.environ[CACHE_VARIABLES[0]])


def environment_name(device: torch.device) -> str:
    """Return the name of this environment's folder, which tells it from others."""
    return _environment_folder(device).name


def release(*, clear_surplus: bool) -> None:
    """Release the workload's folder; with `clear_surplus`, bring `root` below its limit.

    The least recently used goes first. Raises OSError if a folder can't be removed.
    """
    global _cache_lock
    if _cache_lock is None:
        return
    os.close(_cache_lock)
    _cache_lock = None
    if clear_surplus:
        clear(root(), size_limit())


def remove_torn_libraries(folder: Path) -> list[Path]:
    """Remove the libraries of a workload that are not whole, and return them.

    The compiler writes a library where torch looks for it, so that one which was killed leaves a part,
    and torch takes whatever is there. While torch compiles a library, it holds a lock that is named
    as the library is: one that another trial is writing at this moment is left alone.
    """
    removed = []
    for library in folder.glob("*/*.so"):
        if _is_whole(library):
            continue
        key = library.name.partition(".")[0]
        locks = folder / "locks"
        locks.mkdir(exist_ok=True)
        with (locks / f"{key}.lock").open("ab") as lock:
            if lock_file(lock, 0) and not _is_whole(library):
                library.unlink(missing_ok=True)
                removed.append(library)
    return removed


def _is_whole(library: Path) -> bool:
    """Return whether a library has the table that ends an ELF file, whose place its first bytes say.

    Linkers write these bytes last. A library that another rank has just removed counts as whole.
    """
    try:
        with library.open("rb") as file:
            header = file.read(ELF_HEADER.size)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return True
    if len(header) < ELF_HEADER.size or not header.startswith(b"\x7fELF"):
        return False
    table, entry_size, entries = ELF_HEADER.unpack(header)
    return bool(table) and size >= table + entry_size * entries


def list_entries(parent: Path) -> list[CacheEntry]:
    """Return the entries of the caches of all environments, the least recently used first."""
    entries = []
    for lock in parent.glob("*/*.lock"):
        folder = lock.with_suffix("")
        if folder.is_dir():
            entries.append(CacheEntry(folder, lock.stat().st_mtime, _size(folder)))
    return sorted(entries, key=lambda entry: entry.used_at)


def clear(parent: Path, limit: int) -> list[Path]:
    """Remove the least recently used entries until `limit` bytes are left; return their folders.

    Entries that a process uses stay.
    """
    entries = list_entries(parent)
    total = sum(entry.size for entry in entries)
    removed = []
    for entry in entries:
        if total <= limit:
            break
        with _lock_path(entry.folder).open("ab") as lock:
            if lock_file(lock, 0):
                shutil.rmtree(entry.folder)
                total -= entry.size
                removed.append(entry.folder)
    return removed


def _environment_folder(device: torch.device) -> Path:
    """Return the folder of this environment; only its owner may enter it, as may root."""
    environment = describe_environment(device)
    folder = environment_folder(root(), environment)
    description = folder / "environment.json"
    if not description.exists():
        make_private_folder(folder)
        write_atomically(description, json.dumps(environment, indent=1), durable=False)
    return folder


def _lock_path(folder: Path) -> Path:
    """Return the lock file of a folder, which is next to it."""
    return folder.with_name(f"{folder.name}.lock")


def _size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a temporary file
                total += Path(parent, name).lstat().st_size
    return total


def _compiler_version(compiler: str) -> str:
    """Return the version that a C++ compiler reports, `none` where there is no compiler."""
    command = [compiler, "--version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILER_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return answer.stdout.partition("\n")[0]
