"""Measures two revisions against each other: pairs of fresh processes that train in turn, until it
is certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.gate.arms import Arm, PairStarter
from harness.gate.worktree import Tree
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.statistics.sequential import confidence_sequence, decide, log_ratio

# Seconds that a window takes at least. The shorter windows are, the more alike are the conditions
# of neighbors.
WINDOW_SECONDS = 0.001
MIN_WINDOW_STEPS = 2  # beside the uncounted steps at the start of its turn
MIN_WINDOWS = 8  # of a pair of arms
WARM_UP_SECONDS = 0.2  # that each arm trains at least before anything counts
WARM_UP_STEPS = 5  # of one turn
MAX_WARM_UP_STEPS = 200  # in all
PAIRS_PER_BUDGET = 20  # how many pairs of arms a budget is divided into
MIN_PAIR_SECONDS = 0.1  # of measuring; starting a pair takes ten times as long

SpeedVerdict = Literal["faster", "slower", "same", "inconclusive"]
# What the decision of a confidence sequence on log ratios says of arm B.
VERDICTS: dict[str, SpeedVerdict] = {
    "up": "faster",
    "down": "slower",
    "same": "same",
    "undecided": "inconclusive",
}
# Starts the arms with the given keys, in their order, for as long as the context lasts.
StartPair = Callable[[Sequence[str]], AbstractContextManager[Mapping[str, Arm]]]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop measuring a cell: as soon as it is certain, or when the time is spent.

    `alpha` bounds the chance that equal arms are ever called different, at any of the looks.
    """

    min_effect: float  # smallest change of throughput that matters, a fraction
    seconds: float  # of measuring
    alpha: float  # chance of a false alarm


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """How fast arm B trains a cell, as a multiple of arm A's throughput."""

    verdict: SpeedVerdict = "inconclusive"
    ratio: float | None = None  # throughput of B over that of A
    # The interval of the ratio, which holds at all looks at once; None where too little has been
    # measured.
    low: float | None = None
    high: float | None = None
    a_rate: float | None = None  # samples/s
    b_rate: float | None = None  # samples/s
    pairs: int = 0  # of processes
    windows: int = 0  # of all pairs together
    seconds: float = 0.0  # in the windows
    same_bits: bool | None = None  # whether both arms computed the same losses
    failure: str | None = None  # why it could not be measured
    log_ratios: Sequence[float] = field(default=(), repr=False)  # one for each pair


@dataclass(frozen=True, kw_only=True)
class PairSample:
    """What one pair of arms measured."""

    step_seconds: NDArray[np.float64]  # mean of a step in each window, the arms in turn, (windows,)
    b_first: bool  # whether the first window is B's
    seconds: float  # in all windows
    same_bits: bool

    @property
    def log_ratio(self) -> float:
        """Return the logarithm of B's throughput over A's.

        Every window is compared with its neighbors, so a drift of the machine cancels: see
        `sequential.log_ratio`.
        """
        return float(log_ratio(self.step_seconds, b_first=self.b_first))

    def log_rate(self, key: str) -> float:
        """Return the mean logarithm of an arm's steps/s."""
        has_first_window = (key == "b") == self.b_first
        offset = 0 if has_first_window else 1
        return -float(np.log(self.step_seconds[offset::2]).mean())


def measure(
    cell: Cell,
    seed: int,
    trees: Mapping[str, Tree],
    base: Path,
    profile: Profile,
    budget: Budget,
    rng: np.random.Generator,
    on_progress: Callable[[str], None] = lambda text: None,
) -> PairedResult:
    """Measure how fast a cell trains in tree `b`, as a multiple of tree `a`.

    `base` is the folder that the cell's paths are relative to, in the working tree; `rng` draws
    which arm starts first. Raises HarnessError if a rank fails.
    """
    with PairStarter(cell, seed, trees, base, profile) as starter:
        return run_paired(cell, starter.pair, budget, rng, on_progress)


def run_paired(
    cell: Cell,
    start_pair: StartPair,
    budget: Budget,
    rng: np.random.Generator,
    on_progress: Callable[[str], None] = lambda text: None,
) -> PairedResult:
    """Measure fresh pairs of arms one after the other until the ratio is certain or the budget is
    spent.

    The unit is a pair of arms, however many windows it trains: where a process lies in memory makes
    it faster or slower for as long as it lives, so windows of one pair are not independent of each
    other, and would prove that placement as if it were a change. One pair gives one value, the mean
    log ratio of its windows. Nothing is kept between pairs, and chance says which arm starts first.
    So values are independent, and for equal arms as likely up as down.
    """
    samples: list[PairSample] = []
    decision = "undecided"
    # Batches that loader workers prepared while the other arm trained cost a turn's first steps
    # nothing; and at least one step finds the other arm's data in the caches.
    prepared = cell.axes.num_workers * cell.axes.prefetch_factor
    uncounted = max(1, prepared)
    seconds_per_pair = max(MIN_PAIR_SECONDS, budget.seconds / PAIRS_PER_BUDGET)
    spent = 0.0
    while decision == "undecided" and spent < budget.seconds:
        order: list[str] = rng.permutation(["a", "b"]).tolist()
        with start_pair(order) as arms:
            counted = warm_up(arms)
            sample = sample_pair(arms, uncounted, counted, seconds_per_pair)
        samples.append(sample)
        spent += sample.seconds
        ratios = np.asarray([sample.log_ratio for sample in samples])
        decision = decide(ratios, budget.min_effect, budget.alpha)
        on_progress(f"{len(samples)} pairs, {math.expm1(float(ratios.mean())):+.1%}")
    return summarize_pairs(cell, samples, VERDICTS[decision], budget)


def warm_up(arms: Mapping[str, Arm]) -> int:
    """Train all arms until they are warm; return the steps to count in a window.

    That is as many steps of the fastest arm as take `WINDOW_SECONDS`. Both arms train the same
    number of steps, so that their losses can be compared afterwards.
    """
    seconds = dict.fromkeys(arms, 0.0)
    fastest_step = math.inf
    steps = 0
    turns = 0
    while turns < 2 or (min(seconds.values()) < WARM_UP_SECONDS and steps < MAX_WARM_UP_STEPS):
        for key, arm in arms.items():
            turn = arm.train(WARM_UP_STEPS)
            seconds[key] += sum(turn.seconds)
            fastest_step = min(fastest_step, float(np.median(turn.seconds)))
        steps += WARM_UP_STEPS
        turns += 1
    return max(MIN_WINDOW_STEPS, math.ceil(WINDOW_SECONDS / fastest_step))


def sample_pair(
    arms: Mapping[str, Arm], uncounted: int, counted: int, seconds: float
) -> PairSample:
    """Let the arms train windows in turn for so many seconds, `MIN_WINDOWS` at least.

    The `uncounted` steps that a turn begins with belong to no window.
    """
    step_seconds: list[float] = []
    same_bits = True
    spent = 0.0
    while len(step_seconds) < MIN_WINDOWS or spent < seconds:
        losses = set()
        for arm in arms.values():
            turn = arm.train(uncounted + counted)
            window = turn.seconds[uncounted:]
            step_seconds.append(fmean(window))
            spent += sum(window)
            losses.add(turn.losses)
        same_bits = same_bits and len(losses) == 1
    first_arm = next(iter(arms))
    return PairSample(
        step_seconds=np.asarray(step_seconds),
        b_first=first_arm == "b",
        seconds=spent,
        same_bits=same_bits,
    )


def summarize_pairs(
    cell: Cell, samples: Sequence[PairSample], verdict: SpeedVerdict, budget: Budget
) -> PairedResult:
    """Return what all pairs measured together.

    The ratio is the geometric mean over pairs. Its interval is the last one of the confidence
    sequence, which holds however often the samples were looked at.
    """
    ratios = np.asarray([sample.log_ratio for sample in samples])
    lows, highs = confidence_sequence(ratios, budget.alpha)
    windows = sum(len(sample.step_seconds) for sample in samples)
    seconds = sum(sample.seconds for sample in samples)
    return PairedResult(
        verdict=verdict,
        ratio=math.exp(float(ratios.mean())),
        low=_finite_exp(float(lows[-1])),
        high=_finite_exp(float(highs[-1])),
        a_rate=_mean_rate(cell, samples, "a"),
        b_rate=_mean_rate(cell, samples, "b"),
        pairs=len(samples),
        windows=windows,
        seconds=seconds,
        same_bits=all(sample.same_bits for sample in samples),
        log_ratios=ratios.tolist(),
    )


def _mean_rate(cell: Cell, samples: Sequence[PairSample], key: str) -> float:
    """Return an arm's throughput in samples/s, the geometric mean over pairs."""
    log_rates = [sample.log_rate(key) for sample in samples]
    return cell.axes.batch_size * math.exp(fmean(log_rates))


def _finite_exp(bound: float) -> float | None:
    """Return the exponential of a bound, None if the bound is infinite."""
    return math.exp(bound) if math.isfinite(bound) else None
