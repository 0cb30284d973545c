"""`harness bisect GOOD BAD`: which commit made a cell slower, or changed its losses.

Every commit is measured against GOOD and never against a neighbour: git asks the same question of each, and many small
losses in a row would hide between neighbours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from harness.core.errors import BadInput, HarnessError, Inconclusive
from harness.gate.history import Bisection, Commit, Mark, commit, ends
from harness.gate.judge import Bench, Finding, Judge, Others, Slower
from harness.gate.worktree import Tree, find_top, worktree
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `harness bisect` was asked for."""

    good: str
    bad: str
    min_effect: float = 0.01
    seconds: float = 30.0  # of measuring, for each commit
    bits: bool = False  # whether other losses are looked for, not speed
    first_parent: bool = False
    order: int | None = None  # of the random order, for a run to be repeated


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was tried, against GOOD, and what git says is left."""

    commit: Commit
    found: Finding
    left: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The first bad commit against its parent; or several suspects, with what can't be tried between them."""

    asked: Asked
    cell: Cell
    steps: Sequence[Step]
    suspects: Sequence[Commit]  # the first bad commit is one of them
    own: Finding | None  # of a single suspect

    @property
    def exit_code(self) -> int:
        """0 for a commit that is bad against its own parent too, else 3."""
        return 0 if self.own is not None and self.own.mark == "bad" else 3

    def marked(self, mark: Mark) -> int:
        return sum(step.found.mark == mark for step in self.steps)


class Listener(Protocol):
    def trying(self, what: str) -> None:
        """A comparison begins."""

    def told(self, words: str) -> None:
        """How far it is."""

    def tried(self, step: Step) -> None:
        """A commit is over."""


def bisect(
    sweep: Sweep, cell: Cell, profile: Profile, asked: Asked, top_of: Path, listener: Listener
) -> Outcome:
    """Measure; raises BadInput for ends between which there is nothing to find, Inconclusive where that can't be told,
    HarnessError where an end fails. A commit between them that fails, or can't be told, is skipped."""
    top = find_top(top_of)
    good, bad = ends(top, asked.good, asked.bad)
    bench = Bench(
        cell=cell, seed=sweep.seeds[0], base=sweep.base_folder, profile=profile, told=listener.told
    )
    with (
        tempfile.TemporaryDirectory(prefix="harness-bisect-") as name,
        _tree(top, Path(name), good) as reference,
    ):
        git = Bisection(reference.place, good.id, bad.id, first_parent=asked.first_parent)
        first = _judge(asked, bench, comparisons=2 + git.count.bit_length())
        listener.trying(f"{asked.bad} against {asked.good}")
        with _tree(top, Path(name), bad) as tree:
            found = _hold_ends(asked, first, reference, tree)
        judge = first.narrowed(found)
        if asked.bits and judge(reference, reference).mark == "bad":
            raise Inconclusive(
                f"GOOD {asked.good}: found other losses whenever it trains, so nothing can be told by them"
            )
        steps = [Step(commit=bad, found=found, left=git.left)]
        listener.tried(steps[0])
        while not git.suspects:
            one = commit(top, git.next)
            listener.trying(f"{one.short} against {asked.good}")
            with _tree(top, Path(name), one) as tree:
                found = _hold(judge, reference, tree)
            git.mark(found.mark)
            steps.append(Step(commit=one, found=found, left=git.left))
            listener.tried(steps[-1])
        suspects = [commit(top, suspect) for suspect in git.suspects]
        own = None
        if len(suspects) == 1:
            listener.trying(f"{suspects[0].short} against its parent")
            with (
                _tree(top, Path(name) / "parent", commit(top, f"{suspects[0].id}^")) as a,
                _tree(top, Path(name), suspects[0]) as b,
            ):
                own = _hold(judge if asked.bits else first, a, b)
    return Outcome(asked=asked, cell=cell, steps=steps, suspects=suspects, own=own)


def _judge(asked: Asked, bench: Bench, comparisons: int) -> Slower | Others:
    """An error in any comparison misleads all, so they share ALPHA: each for the two times that it may be tried."""
    if asked.bits:
        return Others(bench=bench, seconds=asked.seconds)
    alpha, rng = ALPHA / (2 * comparisons), np.random.default_rng(asked.order)
    return Slower(
        bench=bench, min_effect=asked.min_effect, seconds=asked.seconds, alpha=alpha, rng=rng
    )


def _hold_ends(asked: Asked, judge: Judge, good: Tree, bad: Tree) -> Finding:
    """Nothing but a bad BAD comes back."""
    said = f"BAD {asked.bad} against GOOD {asked.good}"
    try:
        found = judge(good, bad)
    except HarnessError as error:
        raise HarnessError(f"{said}: {error}") from None
    if found.mark == "skip":
        raise Inconclusive(
            f"{said}: {found.words}; more time (--budget) or a quieter machine would tell"
        )
    if found.mark == "good":
        kind = "computes other losses" if asked.bits else "is slower"
        raise BadInput(f"{said}: {found.words}; allowed: a revision that {kind}")
    return found


def _hold(judge: Judge, a: Tree, b: Tree) -> Finding:
    try:
        return judge(a, b)
    except HarnessError as error:
        return Finding(mark="skip", words=f"failed: {error}")


def _tree(top: Path, place: Path, one: Commit) -> AbstractContextManager[Tree]:
    """A fresh one for each, so that nothing of another is left in it; at a path of its own, for Python's caches."""
    return worktree(top, one.short, place / one.short)
