"""Describes the code that runs a trial: the harness's, and the repository of the user's.

Only the launcher does so: ranks need no git. The files of the workload itself are part of its cell
(`code` of `harness.sweep.cell.WorkloadRef`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import harness
from harness.core.errors import HarnessError
from harness.core.import_path import ROOT
from harness.core.worktree import run_git

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


def describe_code() -> Code:
    """Describe the harness: its version, its training code, and its commit in a checkout.

    Files that git does not track make no checkout dirty: results are usually among them.
    """
    version, training = harness.__version__, training_digest()
    if not (ROOT / ".git").exists():
        return Code(version=version, training=training)
    status = git_output(ROOT, "status", "--porcelain", "--untracked-files=no")
    dirty = None  # git could not say
    if status is not None:
        dirty = bool(status)
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
