"""Chooses the code that a trial runs again with: the recorded code or the code here.

Two repositories decide what a trial computes: that of the harness, if it runs from a checkout, and
that of the user's workload. Where the code here differs, the recorded commit of either is checked
out in a temporary folder. No working tree is ever changed.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.core.errors import BadInput, one_line
from harness.core.git import run_git
from harness.core.import_path import ROOT
from harness.core.paths import SweepFolder
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree, checked_out, find_repository
from harness.records.code import Code, Repository, training_digest
from harness.spec.cell import WorkloadRef
from workloads.catalog import BUILT_IN

Choice = Literal["recorded", "here"]
ARGUMENT = "--code recorded"
CUT = b"\n[cut: "  # begins the last line of truncated changes
SHOWN_DIGITS = 12  # of a commit, in text


@dataclass(frozen=True, kw_only=True)
class RecordedSource:
    """The recorded code of one repository."""

    name: str  # for people: `the harness` or `the workload`
    commit: str | None  # None without a repository
    dirty: bool | None
    diff: bytes | None = None  # of the dirty files; None if it was not recorded completely


@dataclass(frozen=True, kw_only=True)
class SourceChoice:
    """Which code of one repository a trial runs with, and why."""

    source: RecordedSource
    choice: Choice
    reason: str  # a clause for people
    repository: Path | None = None  # that the recorded commit is checked out of


@dataclass(frozen=True, kw_only=True)
class CheckedOut:
    """The folders of a trial's code while it runs again."""

    base_folder: Path  # that the paths of the workload are relative to
    # PYTHONPATH of ranks that run the recorded harness; None for this one.
    python_path: str | None


def recorded_workload(repository: Repository | None, diff: bytes | None) -> RecordedSource:
    """Return the recorded code of the user's workload."""
    if repository is None:
        return RecordedSource(name="workload", commit=None, dirty=None)
    return RecordedSource(
        name="workload", commit=repository.commit, dirty=repository.dirty, diff=diff
    )


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
    return content if hashlib.sha256(content).hexdigest() == repository.diff else None


def choose_harness(code: Code | None, demanded: Choice | None) -> SourceChoice:
    """Return whether a trial runs with this harness or with the recorded one.

    Raises BadInput if the recorded one is demanded and unavailable.
    """
    # The diff of the harness's uncommitted changes is not recorded.
    source = RecordedSource(name="harness", commit=None, dirty=None)
    if code is not None:
        source = replace(source, commit=code.commit, dirty=code.dirty)
    is_same = code is not None and code.training == training_digest()
    return _choose(source, demanded, is_same=is_same, inside=ROOT)


def choose_workload(
    source: RecordedSource,
    workload: WorkloadRef,
    present: WorkloadRef | None,
    base: Path,
    demanded: Choice | None,
) -> SourceChoice:
    """Return whether a trial runs with the workload's files here or with the recorded ones.

    `present` is the workload as it was planned from the files here, None if it can't be planned.
    Raises BadInput if the recorded files are demanded and unavailable.
    """
    if workload.uses in BUILT_IN:
        return SourceChoice(source=source, choice="here", reason="it is built in")
    is_same = present is not None and workload.code is not None and workload.code == present.code
    return _choose(source, demanded, is_same=is_same, inside=base)


def _choose(
    source: RecordedSource, demanded: Choice | None, *, is_same: bool, inside: Path
) -> SourceChoice:
    """Return the choice for the repository that contains `inside`."""
    if demanded == "here":
        reason = "the same as recorded" if is_same else "as demanded; the recorded one differs"
        return SourceChoice(source=source, choice="here", reason=reason)
    if is_same:
        return SourceChoice(source=source, choice="here", reason="the same as recorded")
    repository, problem = _find_commit(source, inside)
    if repository is None:
        if demanded == "recorded":
            raise BadInput(f"{ARGUMENT}: {source.name}: {problem}; allowed: --code here")
        reason = f"not the recorded one: {problem}"
        return SourceChoice(source=source, choice="here", reason=reason)
    changes = ""
    if source.dirty and demanded != "recorded":
        # They are in the record's folder and in no repository that its user has looked at.
        raise BadInput(
            f"--code: {source.name}: found a record of commit {(source.commit or '')[:SHOWN_DIGITS]}"
            " with uncommitted changes; allowed: --code recorded, which applies and runs them, or"
            " --code here"
        )
    if source.dirty:
        changes = " with its uncommitted changes"
    reason = f"commit {(source.commit or '')[:SHOWN_DIGITS]}{changes} of {repository}"
    return SourceChoice(source=source, choice="recorded", reason=reason, repository=repository)


def _find_commit(source: RecordedSource, inside: Path) -> tuple[Path | None, str]:
    """Return the repository that has the recorded code, or None and why there is none."""
    if source.commit is None:
        return None, "no commit was recorded"
    if source.dirty and (source.diff is None or CUT in source.diff):
        problem = (
            f"commit {source.commit[:SHOWN_DIGITS]} had uncommitted changes that were not kept"
        )
        return None, problem
    try:
        repository = find_repository(inside)
    except BadInput as error:
        return None, str(error)
    if run_git(repository, "cat-file", "-e", f"{source.commit}^{{commit}}").returncode != 0:
        problem = (
            f"{repository} has no commit {source.commit[:SHOWN_DIGITS]} (git fetch may bring it)"
        )
        return None, problem
    return repository, ""


def locate_base(workload: WorkloadRef, recorded: Path | None, current: Path) -> Path:
    """Return the folder here that the workload's paths are relative to.

    The working directory, `current`, comes before the recorded folder. Raises BadInput where neither
    has the file. A workload that is built in or installed needs no folder.
    """
    fallback = recorded if recorded is not None and recorded.is_dir() else current
    file = workload_file(workload.uses)
    if file is None:
        return fallback
    candidates = [current] if recorded is None else [current, recorded]
    for folder in candidates:
        if any((folder / name).is_file() for name in file):
            return folder
    if not workload.uses.partition(":")[0].endswith(".py"):
        return fallback  # an installed package
    raise BadInput(
        f"{workload.uses}: found no {file[0]} in {recorded or current}; allowed: run this in the"
        " folder of the sweep file that the trial was recorded from"
    )


def workload_file(uses: str) -> list[str] | None:
    """Return the paths that the file of a workload may have in its base folder, None for no file."""
    if uses.endswith(".py"):
        return [uses]  # a script
    if uses in BUILT_IN or ":" not in uses:
        return None
    location = uses.rpartition(":")[0]
    if location.endswith(".py"):
        return [location]
    path = location.replace(".", "/")
    return [f"{path}.py", f"{path}/__init__.py"]


@contextmanager
def sources_checked_out(choices: Mapping[str, SourceChoice], base: Path) -> Iterator[CheckedOut]:
    """Check out the recorded code, where it was chosen, for as long as the context lasts.

    `choices` are those of `harness` and `workload`. Raises BadInput where git can't.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(ScratchFolder("code")).path
        trees: dict[str, Tree] = {}
        for name, choice in choices.items():
            if choice.choice == "recorded":
                trees[name] = stack.enter_context(_checked_out_with_changes(choice, folder / name))
        base_folder = base
        if "workload" in trees:
            base_folder = trees["workload"].counterpart(base)
        python_path = None
        if "harness" in trees:
            python_path = trees["harness"].python_path
        yield CheckedOut(base_folder=base_folder, python_path=python_path)


@contextmanager
def _checked_out_with_changes(choice: SourceChoice, folder: Path) -> Iterator[Tree]:
    """Check out the recorded commit in `folder` and apply the changes that were recorded with it.

    Raises BadInput if they don't fit, as where a binary file was changed.
    """
    source = choice.source
    assert choice.repository is not None
    assert source.commit is not None
    repository, commit = choice.repository, source.commit
    with checked_out(repository, commit, folder, ARGUMENT, is_linked=False) as tree:
        if source.dirty and source.diff:
            with tempfile.NamedTemporaryFile(suffix=".diff") as file:
                file.write(source.diff)
                file.flush()
                done = run_git(folder, "apply", "--binary", "--whitespace=nowarn", file.name)
            if done.returncode != 0:
                raise BadInput(
                    f"{ARGUMENT}: {source.name}: the recorded changes don't apply:"
                    f" {one_line(done.stderr)}; allowed: --code here"
                )
        tree.link_what_git_has_not()  # after the changes, some of which are new files
        yield tree
