"""Tells on which side of the middle between two ends a revision lies, by fresh pairs against both.

Against one end, the line between fast and slow would have to be known, and it is only as certain as
the distance of the ends. Against both it need not be: with the log ratio g of the revision's
throughput to that of the good end, and b to that of the bad end, the mean

    d = (g + b) / 2

is the distance from the middle, above 0 for what is nearer to the good end. A commit that makes no
difference lies at an end, half of the whole loss away from the middle, however large that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from harness.gate.paired import (
    Budget,
    PairSample,
    StartPair,
    refuse_misreports,
    sample_pair,
    uncounted_steps,
    warm_up,
)
from harness.spec.cell import Cell
from harness.statistics.sequential import FEWEST_VALUES, confidence_sequence

GOOD, BAD, REVISION = "good", "bad", "revision"  # the keys of the trees


@dataclass(frozen=True, kw_only=True)
class Classification:
    """To which end a revision belongs."""

    is_bad: bool  # whether it is nearer to the bad end
    is_certain: bool  # whether that is certain, or only the likelier of both
    against_good: float  # its throughput over that of the good end
    against_bad: float  # and over that of the bad end
    rounds: int  # of one pair against each end
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
    """Measure a revision against both ends until it is certain to which it belongs.

    If it is not when the budget is spent, the likelier end is returned: a commit in the middle is
    no reason to know nothing of the others. `start_pair` starts arms of the trees GOOD, BAD and
    REVISION. `by_whole_turns`: what is compared are whole turns, not undisturbed steps. Raises
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
        distances = _distances(samples, by_whole_turns=by_whole_turns)
        lows, highs = confidence_sequence(np.asarray(distances), budget.alpha)
        is_certain = len(distances) >= FEWEST_VALUES and bool(lows[-1] > 0 or highs[-1] < 0)
        on_progress(f"{len(distances)} rounds, {math.expm1(fmean(distances)):+.1%} from the middle")
    return Classification(
        is_bad=fmean(distances) < 0,
        is_certain=is_certain,
        against_good=math.exp(fmean(_log_ratios(samples[GOOD], by_whole_turns=by_whole_turns))),
        against_bad=math.exp(fmean(_log_ratios(samples[BAD], by_whole_turns=by_whole_turns))),
        rounds=len(distances),
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


def _distances(samples: Mapping[str, Sequence[PairSample]], *, by_whole_turns: bool) -> list[float]:
    """Return the distance from the middle in each round, on the logarithmic scale."""
    against_good = _log_ratios(samples[GOOD], by_whole_turns=by_whole_turns)
    against_bad = _log_ratios(samples[BAD], by_whole_turns=by_whole_turns)
    return [fmean(both) for both in zip(against_good, against_bad, strict=True)]


def _log_ratios(samples: Sequence[PairSample], *, by_whole_turns: bool) -> list[float]:
    """Return the log ratio of each pair, in whole turns or in undisturbed steps."""
    if by_whole_turns:
        return [sample.whole_log_ratio for sample in samples]
    return [sample.log_ratio for sample in samples]
