"""The questions asked about two cells: throughput over trials, accuracy over seeds, equal bits.

What counts as independent is decided here. Trials that ran interleaved are compared as pairs, which
cancels the drift of the machine; others as two independent groups. Of the target metric seeds are
the unit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis.result import CellResult
from harness.analysis.rows import TrialRow
from harness.statistics.estimate import (
    Estimate,
    between_sessions,
    certain_zero,
    paired,
    unpaired,
    wider,
)
from harness.statistics.verdict import Metric, Question

SPEED = Metric(
    name="samples/s",  # or another unit of throughput
    higher_is_better=True,
    relative=True,
    min_effect=0.01,
    better="faster",
    worse="slower",
)
ACCURACY_MARGIN = 0.01  # in the target metric's unit
ROUNDING = 1e-12  # differences up to it are rounding errors of the same value

TrialPair = tuple[TrialRow, TrialRow]  # of A and of B, with the same seed and repeat


def paired_trials(a: CellResult, b: CellResult) -> list[TrialPair]:
    """Return the trials of both sides that have the same seed and repeat."""
    trials_b = {(trial.seed, trial.repeat): trial for trial in b.trials}
    pairs = []
    for trial_a in a.trials:
        trial_b = trials_b.get((trial_a.seed, trial_a.repeat))
        if trial_b is not None:
            pairs.append((trial_a, trial_b))
    return pairs


def same_bits(pairs: Sequence[TrialPair]) -> int:
    """Return how many pairs of trials ended with the same parameters."""
    return sum(a.parameter_digest == b.parameter_digest for a, b in pairs)


def throughput_question(a: CellResult, b: CellResult, min_effect: float) -> Question | None:
    """Return the question of the log ratio of throughputs, None if one side has none or if their units differ.

    A baseline is compared by its sessions, with the noise of trials where that is larger. Other sides
    are by pairs where they ran interleaved, one pair after the other. Otherwise they are independent.
    `min_effect` is the smallest change that matters, a fraction.
    """
    logs_a, logs_b = a.log_throughputs, b.log_throughputs
    if not logs_a or not logs_b or a.throughput_unit != b.throughput_unit:
        return None
    pairs = _interleaved_pairs(a, b)
    if a.sessions or b.sessions:
        logs_a, logs_b = _session_logs(a), _session_logs(b)
        within = unpaired(a.independent_logs, b.independent_logs)
        estimate = wider(between_sessions(logs_a, logs_b), within)
    elif pairs:
        estimate = paired([math.log(rate_b / rate_a) for rate_a, rate_b in pairs])
        # The means are those of the same trials, so that their ratio is the estimate.
        logs_a = [math.log(rate_a) for rate_a, _ in pairs]
        logs_b = [math.log(rate_b) for _, rate_b in pairs]
    else:
        estimate = unpaired(a.independent_logs, b.independent_logs)
    metric = replace(SPEED, name=b.throughput_unit, min_effect=min_effect)
    return Question(
        metric=metric,
        estimate=estimate,
        mean_a=math.exp(fmean(logs_a)),
        mean_b=math.exp(fmean(logs_b)),
    )


def _session_logs(side: CellResult) -> list[float]:
    """Return the log throughput of each session of a side; what is no baseline is one session."""
    if not side.sessions:
        return [fmean(side.independent_logs)]
    return [math.log(session.throughput) for session in side.sessions]


def _interleaved_pairs(a: CellResult, b: CellResult) -> list[tuple[float, float]]:
    """Return the throughputs of A and B of each measured pair, empty unless they ran interleaved.

    That takes two pairs or more on the same hardware.
    """
    if set(a.hardware) != set(b.hardware):
        return []
    pairs, throughputs = [], []
    for trial_a, trial_b in paired_trials(a, b):
        if trial_a.throughput and trial_b.throughput:
            pairs.append((trial_a, trial_b))
            throughputs.append((trial_a.throughput, trial_b.throughput))
    if len(pairs) < 2 or not _are_interleaved(pairs):
        return []
    return throughputs


def _are_interleaved(pairs: Sequence[TrialPair]) -> bool:
    """Return whether two cells were measured in turn, both trials of each pair on the same nodes.

    Blocks may run on several nodes at once, so the order of the trials counts node by node. There,
    one pair is in no order with others: then each cell must have begun before the other was done.
    """
    lane_counts = {trial.lanes for pair in pairs for trial in pair}
    if len(lane_counts) > 1:
        return False
    (lanes,) = lane_counts
    by_nodes: dict[frozenset[str], list[TrialPair]] = {}
    for a, b in pairs:
        if not _ran_on_same_nodes(a, b):
            return False
        nodes = frozenset([*a.hosts, *b.hosts])
        by_nodes.setdefault(nodes, []).append((a, b))
    if not all(_are_in_turn(pairs_of_nodes, lanes) for pairs_of_nodes in by_nodes.values()):
        return False
    if lanes == 1 and len(by_nodes) == 1:
        return True
    starts_a, starts_b = [a.started for a, _ in pairs], [b.started for _, b in pairs]
    return max(starts_a) > min(starts_b) and max(starts_b) > min(starts_a)


def _ran_on_same_nodes(a: TrialRow, b: TrialRow) -> bool:
    """Return whether the nodes of one trial were also those of the other, which may have had more.

    Where they are unknown, trials of the same sweep count as if they were.
    """
    if not a.hosts or not b.hosts:
        return a.sweep == b.sweep
    nodes_a, nodes_b = set(a.hosts), set(b.hosts)
    return nodes_a <= nodes_b or nodes_b <= nodes_a


def _are_in_turn(pairs: Sequence[TrialPair], lanes: int) -> bool:
    """Return whether the trials of some nodes began pair by pair.

    Trials that ran alone did where both of a pair began before any of the next pair. Of trials that ran
    side by side, those of the next blocks may begin before one that has to run again: then that holds for
    pairs `distance` blocks apart.
    """
    distance = 1 if lanes == 1 else 2 * lanes
    starts = sorted(sorted((a.started, b.started)) for a, b in pairs)
    for (_, last_start), (later_start, _) in zip(starts, starts[distance:], strict=False):
        if last_start > later_start:
            return False
    return True


def metric_question(a: CellResult, b: CellResult, margin: float) -> Question | None:
    """Return the question of the target metric over seeds, each seed the mean of its repeats.

    `margin` is the smallest difference that matters, in the metric's unit. The means are over the
    seeds that both sides have, as far as there are any. None if the sides have no metric in common.
    """
    seeds_a, seeds_b = a.metric_by_seed, b.metric_by_seed
    if a.target is None or a.target != b.target or not seeds_a or not seeds_b:
        return None
    common = [seed for seed in seeds_a if seed in seeds_b]
    name = a.target.name
    metric = Metric(
        name=name,
        higher_is_better=a.target.higher_is_better,
        relative=False,
        min_effect=margin,
        better=f"better {name}",
        worse=f"worse {name}",
    )
    return Question(
        metric=metric,
        estimate=_metric_estimate(a, b, common),
        mean_a=fmean(seeds_a[seed] for seed in common or seeds_a),
        mean_b=fmean(seeds_b[seed] for seed in common or seeds_b),
    )


def _metric_estimate(a: CellResult, b: CellResult, common: Sequence[int]) -> Estimate:
    """Return the estimated difference of the target metric, by pairs of the seeds in common if any."""
    if are_identical(a, b):
        return certain_zero(len(a.trials))
    seeds_a, seeds_b = a.metric_by_seed, b.metric_by_seed
    if common:
        estimate = paired([seeds_b[seed] - seeds_a[seed] for seed in common])
    else:
        estimate = unpaired(list(seeds_a.values()), list(seeds_b.values()))
    # The step by which a metric moves that is counted over test samples; None if unknown.
    counts = [trial.test_samples for trial in (*a.trials, *b.trials)]
    known_counts = [count for count in counts if count]
    resolution = 1 / min(known_counts) if len(known_counts) == len(counts) else None
    values = [*seeds_a.values(), *seeds_b.values()]
    return with_smallest_step(estimate, values, resolution)


def are_identical(a: CellResult, b: CellResult) -> bool:
    """Return whether all trials of both sides are pairs that ended with the same bits and metric.

    Their accuracy is the same then, however few seeds there are. The metric is compared too,
    because the same parameters may have been evaluated otherwise.
    """
    pairs = paired_trials(a, b)
    if not pairs or not len(pairs) == len(a.trials) == len(b.trials):
        return False
    for trial_a, trial_b in pairs:
        if trial_a.metric != trial_b.metric:
            return False
    return same_bits(pairs) == len(pairs)


def with_smallest_step(
    estimate: Estimate, values: Sequence[float], resolution: float | None = None
) -> Estimate:
    """Return the estimate with a standard error of at least the smallest step between the values.

    A metric counted over samples moves in steps, and a few seeds that moved by the same step do not
    make its effect certain. Equal values show no step: then it is `resolution`, and without that the
    error is unknown.
    """
    if estimate.standard_error is None:
        return estimate
    steps = []
    for value, next_value in itertools.pairwise(sorted(set(values))):
        if next_value - value > ROUNDING:
            steps.append(next_value - value)
    step = min(steps, default=resolution)
    if step is None:
        return replace(estimate, standard_error=None)
    smallest_error = step / math.sqrt(estimate.count)
    return replace(estimate, standard_error=max(estimate.standard_error, smallest_error))
