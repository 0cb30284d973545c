"""Judges what makes a commit a bad one: that it is slower than a good one, or that it computes
other losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from harness.core.worktree import Tree
from harness.gate.arms import PairStarter
from harness.gate.classify import BAD, GOOD, REVISION, Classification, classify
from harness.gate.history import Mark
from harness.gate.paired import PAIRS_PER_BUDGET, Budget, PairedResult, SpeedVerdict, measure
from harness.spec.cell import Cell
from harness.spec.cluster import Profile

EXTENSION = 3  # how many times the budget of the ends a commit between them may be measured for
CERTAIN_SHARE = 0.5  # of the loss between the ends
STRIDE = 20  # steps between two comparisons of the losses
MARKS: Mapping[SpeedVerdict, Mark] = {
    "slower": "bad",
    "faster": "good",
    "same": "good",
    "inconclusive": "skip",
}


@dataclass(frozen=True, kw_only=True)
class BisectFinding:
    """What a judge says of one revision.

    `skip` means that the revision can't be judged: it failed, or the measurement of an end is
    inconclusive.
    """

    mark: Mark
    description: str
    is_certain: bool = True  # or the likelier of good and bad
    measurement: PairedResult | None = None  # of the speed of two revisions, if that was judged
    steps_until_divergence: int | None = None  # within which the losses had become others


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """What any two revisions train, so that nothing but their code differs."""

    cell: Cell
    seed: int
    base: Path  # the folder that the cell's paths are relative to
    profile: Profile
    on_progress: Callable[[str], None]
    pairs: int = PAIRS_PER_BUDGET  # of arms, that a budget is divided into


class Judge(Protocol):
    """Tells good commits from bad ones."""

    def compare(self, a: Tree, b: Tree) -> BisectFinding:
        """Say whether b is bad where a is good; raises HarnessError if a rank fails."""

    def classify(self, good: Tree, tree: Tree, bad: Tree) -> BisectFinding:
        """Say whether a tree belongs to the good end or to the bad one; raises HarnessError."""

    def narrowed(self, bad: BisectFinding) -> Self:
        """Return the judge of the commits in between, once it is known how bad the last one is."""


@dataclass(frozen=True, kw_only=True)
class SpeedJudge:
    """Calls a commit bad that trains slower by at least `min_effect`, and a commit between two ends
    bad that lies nearer to the bad one.

    So every commit is good or bad, and of several regressions a large one is found.
    """

    setup: TrainingSetup
    min_effect: float
    seconds: float  # of measuring; a commit between the ends is measured `EXTENSION` times as long
    alpha: float
    rng: np.random.Generator
    by_whole_turns: bool = False  # whether undisturbed steps don't show the loss between the ends

    def compare(self, a: Tree, b: Tree) -> BisectFinding:
        """Measure b against a, until the loss is known well; raises HarnessError if a rank fails."""
        setup = self.setup
        budget = Budget(
            min_effect=self.min_effect,
            seconds=self.seconds,
            alpha=self.alpha,
            certain_share=CERTAIN_SHARE,
            pairs=setup.pairs,
        )
        measured = measure(
            setup.cell,
            setup.seed,
            {"a": a, "b": b},
            setup.base,
            setup.profile,
            budget,
            self.rng,
            setup.on_progress,
        )
        return BisectFinding(
            mark=self._mark(measured),
            description=self._describe(measured),
            measurement=measured,
        )

    def classify(self, good: Tree, tree: Tree, bad: Tree) -> BisectFinding:
        """Measure a tree against both ends; raises HarnessError if a rank fails."""
        setup = self.setup
        budget = Budget(
            min_effect=self.min_effect,
            seconds=EXTENSION * self.seconds,
            alpha=self.alpha,
            pairs=setup.pairs,
        )
        trees = {GOOD: good, REVISION: tree, BAD: bad}
        with PairStarter(setup.cell, setup.seed, trees, setup.base, setup.profile) as starter:
            classification = classify(
                setup.cell,
                starter.pair,
                budget,
                self.rng,
                by_whole_turns=self.by_whole_turns,
                on_progress=setup.on_progress,
            )
        return BisectFinding(
            mark="bad" if classification.is_bad else "good",
            description=_describe_classification(classification),
            is_certain=classification.is_certain,
        )

    def narrowed(self, bad: BisectFinding) -> Self:
        """Return a judge that looks at what shows the loss between the ends."""
        measured = bad.measurement
        return replace(self, by_whole_turns=bool(measured and measured.is_slower_as_a_whole))

    def _mark(self, measured: PairedResult) -> Mark:
        """Return `good` as soon as it is certain that b is not slower: how much faster it may be
        does not matter.
        """
        if measured.verdict == "slower":
            return "bad"
        if measured.low is not None and measured.low > 1 - self.min_effect:
            return "good"
        return MARKS[measured.verdict]

    def _describe(self, measured: PairedResult) -> str:
        """Return a measurement in words, as in `19.0% slower (-20.0% to -18.0%)`."""
        if measured.verdict == "same":
            return f"as fast, to within {self.min_effect:.1%}"
        low = _signed_percent(measured.low)
        high = _signed_percent(measured.high)
        if measured.is_slower_as_a_whole:
            whole = abs((measured.whole_ratio or 1) - 1)
            low, high = map(_signed_percent, measured.verdict_bounds)
            return f"{whole:.1%} slower in whole turns ({low} to {high}), not in its usual steps"
        if measured.verdict != "inconclusive":
            change = abs((measured.ratio or 1) - 1)
            return f"{change:.1%} {measured.verdict} ({low} to {high})"
        if self._mark(measured) == "good":
            return f"not slower by {self.min_effect:.1%} ({low} to {high})"
        return f"inconclusive after {measured.seconds:.0f} s: between {low} and {high}"


def _signed_percent(ratio: float | None) -> str:
    """Return a bound of a ratio as a change, as in `-4.8%`."""
    return "anything" if ratio is None else f"{ratio - 1:+.1%}"


def _describe_classification(classification: Classification) -> str:
    """Return where a commit lies, as in `-0.3% from GOOD, +27.1% from BAD`."""
    text = (
        f"{classification.against_good - 1:+.1%} from GOOD,"
        f" {classification.against_bad - 1:+.1%} from BAD"
    )
    if classification.is_certain:
        return text
    return f"{text}: the likelier, but not certain after {classification.seconds:.0f} s"


@dataclass(frozen=True, kw_only=True)
class LossJudge:
    """Calls a commit bad that computes other losses.

    Between two ends, they must differ within as many steps as they did between the ends.
    """

    setup: TrainingSetup
    seconds: float  # of training, after which losses that are still the same count as the same
    max_steps: int | None = None  # instead of `seconds`, once it is known

    def classify(self, good: Tree, tree: Tree, bad: Tree) -> BisectFinding:
        """Compare a tree with the good end: other losses than its are bad, whatever they are."""
        return self.compare(good, tree)

    def compare(self, a: Tree, b: Tree) -> BisectFinding:
        """Train both until their losses differ; raises HarnessError if a rank fails."""
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
                    return BisectFinding(
                        mark="bad",
                        description=f"other losses within {steps} steps",
                        steps_until_divergence=steps,
                    )
        return BisectFinding(mark="good", description=f"the same losses for {steps} steps")

    def narrowed(self, bad: BisectFinding) -> Self:
        """Return a judge that trains for as many steps as it took `bad` to differ."""
        return replace(self, max_steps=bad.steps_until_divergence)

    def _continues(self, steps: int, spent: float) -> bool:
        """Whether to train on after so many steps, which took so many seconds."""
        if self.max_steps is not None:
            return steps < self.max_steps
        return spent < self.seconds
