"""Chooses the code that a trial runs again with: the recorded code or the code here.

The repository of the user's workload decides. Where the code here differs, the recorded commit is
checked out in a temporary folder. No working tree is ever changed. The harness is always this one; a
record that another one made differs in the condition `harness.training`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.core.errors import BadInput, one_line
from harness.core.paths import SweepFolder
from harness.core.scratch import ScratchFolder
from harness.core.worktree import checked_out, find_repository, run_git
from harness.records.environment import Repository
from harness.sweep.cell import WorkloadRef
from workloads.catalog import BUILT_IN

Choice = Literal["recorded", "here"]
ARGUMENT = "--code recorded"
CUT = b"\n[cut: "  # begins the last line of truncated changes
SHOWN_DIGITS = 12  # of a commit, in text


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which code a trial runs with, and why."""

    choice: Choice
    reason: str  # a clause for people
    repository: Path | None = None  # that the recorded commit is checked out of
    commit: str | None = None
    changes: bytes | None = None  # to the commit, that were recorded with it


def read_diff(repository: Repository | None, folder: SweepFolder | None) -> bytes | None:
    """Return the recorded changes of a repository's files, None where they are gone or damaged.

    The sweep's folder has them.
    """
    if repository is None or repository.diff is None or folder is None:
        return None
    try:
        content = folder.diff_path(repository.diff).read_bytes()
    except OSError:
        return None
    digest = hashlib.sha256(content).hexdigest()
    return content if digest == repository.diff else None


def choose_source(
    recorded: Repository | None,
    diff: bytes | None,
    workload: WorkloadRef,
    present: WorkloadRef | None,
    base: Path,
    demanded: Choice | None,
) -> Source:
    """Return whether a trial runs with the workload's files here or with the recorded ones.

    `recorded` and `diff` are the repository as the record has it, `workload` is the recorded workload and
    `present` that which was planned from the files at `base`, None if it can't be planned. Raises BadInput
    if the recorded files are demanded and unavailable, and where they have uncommitted changes, which
    are in the record's folder and in no repository that its user has looked at, unless they are demanded.
    """
    if workload.uses in BUILT_IN:
        return Source(choice="here", reason="it is built in")
    is_unchanged = present is not None and present.code == workload.code
    if is_unchanged and workload.code is not None:
        return Source(choice="here", reason="the same as recorded")
    if demanded == "here":
        return Source(choice="here", reason="as demanded; the recorded one differs")
    problem = _find_problem(recorded, diff, base)
    if problem is not None:
        if demanded == "recorded":
            raise BadInput(f"{ARGUMENT}: workload: {problem}; allowed: --code here")
        return Source(choice="here", reason=f"not the recorded one: {problem}")
    assert recorded is not None
    assert recorded.commit is not None
    repository = find_repository(base)
    commit = recorded.commit[:SHOWN_DIGITS]
    if not recorded.dirty:
        reason = f"commit {commit} of {repository}"
        return Source(
            choice="recorded",
            reason=reason,
            repository=repository,
            commit=recorded.commit,
        )
    if demanded != "recorded":
        raise BadInput(
            f"--code: workload: found a record of commit {commit} with uncommitted changes;"
            " allowed: --code recorded, which applies and runs them, or --code here"
        )
    return Source(
        choice="recorded",
        reason=f"commit {commit} with its uncommitted changes of {repository}",
        repository=repository,
        commit=recorded.commit,
        changes=diff,
    )


def _find_problem(recorded: Repository | None, diff: bytes | None, base: Path) -> str | None:
    """Return why the recorded code can't be checked out from the repository at `base`."""
    if recorded is None or recorded.commit is None:
        return "no commit was recorded"
    commit = recorded.commit[:SHOWN_DIGITS]
    if recorded.dirty and (diff is None or CUT in diff):
        return f"commit {commit} had uncommitted changes that were not kept"
    try:
        repository = find_repository(base)
    except BadInput as error:
        return str(error)
    done = run_git(repository, "cat-file", "-e", f"{recorded.commit}^{{commit}}")
    if done.returncode != 0:
        return f"{repository} has no commit {commit} (git fetch may bring it)"
    return None


def locate_base(workload: WorkloadRef, recorded: Path | None, current: Path) -> Path:
    """Return the folder here that the workload's paths are relative to.

    The working directory, `current`, comes before the recorded folder. Raises BadInput where neither
    has the file. A workload that is built in or installed needs no folder.
    """
    fallback = current
    if recorded is not None and recorded.is_dir():
        fallback = recorded
    location = workload.uses.partition(":")[0]
    if workload.uses in BUILT_IN:
        return fallback
    names = [location]
    if not location.endswith(".py"):
        path = location.replace(".", "/")
        names = [f"{path}.py", f"{path}/__init__.py"]
    folders = [current] if recorded is None else [current, recorded]
    for folder in folders:
        if any((folder / name).is_file() for name in names):
            return folder
    if not location.endswith(".py"):
        return fallback  # an installed package
    raise BadInput(
        f"{workload.uses}: found no {location} in {recorded or current}; allowed: run this in the"
        " folder of the sweep file that the trial was recorded from"
    )


@contextmanager
def source_checked_out(source: Source, base: Path) -> Iterator[Path]:
    """Yield the folder that the workload's paths are relative to, `base` for the code here.

    Recorded code is checked out for as long as the context lasts. Raises BadInput where git can't, and
    where recorded changes don't fit, as where a binary file was changed.
    """
    if source.repository is None or source.commit is None:
        yield base
        return
    with (
        ScratchFolder("code") as scratch,
        checked_out(source.repository, source.commit, scratch.path / "tree", ARGUMENT) as tree,
    ):
        if source.changes:
            _apply_changes(tree.path, source.changes)
        yield tree.counterpart(base)


def _apply_changes(tree: Path, changes: bytes) -> None:
    """Apply recorded changes to the commit that is checked out in `tree`."""
    with tempfile.NamedTemporaryFile(suffix=".diff") as file:
        file.write(changes)
        file.flush()
        done = run_git(tree, "apply", "--binary", "--whitespace=nowarn", file.name)
    if done.returncode != 0:
        raise BadInput(
            f"{ARGUMENT}: workload: the recorded changes don't apply:"
            f" {one_line(done.stderr)}; allowed: --code here"
        )
