"""Judges whether a commit is bad: it trains slower than a good one, or computes other losses.

A commit between two ends is measured in fresh pairs against both. Measured against one end alone,
it would need a threshold, which is only as certain as the distance between the ends. With the log
ratio g of its throughput to that of the good end, and b to that of the bad end, the mean

    d = (g + b) / 2

is the distance from the middle, positive for a commit that is nearer to the good end. A commit that
changes nothing is at one of the ends, half of the whole loss away from the middle, however large
that loss is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Protocol, Self

import numpy as np

from harness.core.worktree import Tree
from harness.gate.history import Mark
from harness.gate.paired import (
    PAIRS_PER_BUDGET,
    Budget,
    PairedResult,
    PairSample,
    SpeedVerdict,
    StartPair,
    measure,
    refuse_misreports,
    sample_pair,
    uncounted_steps,
    warm_up,
)
from harness.gate.pairs import PairStarter
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.statistics.sequential import FEWEST_VALUES, confidence_sequence

GOOD, BAD, REVISION = "good", "bad", "revision"  # the keys of the trees
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
    """A judge's result for one revision.

    `skip` means that the revision can't be judged: it failed, or the measurement of an end is
    inconclusive.
    """

    mark: Mark
    description: str
    is_certain: bool = True  # False: `mark` is only the more likely of good and bad
    measurement: PairedResult | None = None  # of the speed of two revisions, if that was judged
    steps_until_divergence: int | None = None  # within which the losses differed


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
        """Return whether b is bad if a is good; raises HarnessError if a rank fails."""

    def classify(self, good: Tree, tree: Tree, bad: Tree) -> BisectFinding:
        """Return whether a tree is nearer to the good or the bad end; raises HarnessError."""

    def narrowed(self, bad: BisectFinding) -> Self:
        """Return the judge of the commits in between, once it is known how bad the last one is."""


@dataclass(frozen=True, kw_only=True)
class SpeedJudge:
    """Calls a commit bad if it trains slower by at least `min_effect`.

    A commit between two ends is bad if it is nearer to the bad end. So every commit is good or bad,
    and of several regressions a large one is found.
    """

    setup: TrainingSetup
    min_effect: float
    seconds: float  # of measuring; a commit between the ends is measured `EXTENSION` times as long
    alpha: float
    rng: np.random.Generator
    by_whole_turns: bool = False  # whether only whole turns show the loss between the ends

    def compare(self, a: Tree, b: Tree) -> BisectFinding:
        """Measure b against a until the size of the loss is known; raises HarnessError if a rank fails."""
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
        # The distances from the ends, as in `-0.3% from GOOD, +27.1% from BAD`.
        description = (
            f"{classification.against_good - 1:+.1%} from GOOD,"
            f" {classification.against_bad - 1:+.1%} from BAD"
        )
        if not classification.is_certain:
            description += f": the likelier, but not certain after {classification.seconds:.0f} s"
        return BisectFinding(
            mark="bad" if classification.is_bad else "good",
            description=description,
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
        is_excluded = measured.low is not None and measured.low > 1 - self.min_effect
        if is_excluded and measured.whole_turns_pass:
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


@dataclass(frozen=True, kw_only=True)
class LossJudge:
    """Calls a commit bad if it computes other losses.

    The losses of a commit between two ends must differ within as many steps as those of the ends.
    """

    setup: TrainingSetup
    seconds: float  # of training, after which losses that are still the same count as the same
    max_steps: int | None = None  # instead of `seconds`, once it is known

    def classify(self, good: Tree, tree: Tree, bad: Tree) -> BisectFinding:
        """Compare a tree with the good end: any other losses are bad."""
        return self.compare(good, tree)

    def compare(self, a: Tree, b: Tree) -> BisectFinding:
        """Train both until their losses differ; raises HarnessError if a rank fails."""
        setup = self.setup
        trees = {"a": a, "b": b}
        max_steps, seconds = math.inf, self.seconds
        if self.max_steps is not None:
            max_steps, seconds = self.max_steps, math.inf
        steps = 0
        spent = 0.0
        with (
            PairStarter(setup.cell, setup.seed, trees, setup.base, setup.profile) as starter,
            starter.pair("ab") as arms,
        ):
            while steps < max_steps and spent < seconds:
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


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Which end a revision is nearer to."""

    is_bad: bool  # whether it is nearer to the bad end
    is_certain: bool  # False: `is_bad` is only the more likely answer
    against_good: float  # its throughput over that of the good end
    against_bad: float  # and over that of the bad end
    seconds: float  # of measuring


def classify(
    cell: Cell,
    start_pair: StartPair,
    budget: Budget,
    rng: np.random.Generator,
    *,
    by_whole_turns: bool,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Classification:
    """Measure a revision against both ends until it is certain which of them it is nearer to.

    If it is still uncertain when the budget is spent, the more likely end is returned, so that one
    commit near the middle does not end the search. `start_pair` starts arms of the trees GOOD, BAD
    and REVISION. `by_whole_turns`: whole turns are compared, not undisturbed steps. Raises
    HarnessError if a rank fails.
    """
    samples: dict[str, list[PairSample]] = {GOOD: [], BAD: []}
    spent = 0.0
    is_certain = False
    while not is_certain and spent < budget.seconds:
        for end in rng.permutation([GOOD, BAD]).tolist():
            sample = _sample_against(end, cell, start_pair, budget.seconds_per_pair, rng)
            samples[end].append(sample)
            spent += sample.seconds
            if len(samples[end]) >= FEWEST_VALUES or spent >= budget.seconds:
                refuse_misreports(samples[end])
        against_good = _log_ratios(samples[GOOD], by_whole_turns=by_whole_turns)
        against_bad = _log_ratios(samples[BAD], by_whole_turns=by_whole_turns)
        distances = []  # from the middle, in each round
        for both in zip(against_good, against_bad, strict=True):
            distances.append(fmean(both))
        lows, highs = confidence_sequence(np.asarray(distances), budget.alpha)
        is_certain = len(distances) >= FEWEST_VALUES and bool(lows[-1] > 0 or highs[-1] < 0)
        on_progress(f"{len(distances)} rounds, {math.expm1(fmean(distances)):+.1%} from the middle")
    return Classification(
        is_bad=fmean(distances) < 0,
        is_certain=is_certain,
        against_good=math.exp(fmean(against_good)),
        against_bad=math.exp(fmean(against_bad)),
        seconds=spent,
    )


def _sample_against(
    end: str, cell: Cell, start_pair: StartPair, seconds: float, rng: np.random.Generator
) -> PairSample:
    """Measure a fresh pair of the revision, as arm B, against an end, as arm A."""
    names = {end: "a", REVISION: "b"}
    order: list[str] = rng.permutation([end, REVISION]).tolist()
    with start_pair(order) as started:
        arms = {names[key]: arm for key, arm in started.items()}
        counted = warm_up(arms)
        return sample_pair(arms, uncounted_steps(cell), counted, seconds)


def _log_ratios(samples: Sequence[PairSample], *, by_whole_turns: bool) -> list[float]:
    """Return the log ratio of each pair, in whole turns or in undisturbed steps."""
    if by_whole_turns:
        return [sample.whole_log_ratio for sample in samples]
    return [sample.log_ratio for sample in samples]
