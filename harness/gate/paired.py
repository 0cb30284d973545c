"""Two revisions measured against each other: pairs of fresh processes, in turn, until it is certain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from harness.gate.arms import Arm, PairStarter
from harness.gate.worktree import Tree
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.statistics.sequential import confidence_sequence, decide, log_ratio

WINDOW = 0.001  # seconds that a window should take at least; the shorter, the more alike are those beside each other
FEWEST = 2  # steps of a window at least, those not counted that its turn begins with
TURNS = 8  # windows of a pair of processes at least
WARM = 0.2  # seconds that each side trains before anything counts
WARM_STEPS, MOST_WARM = 5, 200  # of a turn then, and in all at most
PAIRS = 20  # of processes that a budget is for
SHORTEST = 0.1  # seconds that a pair measures at least, as it takes ten times as long to start
SpeedVerdict = Literal["faster", "slower", "same", "inconclusive"]
VERDICTS: dict[str, SpeedVerdict] = {
    "up": "faster",
    "down": "slower",
    "same": "same",
    "undecided": "inconclusive",
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop. `alpha` is the chance of a false alarm for one cell."""

    min_effect: float  # change of throughput that matters, a fraction
    seconds: float  # of measuring, for one cell
    alpha: float


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """What was found for a cell: B's throughput as a multiple of A's, with an interval that holds at all looks at once.

    `seconds` went into measured windows. `same_bits`: whether all losses were alike. `words` if a side failed.
    """

    verdict: SpeedVerdict = "inconclusive"
    ratio: float | None = None
    low: float | None = None  # None too where little has been measured
    high: float | None = None
    a_rate: float | None = None  # samples/s
    b_rate: float | None = None
    pairs: int = 0  # of processes
    windows: int = 0  # in all of them
    seconds: float = 0.0
    same_bits: bool | None = None
    failure: str | None = None
    log_ratios: Sequence[float] = field(default=(), repr=False)  # one a pair


@dataclass(frozen=True, kw_only=True)
class PairSample:
    """What one pair of processes measured: a step's mean seconds in each window, the two sides in turn, (windows,)."""

    step_seconds: np.ndarray
    b_first: bool
    seconds: float
    same_bits: bool

    @property
    def log_ratio(self) -> float:
        """How much faster B is."""
        return float(log_ratio(self.step_seconds, b_first=self.b_first))

    def log_rate(self, key: str) -> float:
        """The mean log of a side's steps/s."""
        return -float(np.log(self.step_seconds[(key == "b") != self.b_first :: 2]).mean())


def measure(
    cell: Cell,
    seed: int,
    trees: Mapping[str, Tree],
    base: Path,
    profile: Profile,
    budget: Budget,
    rng: np.random.Generator,
    on_progress: Callable[[str], None] = lambda words: None,
) -> PairedResult:
    """The trees `a` and `b` against each other; raises HarnessError if a rank fails."""
    with PairStarter(cell, seed, trees, base, profile) as starter:
        return run_paired(cell, starter.pair, budget, rng, on_progress)


def run_paired(
    cell: Cell,
    pair: Callable[[Sequence[str]], AbstractContextManager[Mapping[str, Arm]]],
    budget: Budget,
    rng: np.random.Generator,
    on_progress: Callable[[str], None] = lambda words: None,
) -> PairedResult:
    """Fresh pairs of processes, one after the other, until the ratio is known well enough or the budget is spent.

    A pair of processes is the unit, however many windows it trains: where a process lies in memory makes it faster or
    slower for as long as it lives, so that windows of one pair are not independent of each other and would be as sure of
    that as of a change. One pair gives one value, the mean log ratio of its windows; nothing is kept between pairs, and
    chance says which side starts first, so that values are independent and of equal sides as likely to be up as down.
    """
    taken: list[PairSample] = []
    decision = "undecided"
    prepared = (
        cell.axes.num_workers * cell.axes.prefetch_factor
    )  # batches, while the other side trained
    cold = max(1, prepared)  # at least one step finds the other side's caches
    while decision == "undecided" and sum(one.seconds for one in taken) < budget.seconds:
        with pair(rng.permutation(["a", "b"]).tolist()) as found:  # who starts and warms up first
            counted = _warm(found)
            taken.append(_sample(found, cold, counted, max(SHORTEST, budget.seconds / PAIRS)))
        ratios = np.asarray([one.log_ratio for one in taken])
        decision = decide(ratios, budget.min_effect, budget.alpha)
        on_progress(f"{len(taken)} pairs, {math.expm1(float(ratios.mean())):+.1%}")
    return _paired(cell, taken, VERDICTS[decision], budget)


def _warm(found: Mapping[str, Arm]) -> int:
    """The steps to count in a window, once all sides are warm: as many of the fastest one as take `WINDOW` seconds."""
    spent = dict.fromkeys(found, 0.0)
    fastest, turns = math.inf, 0
    while turns < 2 or (min(spent.values()) < WARM and turns * WARM_STEPS < MOST_WARM):
        for key, side in found.items():  # all the same steps, so that losses can be compared
            seconds = side.train(WARM_STEPS).seconds
            spent[key] += sum(seconds)
            fastest = min(fastest, float(np.median(seconds)))
        turns += 1
    return max(FEWEST, math.ceil(WINDOW / fastest))


def _sample(found: Mapping[str, Arm], cold: int, counted: int, seconds: float) -> PairSample:
    """Blocks in turn for so long, but `TURNS` at least; the `cold` steps that a turn begins with are not counted."""
    step: list[float] = []
    same_bits, spent = True, 0.0
    while len(step) < TURNS or spent < seconds:
        turns = [side.train(cold + counted) for side in found.values()]
        step += [fmean(turn.seconds[cold:]) for turn in turns]
        same_bits = same_bits and len({turn.losses for turn in turns}) == 1
        spent += sum(sum(turn.seconds[cold:]) for turn in turns)
    return PairSample(
        step_seconds=np.asarray(step),
        b_first=next(iter(found)) == "b",
        seconds=spent,
        same_bits=same_bits,
    )


def _paired(
    cell: Cell, taken: Sequence[PairSample], verdict: SpeedVerdict, budget: Budget
) -> PairedResult:
    ratios = np.asarray([one.log_ratio for one in taken])
    low, high = (float(bounds[-1]) for bounds in confidence_sequence(ratios, budget.alpha))
    a_rate, b_rate = (
        cell.axes.batch_size * math.exp(fmean(one.log_rate(key) for one in taken)) for key in "ab"
    )
    return PairedResult(
        verdict=verdict,
        ratio=math.exp(float(ratios.mean())),
        low=math.exp(low) if math.isfinite(low) else None,
        high=math.exp(high) if math.isfinite(high) else None,
        a_rate=a_rate,
        b_rate=b_rate,
        pairs=len(taken),
        windows=sum(len(one.step_seconds) for one in taken),
        seconds=sum(one.seconds for one in taken),
        same_bits=all(one.same_bits for one in taken),
        log_ratios=[float(value) for value in ratios],
    )
