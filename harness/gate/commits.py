"""Reads the commits between two revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.git import run_git
from harness.core.worktree import resolve_commit

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


def commits_between(repository: Path, good: str, bad: str) -> Sequence[str]:
    """Return the ids of the commits after GOOD up to BAD, in their order; a merge is one change.

    Raises BadInput unless GOOD is an ancestor of BAD.
    """
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
    options = ("--first-parent", "--reverse")
    return run_git(repository, "rev-list", *options, f"{good_id}..{bad_id}").stdout.split()


def _is_ancestor(repository: Path, ancestor: str, descendant: str) -> bool:
    """Return whether one commit is an ancestor of another, or the same commit."""
    done = run_git(repository, "merge-base", "--is-ancestor", ancestor, descendant)
    return done.returncode == 0
