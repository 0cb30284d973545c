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
from harness.gate.history import Bisection, Commit, Mark, describe_commit, resolve_ends
from harness.gate.judge import Finding, Judge, LossJudge, SpeedJudge, TrainingSetup
from harness.gate.worktree import Tree, find_top, worktree
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA


@dataclass(frozen=True, kw_only=True)
class BisectOptions:
    """What `harness bisect` was asked for."""

    good: str
    bad: str
    min_effect: float = 0.01
    budget_seconds: float = 30.0  # of measuring, for each commit
    compare_bits: bool = False  # whether other losses are looked for, not speed
    first_parent: bool = False
    order_seed: int | None = None  # of the random order, for a run to be repeated


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was tried, against GOOD, and what git says is left."""

    commit: Commit
    finding: Finding
    remaining: str


@dataclass(frozen=True, kw_only=True)
class BisectOutcome:
    """The first bad commit against its parent; or several suspects, with what can't be tried between them."""

    options: BisectOptions
    cell: Cell
    steps: Sequence[Step]
    suspects: Sequence[Commit]  # the first bad commit is one of them
    against_parent: Finding | None  # of a single suspect

    @property
    def exit_code(self) -> int:
        """0 for a commit that is bad against its own parent too, else 3."""
        return 0 if self.against_parent is not None and self.against_parent.mark == "bad" else 3

    def count_marked(self, mark: Mark) -> int:
        return sum(step.finding.mark == mark for step in self.steps)


class BisectListener(Protocol):
    def on_comparison_start(self, what: str) -> None:
        """A comparison begins."""

    def on_progress(self, words: str) -> None:
        """How far it is."""

    def on_step_end(self, step: Step) -> None:
        """A commit is over."""


def bisect(
    sweep: Sweep,
    cell: Cell,
    profile: Profile,
    options: BisectOptions,
    top_of: Path,
    listener: BisectListener,
) -> BisectOutcome:
    """Measure; raises BadInput for ends between which there is nothing to find, Inconclusive where that can't be told,
    HarnessError where an end fails. A commit between them that fails, or can't be told, is skipped."""
    top = find_top(top_of)
    good, bad = resolve_ends(top, options.good, options.bad)
    bench = TrainingSetup(
        cell=cell,
        seed=sweep.seeds[0],
        base=sweep.base_folder,
        profile=profile,
        on_progress=listener.on_progress,
    )
    with (
        tempfile.TemporaryDirectory(prefix="harness-bisect-") as name,
        _tree(top, Path(name), good) as reference,
    ):
        git = Bisection(reference.path, good.id, bad.id, first_parent=options.first_parent)
        first = _judge(options, bench, comparisons=2 + git.commit_count.bit_length())
        listener.on_comparison_start(f"{options.bad} against {options.good}")
        with _tree(top, Path(name), bad) as tree:
            found = _hold_ends(options, first, reference, tree)
        judge = first.narrowed(found)
        if options.compare_bits and judge(reference, reference).mark == "bad":
            raise Inconclusive(
                f"GOOD {options.good}: found other losses whenever it trains, so nothing can be told by them"
            )
        steps = [Step(commit=bad, finding=found, remaining=git.remaining)]
        listener.on_step_end(steps[0])
        while not git.suspects:
            one = describe_commit(top, git.next_commit)
            listener.on_comparison_start(f"{one.short} against {options.good}")
            with _tree(top, Path(name), one) as tree:
                found = _hold(judge, reference, tree)
            git.mark(found.mark)
            steps.append(Step(commit=one, finding=found, remaining=git.remaining))
            listener.on_step_end(steps[-1])
        suspects = [describe_commit(top, suspect) for suspect in git.suspects]
        own = None
        if len(suspects) == 1:
            listener.on_comparison_start(f"{suspects[0].short} against its parent")
            with (
                _tree(top, Path(name) / "parent", describe_commit(top, f"{suspects[0].id}^")) as a,
                _tree(top, Path(name), suspects[0]) as b,
            ):
                own = _hold(judge if options.compare_bits else first, a, b)
    return BisectOutcome(
        options=options, cell=cell, steps=steps, suspects=suspects, against_parent=own
    )


def _judge(
    options: BisectOptions, bench: TrainingSetup, comparisons: int
) -> SpeedJudge | LossJudge:
    """An error in any comparison misleads all, so they share ALPHA: each for the two times that it may be tried."""
    if options.compare_bits:
        return LossJudge(bench=bench, seconds=options.budget_seconds)
    alpha, rng = ALPHA / (2 * comparisons), np.random.default_rng(options.order_seed)
    return SpeedJudge(
        bench=bench,
        min_effect=options.min_effect,
        seconds=options.budget_seconds,
        alpha=alpha,
        rng=rng,
    )


def _hold_ends(options: BisectOptions, judge: Judge, good: Tree, bad: Tree) -> Finding:
    """Nothing but a bad BAD comes back."""
    said = f"BAD {options.bad} against GOOD {options.good}"
    try:
        found = judge(good, bad)
    except HarnessError as error:
        raise HarnessError(f"{said}: {error}") from None
    if found.mark == "skip":
        raise Inconclusive(
            f"{said}: {found.description}; more time (--budget) or a quieter machine would tell"
        )
    if found.mark == "good":
        kind = "computes other losses" if options.compare_bits else "is slower"
        raise BadInput(f"{said}: {found.description}; allowed: a revision that {kind}")
    return found


def _hold(judge: Judge, a: Tree, b: Tree) -> Finding:
    try:
        return judge(a, b)
    except HarnessError as error:
        return Finding(mark="skip", description=f"failed: {error}")


def _tree(top: Path, place: Path, one: Commit) -> AbstractContextManager[Tree]:
    """A fresh one for each, so that nothing of another is left in it; at a path of its own, for Python's caches."""
    return worktree(top, one.short, place / one.short)
