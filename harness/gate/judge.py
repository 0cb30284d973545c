"""Judges what makes a commit a bad one: that it is slower than a good one, or that it computes
other losses.
"""

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

EXTENSION = 3  # how many times the budget an inconclusive commit is measured for, once
STRIDE = 20  # steps between two comparisons of the losses
MARKS: Mapping[SpeedVerdict, Mark] = {
    "slower": "bad",
    "faster": "good",
    "same": "good",
    "inconclusive": "skip",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a judge says of one revision against another.

    `skip` means that the revision can't be judged: it failed, or the measurement is inconclusive.
    """

    mark: Mark
    description: str
    measurement: PairedResult | None = None  # of their speed, if that was judged
    steps_until_divergence: int | None = None  # within which the losses had become others


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """What any two revisions train, so that nothing but their code differs."""

    cell: Cell
    seed: int
    base: Path  # the folder that the cell's paths are relative to
    profile: Profile
    on_progress: Callable[[str], None]


class Judge(Protocol):
    """Tells good commits from bad ones."""

    def __call__(self, a: Tree, b: Tree) -> Finding:
        """Say whether b is bad where a is good; raises HarnessError if a rank fails."""

    def narrowed(self, bad: Finding) -> Self:
        """Return the judge of the commits in between, once it is known how bad the last one is."""


@dataclass(frozen=True, kw_only=True)
class SpeedJudge:
    """Calls a commit bad that trains slower by at least `min_effect`.

    Between two ends, a commit is bad from half of what is certain to be lost between them. That is
    as far from either end as can be, so few pairs suffice, and of several regressions a large one
    is found. Half of the estimate would not do: it is too large where measuring stopped early.
    """

    setup: TrainingSetup
    min_effect: float
    seconds: (
        float  # of measuring; an inconclusive commit is measured `EXTENSION` times as long, once
    )
    alpha: float
    rng: np.random.Generator

    def __call__(self, a: Tree, b: Tree) -> Finding:
        measured = self._measure(a, b, self.seconds)
        if self._mark(measured) == "skip":
            measured = self._measure(a, b, EXTENSION * self.seconds)
        return Finding(
            mark=self._mark(measured),
            description=self._describe(measured),
            measurement=measured,
        )

    def narrowed(self, bad: Finding) -> Self:
        """Return a judge whose `min_effect` is half of the certain loss, if that is larger.

        Half is meant on the logarithmic scale, on which losses in a row add up.
        """
        certain_ratio = 1.0
        if bad.measurement is not None and bad.measurement.high:
            certain_ratio = bad.measurement.high
        half_of_loss = 1 - math.sqrt(certain_ratio)
        return replace(self, min_effect=max(self.min_effect, half_of_loss))

    def _measure(self, a: Tree, b: Tree, seconds: float) -> PairedResult:
        """Measure b against a for so many seconds at most; raises HarnessError if a rank fails."""
        setup = self.setup
        budget = Budget(min_effect=self.min_effect, seconds=seconds, alpha=self.alpha)
        return measure(
            setup.cell,
            setup.seed,
            {"a": a, "b": b},
            setup.base,
            setup.profile,
            budget,
            self.rng,
            setup.on_progress,
        )

    def _mark(self, measured: PairedResult) -> Mark:
        """Return `good` as soon as it is certain that b is not slower: how much faster it may be
        does not matter.
        """
        if measured.low is not None and measured.low > 1 - self.min_effect:
            return "good"
        return MARKS[measured.verdict]

    def _describe(self, measured: PairedResult) -> str:
        """Return a measurement in words, as in `19.0% slower (-20.0% to -18.0%)`."""
        if measured.verdict == "same":
            return f"as fast, to within {self.min_effect:.1%}"
        low = _signed_percent(measured.low)
        high = _signed_percent(measured.high)
        if measured.verdict != "inconclusive":
            change = abs((measured.ratio or 1) - 1)
            return f"{change:.1%} {measured.verdict} ({low} to {high})"
        if self._mark(measured) == "good":
            return f"not slower by {self.min_effect:.1%} ({low} to {high})"
        return f"inconclusive after {measured.seconds:.0f} s: between {low} and {high}"


def _signed_percent(ratio: float | None) -> str:
    """Return a bound of a ratio as a change, as in `-4.8%`."""
    return "anything" if ratio is None else f"{ratio - 1:+.1%}"


@dataclass(frozen=True, kw_only=True)
class LossJudge:
    """Calls a commit bad that computes other losses.

    Between two ends, they must differ within as many steps as they did between the ends.
    """

    setup: TrainingSetup
    seconds: float  # of training, after which losses that are still the same count as the same
    max_steps: int | None = None  # instead of `seconds`, once it is known

    def __call__(self, a: Tree, b: Tree) -> Finding:
        setup = self.setup
        trees = {"a": a, "b": b}
        steps = 0
        spent = 0.0
        with (
            PairStarter(setup.cell, setup.seed, trees, setup.base, setup.profile) as starter,
            starter.pair("ab") as arms,
        ):
            while self._continues(steps, spent):
                turn_a = arms["a"].train(STRIDE)
                turn_b = arms["b"].train(STRIDE)
                steps += STRIDE
                spent += sum(turn_a.seconds) + sum(turn_b.seconds)
                setup.on_progress(f"{steps} steps")
                if turn_a.losses != turn_b.losses:
                    return Finding(
                        mark="bad",
                        description=f"other losses within {steps} steps",
                        steps_until_divergence=steps,
                    )
        return Finding(mark="good", description=f"the same losses for {steps} steps")

    def narrowed(self, bad: Finding) -> Self:
        """Return a judge that trains for as many steps as it took `bad` to differ."""
        return replace(self, max_steps=bad.steps_until_divergence)

    def _continues(self, steps: int, spent: float) -> bool:
        """Whether to train on after so many steps, which took so many seconds."""
        if self.max_steps is not None:
            return steps < self.max_steps
        return spent < self.seconds
