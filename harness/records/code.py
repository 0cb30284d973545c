"""Describes the code that runs a trial: the harness's, and the repository of the user's.

Only the launcher does so: ranks need no git. The files of the workload itself are part of its cell
(`harness.spec.cell.WorkloadCode`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import harness
from harness.core.errors import HarnessError
from harness.core.git import run_git
from harness.core.import_path import ROOT

# The code that decides what a trial computes, besides that of the workload.
DECISIVE_FOLDERS = (ROOT / "harness" / "training", ROOT / "workloads")


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
    # SHA-256 of the differences from the commit, which the sweep's folder has in a file of that
    # name; None where there are none.
    diff: str | None = None


def describe_code() -> Code:
    """Describe the harness: its version, its training code, and its commit in a checkout.

    Files that git does not track make no checkout dirty: results are usually among them.
    """
    checkout = Path(harness.__file__).parent.parent
    version, training = harness.__version__, training_digest()
    if not (checkout / ".git").exists():
        return Code(version=version, training=training)
    status = git_output(checkout, "status", "--porcelain", "--untracked-files=no")
    dirty = None  # git could not say
    if status is not None:
        dirty = bool(status)
    commit = git_output(checkout, "rev-parse", "HEAD")
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


def git_output(checkout: Path, *arguments: str) -> str | None:
    """Return what git prints, None where it fails or hangs."""
    try:
        completed = run_git(checkout, *arguments)
    except HarnessError:
        return None
    if completed.returncode != 0:
        return None
    return completed.stdout.strip()
