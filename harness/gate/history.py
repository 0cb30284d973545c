"""The commits between two revisions, and git's own bisect over them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.core.errors import BadInput, HarnessError, one_line
from harness.gate.worktree import resolve_commit, run_git

Mark = Literal["good", "bad", "skip"]
SUSPECT = re.compile(
    r"^# (?:possible )?first bad commit: \[(\w+)\]", re.MULTILINE
)  # in git's log of a bisect


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What git knows of it."""

    id: str
    short: str  # as much of the id as tells it from the others
    author: str
    date: str  # ISO 8601
    subject: str


def describe_commit(top: Path, revision: str) -> Commit:
    """A revision that is known to exist."""
    said = run_git(
        top, "show", "--no-patch", "--format=%H%x00%h%x00%an <%ae>%x00%aI%x00%s", revision
    ).stdout
    return Commit(
        **dict(
            zip(("id", "short", "author", "date", "subject"), said.strip().split("\0"), strict=True)
        )
    )


def resolve_ends(top: Path, good: str, bad: str) -> tuple[Commit, Commit]:
    """The two commits; raises BadInput unless BAD came from GOOD."""
    first, last = (
        resolve_commit(top, name, given) for name, given in ((good, "GOOD"), (bad, "BAD"))
    )
    if first == last:
        raise BadInput(
            f"BAD {bad}: found the same commit as GOOD {good}; allowed: one that came from it"
        )
    if not _is_ancestor(top, first, last):
        turned = (
            " (did you mean them the other way round?)" if _is_ancestor(top, last, first) else ""
        )
        raise BadInput(
            f"GOOD {good}: found no ancestor of BAD {bad}{turned}; allowed: a commit that BAD came from"
        )
    return describe_commit(top, first), describe_commit(top, last)


def _is_ancestor(top: Path, first: str, last: str) -> bool:
    return run_git(top, "merge-base", "--is-ancestor", first, last).returncode == 0


class Bisection:
    """git's bisect in a worktree of its own: neither its files nor any other worktree's bisect are touched."""

    def __init__(self, folder: Path, good: str, bad: str, *, first_parent: bool) -> None:
        self.folder = folder
        line = ["--first-parent"] if first_parent else []
        self.remaining = self._tell("start", "--no-checkout", *line, bad, good)
        self.commit_count = int(
            run_git(folder, "rev-list", "--count", *line, bad, f"^{good}").stdout
        )  # BAD is one of them

    @property
    def next_commit(self) -> str:
        """The commit to try."""
        return resolve_commit(self.folder, "BISECT_HEAD")

    def mark(self, mark: Mark) -> None:
        """Say what `next` is."""
        self.remaining = self._tell(mark)

    @property
    def suspects(self) -> Sequence[str]:
        """The first bad commit, or all that it can be once the others between are skipped; empty before."""
        return SUSPECT.findall(run_git(self.folder, "bisect", "log").stdout)

    def _tell(self, *words: str) -> str:
        """What git says is left, as in `Bisecting: 3 revisions left to test after this (roughly 2 steps)`."""
        done = run_git(self.folder, "bisect", *words)
        if done.returncode and not self.suspects:  # it is 2 where only skipped ones are left
            raise HarnessError(f"git bisect {words[0]}: {one_line(done.stderr or done.stdout)}")
        said, *_ = [*done.stdout.splitlines(), ""]
        return said if said.startswith("Bisecting:") else ""
