"""What is asked of two cells: throughput over their trials, accuracy over their seeds, and whether the bits are the
same."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.analysis.result import CellResult, TrialResult
from harness.statistics.estimate import Drift, Estimate, paired, unpaired
from harness.statistics.trials import independent_values
from harness.statistics.verdict import Metric, Question

SPEED = Metric(
    name="samples/s",
    higher_is_better=True,
    relative=True,
    min_effect=0.01,
    better="faster",
    worse="slower",
)
ACCURACY_MARGIN = 0.01
ROUNDING = 1e-12  # between values that are the same step of a metric


@dataclass(frozen=True, kw_only=True)
class MetricDifference:
    """A question, and the means of both sides as people read them; geometric ones of throughputs."""

    question: Question
    mean_a: float
    mean_b: float


def pairs(a: CellResult, b: CellResult) -> list[tuple[TrialResult, TrialResult]]:
    """Trials of the same seed and repeat."""
    theirs = {(one.seed, one.repeat): one for one in b.trials}
    return [
        (one, theirs[one.seed, one.repeat]) for one in a.trials if (one.seed, one.repeat) in theirs
    ]


def same_bits(a: CellResult, b: CellResult) -> int:
    """How many pairs ended with the same parameters."""
    return sum(one.parameter_digest == other.parameter_digest for one, other in pairs(a, b))


def _speeds(cell: CellResult) -> list[float]:
    """The logarithms of what throughputs' interval is made of, where no pairs take off what a seed brings."""
    measured = [one for one in cell.trials if one.throughput]
    return independent_values(
        [math.log(one.throughput or 1) for one in measured], [one.seed for one in measured]
    )


def hardware_keys(cell: CellResult) -> Sequence[str]:
    """The keys of all that it was measured on."""
    return cell.conditions.get("hardware", [])


def drifts(sides: Sequence[CellResult], known: Mapping[str, Drift]) -> list[Drift]:
    """How much the difference of two sides' log throughputs moves with the times of measuring; none where that is not
    known of both. Sides of one hardware move independently, but by a deviation that was estimated once."""
    kinds = [hardware_keys(side) for side in sides]
    if not all(kinds) or any(kind not in known for own in kinds for kind in own):
        return []
    worst = Counter(max(own, key=lambda kind: known[kind].deviation) for own in kinds)
    return [
        Drift(
            deviation=math.sqrt(count) * known[kind].deviation,
            degrees_of_freedom=known[kind].degrees_of_freedom,
        )
        for kind, count in worst.items()
    ]


def speed(
    a: CellResult, b: CellResult, min_effect: float, known: Mapping[str, Drift]
) -> MetricDifference | None:
    """Of the log ratio of throughputs; None if a side has none. By pairs where they ran interleaved, one pair after
    the other; otherwise the two sides are independent, and differ by what is `known` of their hardware's drift too."""
    ours, theirs = a.log_throughputs, b.log_throughputs
    if not ours or not theirs:
        return None
    measured = [(one, other) for one, other in pairs(a, b) if one.throughput and other.throughput]
    if hardware_keys(a) == hardware_keys(b) and _interleaved(measured):
        estimate = paired(
            [math.log((other.throughput or 0) / (one.throughput or 1)) for one, other in measured]
        )
    else:
        estimate = unpaired(_speeds(a), _speeds(b), drifts((a, b), known))
    metric = replace(SPEED, min_effect=min_effect)
    question = Question(metric=metric, estimate=estimate)
    return MetricDifference(
        question=question, mean_a=math.exp(fmean(ours)), mean_b=math.exp(fmean(theirs))
    )


def _interleaved(measured: Sequence[tuple[TrialResult, TrialResult]]) -> bool:
    """Whether both trials of a pair began before any of the next one did."""
    begun = sorted(sorted(one.started for one in pair) for pair in measured)
    return len(begun) > 1 and all(
        last <= first for (_, last), (first, _) in itertools.pairwise(begun)
    )


def accuracy(a: CellResult, b: CellResult, margin: float) -> MetricDifference | None:
    """Of the difference over seeds, each the mean of its repeats; None if the sides have no metric in common. What
    ended with the same bits has the same accuracy, however few seeds there are."""
    ours, theirs = a.metric_by_seed, b.metric_by_seed
    if a.target is None or a.target != b.target or not ours or not theirs:
        return None
    common = [seed for seed in ours if seed in theirs]
    whole = pairs(a, b)
    alike = all(one.metric == other.metric for one, other in whole)  # or it was evaluated otherwise
    if whole and alike and same_bits(a, b) == len(whole) == len(a.trials) == len(b.trials):
        estimate = Estimate(
            value=0.0, standard_error=0.0, degrees_of_freedom=1, count=len(whole), paired=True
        )
    elif common:
        estimate = _on_a_grid(paired([theirs[seed] - ours[seed] for seed in common]), ours, theirs)
    else:
        estimate = _on_a_grid(unpaired(list(ours.values()), list(theirs.values())), ours, theirs)
    name = a.target.name
    metric = Metric(
        name=name,
        higher_is_better=a.target.higher_is_better,
        relative=False,
        min_effect=margin,
        better=f"better {name}",
        worse=f"worse {name}",
    )
    means = [fmean(side[seed] for seed in common or side) for side in (ours, theirs)]
    return MetricDifference(
        question=Question(metric=metric, estimate=estimate), mean_a=means[0], mean_b=means[1]
    )


def _on_a_grid(estimate: Estimate, *sides: Mapping[int, float]) -> Estimate:
    """With an error of at least the min_effect step seen: a metric counted over samples moves in steps, and a few seeds
    that moved by the same one do not make its effect certain."""
    values = sorted({value for side in sides for value in side.values()})
    steps = [other - one for one, other in itertools.pairwise(values) if other - one > ROUNDING]
    if not steps or estimate.standard_error is None:
        return estimate
    return replace(
        estimate,
        standard_error=max(estimate.standard_error, min(steps) / math.sqrt(estimate.count)),
    )
