"""The questions asked about two cells: throughput over trials, accuracy and convergence over seeds.

What counts as independent is decided here. Trials that ran interleaved are compared as pairs, which
cancels the drift of the machine; others as two independent groups. Of the target metric seeds are
the unit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis.result import CellResult, TrialRow, mean_over_seeds
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
STEPS = Metric(
    name="steps to a goal",
    higher_is_better=False,
    relative=True,
    min_effect=0.1,
    better="converges faster",
    worse="converges slower",
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
        between = between_sessions(logs_a, logs_b)
        within = unpaired(a.independent_logs, b.independent_logs)
        estimate = wider(between, within)
    elif pairs:
        log_ratios = [math.log(rate_b / rate_a) for rate_a, rate_b in pairs]
        estimate = paired(log_ratios)
        # The means are those of the same trials, so that their ratio is the estimate.
        rates_a, rates_b = zip(*pairs, strict=True)
        logs_a = list(map(math.log, rates_a))
        logs_b = list(map(math.log, rates_b))
    else:
        estimate = unpaired(a.independent_logs, b.independent_logs)
    return Question(
        metric=replace(SPEED, name=b.throughput_unit, min_effect=min_effect),
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
    pairs, throughputs = [], []
    for trial_a, trial_b in paired_trials(a, b):
        if trial_a.throughput and trial_b.throughput:
            pairs.append((trial_a, trial_b))
            throughputs.append((trial_a.throughput, trial_b.throughput))
    has_same_hardware = set(a.hardware) == set(b.hardware)
    if len(pairs) < 2 or not has_same_hardware:
        return []
    if not _are_interleaved(pairs):
        return []
    return throughputs


def _are_interleaved(pairs: Sequence[TrialPair]) -> bool:
    """Return whether two cells were measured in turn, both trials of each pair on the same nodes.

    Blocks may run on several nodes at once, so the order of the trials counts node by node. There,
    one pair is in no order with others: so each cell must also have begun before the other was done.
    """
    lanes = pairs[0][0].lanes
    by_nodes: dict[frozenset[str], list[TrialPair]] = {}
    starts_a, starts_b = [], []
    for a, b in pairs:
        has_same_lanes = a.lanes == b.lanes == lanes
        if not has_same_lanes or not _ran_on_same_nodes(a, b):
            return False
        nodes = frozenset([*a.hosts, *b.hosts])
        by_nodes.setdefault(nodes, []).append((a, b))
        starts_a.append(a.started)
        starts_b.append(b.started)
    for of_nodes in by_nodes.values():
        if not _are_in_turn(of_nodes, lanes):
            return False
    a_came_before_b = max(starts_a) < min(starts_b)
    b_came_before_a = max(starts_b) < min(starts_a)
    return not a_came_before_b and not b_came_before_a


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
    starts = []
    for a, b in pairs:
        starts.append(sorted((a.started, b.started)))
    starts.sort()
    pairs_apart = zip(starts, starts[distance:], strict=False)
    return all(max(earlier) <= min(later) for earlier, later in pairs_apart)


def metric_question(a: CellResult, b: CellResult, margin: float) -> Question | None:
    """Return the question of the target metric over seeds, each seed the mean of its repeats.

    `margin` is the smallest difference that matters, in the metric's unit. The means are over the
    seeds that both sides have, as far as there are any. None if the sides have no metric in common.
    """
    seeds_a, seeds_b = a.metric_by_seed, b.metric_by_seed
    if a.target is None or a.target != b.target:
        return None
    if not seeds_a or not seeds_b:
        return None
    name = a.target.name
    common = seeds_a.keys() & seeds_b.keys()
    return Question(
        metric=Metric(
            name=name,
            higher_is_better=a.target.higher_is_better,
            relative=False,
            min_effect=margin,
            better=f"better {name}",
            worse=f"worse {name}",
        ),
        estimate=_estimate_over_seeds(a, b, seeds_a, seeds_b, _resolution(a, b)),
        mean_a=_mean(seeds_a, common or seeds_a),
        mean_b=_mean(seeds_b, common or seeds_b),
    )


def _resolution(a: CellResult, b: CellResult) -> float | None:
    """Return the step by which a metric moves that is counted over test samples, None if unknown."""
    counts = []
    for trial in (*a.trials, *b.trials):
        if not trial.test_samples:
            return None
        counts.append(trial.test_samples)
    return 1 / min(counts)


def steps_question(a: CellResult, b: CellResult, goal: float) -> Question | str:
    """Return the question of the log ratio of steps to a goal, over the seeds in common in pairs.

    Where it can't be asked, return why. A seed that never reached the goal has a lower bound only: to
    leave it out would compare the lucky seeds. One that had reached it before its first step has no ratio
    to others. Steps are known to the next evaluation only, so that their spread is at least the smallest
    step; if all reached the goal at the same evaluation, nothing is known of it.
    """
    if a.target is None or a.target != b.target:
        return "no target metric that both sides have"
    name = f"steps to {a.target.name} {goal:g}"
    steps_a, steps_b = steps_by_seed(a, goal), steps_by_seed(b, goal)
    common = steps_a.keys() & steps_b.keys()
    if not common:
        return f"{name}: no seed that both sides have evaluated; a baseline keeps no evaluations"
    for letter, steps in (("A", steps_a), ("B", steps_b)):
        for seed, count in steps.items():
            if math.isinf(count):
                return f"{name}: seed {seed} of {letter} never reached it, or had before the first step"
    logs_a = {seed: math.log(steps) for seed, steps in steps_a.items()}
    logs_b = {seed: math.log(steps) for seed, steps in steps_b.items()}
    return Question(
        metric=replace(STEPS, name=name),
        estimate=_estimate_over_seeds(a, b, logs_a, logs_b),
        mean_a=math.exp(_mean(logs_a, common)),
        mean_b=math.exp(_mean(logs_b, common)),
    )


def _mean(values: Mapping[int, float], seeds: Iterable[int]) -> float:
    """Return the mean of the values of some seeds."""
    return fmean(map(values.__getitem__, seeds))


def steps_by_seed(cell: CellResult, goal: float) -> dict[int, float]:
    """Return the steps until the goal by seed, in the mean of its repeats.

    Steps are those of the first evaluation that shows it; infinite where a repeat has none, or had
    reached it before its first step. Trials without evaluations are left out.
    """
    return mean_over_seeds(cell.trials, lambda trial: _steps_to(trial, goal))


def _steps_to(trial: TrialRow, goal: float) -> float | None:
    """Return the steps after which a trial reached a goal, None without evaluations."""
    if trial.target is None or not trial.improvements:
        return None
    goal_score = trial.target.score(goal)
    for point in trial.improvements:
        if trial.target.score(point.value) >= goal_score:
            return point.step or math.inf
    return math.inf


def _estimate_over_seeds(
    a: CellResult,
    b: CellResult,
    values_a: Mapping[int, float],
    values_b: Mapping[int, float],
    resolution: float | None = None,
) -> Estimate:
    """Return the estimated difference of values by seed, by pairs of the seeds in common if any.

    Trials that are identical do not differ, however few seeds there are.
    """
    if are_identical(a, b):
        return certain_zero(len(a.trials))
    differences = []
    for seed, value in values_a.items():
        if seed in values_b:
            differences.append(values_b[seed] - value)
    all_a = list(values_a.values())
    all_b = list(values_b.values())
    estimate = paired(differences) if differences else unpaired(all_a, all_b)
    return with_smallest_step(estimate, [*all_a, *all_b], resolution)


def are_identical(a: CellResult, b: CellResult) -> bool:
    """Return whether all trials of both sides are pairs that ended with the same bits and metric.

    The metric is compared too, because the same parameters may have been evaluated otherwise.
    """
    pairs = paired_trials(a, b)
    all_are_paired = len(pairs) == len(a.trials) == len(b.trials)
    if not pairs or not all_are_paired:
        return False
    if same_bits(pairs) < len(pairs):
        return False
    return all(trial_a.metric == trial_b.metric for trial_a, trial_b in pairs)


def with_smallest_step(
    estimate: Estimate,
    values: Sequence[float],
    resolution: float | None = None,
) -> Estimate:
    """Return the estimate with a standard error of at least the smallest step between the values.

    A metric counted over samples moves in steps, and a few seeds that moved by the same step do not
    make its effect certain. Equal values show no step: then it is `resolution`, and without that the
    error is unknown.
    """
    if estimate.standard_error is None:
        return estimate
    steps = []
    for low, high in itertools.pairwise(sorted(values)):
        if high - low > ROUNDING:
            steps.append(high - low)
    step = min(steps, default=resolution)
    if step is None:
        return replace(estimate, standard_error=None)
    smallest_error = step / math.sqrt(estimate.count)
    error = max(estimate.standard_error, smallest_error)
    return replace(estimate, standard_error=error)
