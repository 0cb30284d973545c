"""Reads the commits between two revisions and runs git's own bisect over them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.git import run_git
from harness.core.worktree import resolve_commit

Mark = Literal["good", "bad", "skip"]
# A line of `git bisect log`.
SUSPECT = re.compile(r"^# (?:possible )?first bad commit: \[(\w+)\]", re.MULTILINE)
FORMAT = "%H%x00%h%x00%an <%ae>%x00%aI%x00%s"  # of `git show`: the fields of a `Commit`, in order


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit, as git shows it."""

    id: str
    short: str  # as much of the id as is unambiguous
    author: str
    date: str  # ISO 8601
    subject: str


def describe_commit(repository: Path, revision: str) -> Commit:
    """Return the commit of a revision, which must exist."""
    # Under `log.showSignature`, git would say before the format what it thinks of a signature.
    options = ("--no-show-signature", "--no-patch", f"--format={FORMAT}")
    shown = run_git(repository, "show", *options, revision).stdout
    commit_id, short, author, date, subject = shown.strip().split("\0")
    return Commit(id=commit_id, short=short, author=author, date=date, subject=subject)


def resolve_ends(repository: Path, good: str, bad: str) -> tuple[Commit, Commit]:
    """Return the commits of GOOD and BAD; raises BadInput unless GOOD is an ancestor of BAD."""
    good_id = resolve_commit(repository, good, "GOOD")
    bad_id = resolve_commit(repository, bad, "BAD")
    if good_id == bad_id:
        raise BadInput(
            f"BAD {bad}: found the same commit as GOOD {good}; allowed: a descendant of it"
        )
    if not _is_ancestor(repository, good_id, bad_id):
        hint = ""
        if _is_ancestor(repository, bad_id, good_id):
            hint = " (did you mean them the other way round?)"
        raise BadInput(
            f"GOOD {good}: found no ancestor of BAD {bad}{hint}; allowed: an ancestor of BAD"
        )
    return describe_commit(repository, good_id), describe_commit(repository, bad_id)


def _is_ancestor(repository: Path, ancestor: str, descendant: str) -> bool:
    """Return whether one commit is an ancestor of another, or the same commit."""
    done = run_git(repository, "merge-base", "--is-ancestor", ancestor, descendant)
    return done.returncode == 0


class Bisection:
    """Runs git's bisect in a separate worktree.

    git keeps the state of a bisect in each worktree, so a bisect of the user is not disturbed. No
    files are changed, in this worktree either: commits are tried elsewhere.
    """

    def __init__(self, worktree: Path, good: str, bad: str, *, first_parent: bool) -> None:
        self.worktree = worktree
        options = ["--first-parent"] if first_parent else []
        # git's message: `Bisecting: 3 revisions left to test after this (roughly 2 steps)`.
        self.remaining = self._run("start", "--no-checkout", *options, bad, good)
        counted = run_git(worktree, "rev-list", "--count", *options, bad, f"^{good}").stdout
        self.commit_count = int(counted)  # BAD is one of them, GOOD is not

    @property
    def next_commit(self) -> str:
        """Return the id of the commit to try."""
        return resolve_commit(self.worktree, "BISECT_HEAD")

    def mark(self, mark: Mark) -> None:
        """Mark `next_commit` in git."""
        self.remaining = self._run(mark)

    @property
    def suspects(self) -> Sequence[str]:
        """Return the id of the first bad commit, or of all candidates if commits were skipped.

        Empty until no commit is left to try.
        """
        return SUSPECT.findall(run_git(self.worktree, "bisect", "log").stdout)

    def _run(self, *arguments: str) -> str:
        """Run a command of `git bisect` and return its message about remaining commits, if any."""
        done = run_git(self.worktree, "bisect", *arguments)
        # Exit code 2 means that only skipped commits are left, which is not a failure.
        if done.returncode and not self.suspects:
            message = one_line(done.stderr or done.stdout)
            raise HarnessError(f"git bisect {arguments[0]}: {message}")
        lines = done.stdout.splitlines()
        if lines and lines[0].startswith("Bisecting:"):
            return lines[0]
        return ""
