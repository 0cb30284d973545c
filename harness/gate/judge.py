"""What makes a commit a bad one: that it is slower than a good one, or that its losses are others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from harness.gate.arms import PairStarter
from harness.gate.history import Mark
from harness.gate.paired import Budget, PairedResult, SpeedVerdict, measure
from harness.gate.worktree import Tree
from harness.spec.cell import Cell
from harness.spec.cluster import Profile

LONGER = 3  # times the budget, for what could not be told
STRIDE = 20  # steps between two looks at the losses
MARKS: Mapping[SpeedVerdict, Mark] = {
    "slower": "bad",
    "faster": "good",
    "same": "good",
    "inconclusive": "skip",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Of one revision against another, in words too. `steps_until_divergence`: after how many of them the losses had become others."""

    mark: Mark
    description: str
    measurement: PairedResult | None = None
    steps_until_divergence: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """What any two revisions train on."""

    cell: Cell
    seed: int
    base: Path
    profile: Profile
    on_progress: Callable[[str], None]


class Judge(Protocol):
    def __call__(self, a: Tree, b: Tree) -> Finding:
        """Whether b is bad where a is good; raises HarnessError if a rank fails."""

    def narrowed(self, bad: Finding) -> Self:
        """For the commits between, once it is known how bad the last one is."""


@dataclass(frozen=True, kw_only=True)
class SpeedJudge:
    """Bad is what trains slower by what matters; between two ends, by half of what is certain to be lost between them.

    Far from either end few pairs tell, and of several losses a large one is found. The estimate itself would not do: it
    is too large where measuring stopped early.
    """

    bench: TrainingSetup
    min_effect: float
    seconds: float  # of measuring; what can't be told is measured `LONGER` times as long, once
    alpha: float
    rng: np.random.Generator

    def __call__(self, a: Tree, b: Tree) -> Finding:
        one = self.bench
        for seconds in (self.seconds, LONGER * self.seconds):
            budget = Budget(min_effect=self.min_effect, seconds=seconds, alpha=self.alpha)
            trees = {"a": a, "b": b}
            found = measure(
                one.cell, one.seed, trees, one.base, one.profile, budget, self.rng, one.on_progress
            )
            if self._mark(found) != "skip":
                break
        return Finding(mark=self._mark(found), description=self._words(found), measurement=found)

    def _mark(self, found: PairedResult) -> Mark:
        """Whether it is faster, if it may be, is not the question."""
        certain = found.low is not None and found.low > 1 - self.min_effect
        return "good" if certain else MARKS[found.verdict]

    def narrowed(self, bad: Finding) -> Self:
        high = bad.measurement.high if bad.measurement and bad.measurement.high else 1.0
        return replace(self, min_effect=max(self.min_effect, 1 - math.sqrt(high)))

    def _words(self, found: PairedResult) -> str:
        if found.verdict == "same":
            return f"as fast, to within {self.min_effect:.1%}"
        low, high = (
            "anything" if bound is None else f"{bound - 1:+.1%}"
            for bound in (found.low, found.high)
        )
        if found.verdict == "inconclusive" and self._mark(found) == "good":
            return f"not slower by {self.min_effect:.1%} ({low} to {high})"
        if found.verdict == "inconclusive":
            return f"can't be told after {found.seconds:.0f} s: between {low} and {high}"
        return f"{abs((found.ratio or 1) - 1):.1%} {found.verdict} ({low} to {high})"


@dataclass(frozen=True, kw_only=True)
class LossJudge:
    """Bad is what computes other losses; between two ends, within as many steps as it took between them."""

    bench: TrainingSetup
    seconds: float  # of training before the losses count as the same
    most: float = math.inf  # steps

    def __call__(self, a: Tree, b: Tree) -> Finding:
        one, steps, spent = self.bench, 0, 0.0
        trees = {"a": a, "b": b}
        with (
            PairStarter(one.cell, one.seed, trees, one.base, one.profile) as starter,
            starter.pair("ab") as found,
        ):
            while steps < self.most and (spent < self.seconds or math.isfinite(self.most)):
                turns = [found[key].train(STRIDE) for key in "ab"]
                steps, spent = steps + STRIDE, spent + sum(sum(turn.seconds) for turn in turns)
                one.on_progress(f"{steps} steps")
                if turns[0].losses != turns[1].losses:
                    return Finding(
                        mark="bad",
                        description=f"other losses within {steps} steps",
                        steps_until_divergence=steps,
                    )
        return Finding(mark="good", description=f"the same losses for {steps} steps")

    def narrowed(self, bad: Finding) -> Self:
        return replace(self, most=bad.steps_until_divergence or math.inf)
