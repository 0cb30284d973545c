"""Measures two revisions against each other in pairs of fresh processes that train in turn, until
the result is certain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean, geometric_mean

import numpy as np

from harness.core.progress import report_progress
from harness.core.text import counted
from harness.core.worktree import Tree
from harness.gate.arms import ArmTurn, TrainingArm
from harness.gate.pairs import pair_starter
from harness.statistics.sequential import (
    Numbers,
    SpeedVerdict,
    confidence_sequence,
    decide,
    log_ratio,
)
from harness.sweep.cell import Cell, ThroughputUnit
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

# The shortest window in seconds. The caches are warm again after about ten steps, and the shorter
# windows are, the more alike are the conditions of neighboring ones.
WINDOW_SECONDS = 0.01
MIN_WINDOW_STEPS = 2  # after the uncounted steps at the start of its turn
MAX_WINDOW_STEPS = 500  # however short the steps are that a rank reports
MIN_WINDOWS = 8  # of a pair of arms
WARM_UP_SECONDS = 0.2  # of training by each arm before anything counts
WARM_UP_STEPS = 5  # of one turn
MAX_WARM_UP_TURNS = 40  # of each arm
PAIRS_PER_BUDGET = 30  # how many pairs of arms a budget is divided into
MIN_PAIR_SECONDS = 0.1  # of measuring; a pair takes ten times as long to start

# Arms are compared by this quantile of their step times. Disturbances of the machine only make steps
# slower, so the fastest steps say most about the code.
FAST_SHARE = 0.05
# The slowdown of whole turns that must be ruled out before a cell passes, or `min_effect` if that is
# larger: fast steps say nothing about occasional slow ones.
WHOLE_MARGIN = 0.05
WHOLE_ALPHA = 0.2  # the part of the allowed error that goes to losses that whole turns show
FAST_ALPHA = 1 - WHOLE_ALPHA  # and to those that undisturbed steps show
SHORTEST_TURN = 0.1  # of what its steps usually take
LARGEST_LOG_RATIO = 100.0  # of a bound; a larger one says nothing

# Starts the arms with the given keys, in their order, for as long as the context lasts.
StartPair = Callable[[Sequence[str]], AbstractContextManager[Mapping[str, TrainingArm]]]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop measuring a cell: once the verdict is certain, or when the time is spent.

    The question is whether B is slower by `min_effect` or more. Measuring ends as soon as so large a
    slowdown is excluded, or any is certain; see `sequential.signs`. `alpha` bounds the chance that
    equal arms are called different after any of the pairs.
    """

    min_effect: float  # smallest change of throughput that matters, a fraction
    seconds: float  # of measuring
    alpha: float  # chance of a false alarm
    # The share of an estimated loss that must be certain before measuring ends. Measuring that stops
    # at the first certain loss overestimates it; with a share above 0 its size is known.
    certain_share: float = 0.0

    @property
    def seconds_per_pair(self) -> float:
        """Return how long each pair of arms is measured."""
        return max(MIN_PAIR_SECONDS, self.seconds / PAIRS_PER_BUDGET)


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """How fast arm B trains a cell, as a multiple of arm A's throughput.

    All numbers are of undisturbed steps, or of whole turns where the verdict rests on these.
    """

    verdict: SpeedVerdict = "inconclusive"
    by_whole_turns: bool = False
    ratio: float | None = None  # throughput of B over that of A
    # The interval of the ratio, which holds after all pairs at once; None for an unknown bound.
    low: float | None = None
    high: float | None = None
    unit: ThroughputUnit = "samples/s"  # of the rates
    a_rate: float | None = None
    b_rate: float | None = None
    pairs: int = 0  # of processes
    seconds: float = 0.0  # in the turns
    wall_seconds: float = 0.0  # with starting the processes
    same_bits: bool | None = None  # whether both arms computed the same losses
    failure: str | None = None  # why it could not be measured


@dataclass(frozen=True, kw_only=True)
class PairSample:
    """The measurements of one pair of arms, in two ways.

    Undisturbed steps are precise on a busy machine, but they are self-reported by the code that is
    measured, and leave occasional slow steps out. Whole turns are timed by the gate and leave nothing
    out, but are as noisy as the machine.
    """

    # Seconds a sample that `FAST_SHARE` of an arm's counted steps do not exceed. Per sample, because
    # the workload's default batch size may differ between the arms.
    a_fast_seconds: float
    b_fast_seconds: float
    # Mean seconds a sample in each turn by the gate's clock, the arms in turn, (windows,).
    turn_seconds: Numbers
    b_first: bool  # whether the first window is B's
    seconds: float  # in all turns, by the gate's clock
    same_bits: bool
    unit: ThroughputUnit = "samples/s"  # steps/s where a step counts as one sample

    @property
    def log_ratio(self) -> float:
        """Return the logarithm of B's throughput over A's in undisturbed steps."""
        return math.log(self.a_fast_seconds / self.b_fast_seconds)

    @property
    def whole_log_ratio(self) -> float:
        """Return the logarithm of B's throughput over A's in whole turns.

        Every window is compared with its neighbors, so a drift of the machine cancels: see
        `sequential.log_ratio`.
        """
        return float(log_ratio(self.turn_seconds, b_first=self.b_first))

    @property
    def whole_seconds(self) -> tuple[float, float]:
        """Return the mean seconds a sample in whole turns of A and of B."""
        first = fmean(self.turn_seconds[::2])
        second = fmean(self.turn_seconds[1::2])
        return (second, first) if self.b_first else (first, second)


def measure(
    sweep: Sweep,
    cell: Cell,
    trees: Mapping[str, Tree],
    profile: Profile,
    budget: Budget,
) -> PairedResult:
    """Measure the throughput of a sweep's cell in tree `b` as a multiple of that in tree `a`.

    Raises HarnessError if a rank fails.
    """
    rng = np.random.default_rng()
    with pair_starter(sweep, cell, trees, profile) as starter:
        return run_paired(cell, starter.pair, budget, rng)


def run_paired(
    cell: Cell,
    start_pair: StartPair,
    budget: Budget,
    rng: np.random.Generator,
) -> PairedResult:
    """Measure fresh pairs of arms one after the other until the ratio is certain or the budget is
    spent; `rng` draws which arm starts first.

    The unit is a pair of arms, however many windows it trains: the memory layout of a process makes
    it faster or slower for its whole life, so windows of one pair are not independent, and would
    show a difference of layout as if it were a change. One pair gives one value, the mean log ratio
    of its windows. Nothing is kept between pairs, and the arm that starts first is drawn at random.
    So values are independent, and for equal arms symmetric about 0.
    """
    samples: list[PairSample] = []
    is_done = False
    uncounted = uncounted_steps(cell)
    spent = 0.0
    start = time.monotonic()
    while not is_done and spent < budget.seconds:
        order: list[str] = rng.permutation(["a", "b"]).tolist()
        with start_pair(order) as arms:
            counted_steps = warm_up(arms)
            sample = sample_pair(arms, uncounted, counted_steps, budget.seconds_per_pair)
        samples.append(sample)
        spent += sample.seconds
        verdict, _ = judge_pairs(samples, budget)
        is_done = verdict != "inconclusive"
        if verdict == "slower":
            is_done = is_precise(samples, budget)
        ratio = fmean(sample.log_ratio for sample in samples)
        report_progress(f"{counted(len(samples), 'pair')}, {math.expm1(ratio):+.1%}")
    return summarize_pairs(samples, budget, time.monotonic() - start)


def uncounted_steps(cell: Cell) -> int:
    """Return how many steps at the start of a turn are not counted.

    The first steps of a turn use batches that loader workers prepared in the arm's last turn, and
    at least one step finds the other arm's data in the caches.
    """
    prepared = cell.axes.num_workers * cell.axes.loader_prefetch_factor
    return max(1, prepared)


def is_precise(samples: Sequence[PairSample], budget: Budget) -> bool:
    """Return whether a loss is measured as precisely as the budget requires."""
    fast, whole = _log_ratios(samples)
    measurements = [(fast, FAST_ALPHA), (whole, WHOLE_ALPHA)]
    for log_ratios, share in measurements:
        _, highs = confidence_sequence(log_ratios, share * budget.alpha)
        certain_loss = budget.certain_share * log_ratios.mean()
        if highs[-1] < 0 and highs[-1] <= certain_loss:
            return True
    return budget.certain_share == 0


def judge_pairs(samples: Sequence[PairSample], budget: Budget) -> tuple[SpeedVerdict, bool]:
    """Return the verdict of both measurements together, and whether it rests on the whole turns.

    It is slower if either of them shows it, so they share the allowed error. Any other verdict is that
    of the undisturbed steps, if the whole turns are certain not to be slower by `WHOLE_MARGIN`: a pass
    needs both, so the whole turns may be wrong about it as often as both together about a loss.
    """
    fast, whole = _log_ratios(samples)
    alpha_of_steps = FAST_ALPHA * budget.alpha
    alpha_of_turns = WHOLE_ALPHA * budget.alpha
    by_steps = decide(fast, budget.min_effect, alpha_of_steps, one_sided=True)
    by_turns = decide(whole, budget.min_effect, alpha_of_turns)
    lows, _ = confidence_sequence(whole, budget.alpha)
    largest_slowdown = max(WHOLE_MARGIN, budget.min_effect)
    verdict = by_steps
    if "slower" in (by_steps, by_turns):
        verdict = "slower"
    elif lows[-1] < math.log1p(-largest_slowdown):
        verdict = "inconclusive"
    return verdict, verdict != by_steps


def _log_ratios(samples: Sequence[PairSample]) -> tuple[Numbers, Numbers]:
    """Return the log ratios of undisturbed steps and of whole turns, each (pairs,)."""
    fast = np.asarray([sample.log_ratio for sample in samples])
    whole = np.asarray([sample.whole_log_ratio for sample in samples])
    return fast, whole


def warm_up(arms: Mapping[str, TrainingArm]) -> int:
    """Train all arms until they are warm; return the steps to count in a window.

    A window takes `WINDOW_SECONDS` in the arm that reports the longer steps: an arm that reports
    shorter steps than it has does not make windows longer. Both arms train the same number of
    steps, so that their losses can be compared.
    """
    seconds = dict.fromkeys(arms, 0.0)
    fastest_steps = dict.fromkeys(arms, math.inf)
    for earlier_turns in range(MAX_WARM_UP_TURNS):
        for key, arm in arms.items():
            turn = arm.train(WARM_UP_STEPS)
            seconds[key] += turn.wall_seconds
            median_step = float(np.median(turn.seconds))
            fastest_steps[key] = min(fastest_steps[key], median_step)
        are_warm = min(seconds.values()) >= WARM_UP_SECONDS
        if are_warm and earlier_turns:
            break
    steps_of_window = math.ceil(WINDOW_SECONDS / max(fastest_steps.values()))
    return min(MAX_WINDOW_STEPS, max(MIN_WINDOW_STEPS, steps_of_window))


def sample_pair(
    arms: Mapping[str, TrainingArm],
    uncounted: int,
    counted: int,
    seconds: float,
) -> PairSample:
    """Train windows of both arms in turn for `seconds`, but at least `MIN_WINDOWS`."""
    turns: dict[str, list[ArmTurn]] = {key: [] for key in arms}
    windows = 0
    same_bits = True
    spent = 0.0
    while windows < MIN_WINDOWS or spent < seconds:
        losses = set()
        for key, arm in arms.items():
            turn = arm.train(uncounted + counted)
            turns[key].append(turn)
            losses.add(turn.losses)
            windows += 1
            spent += turn.wall_seconds
        same_bits = same_bits and len(losses) == 1
    batch_sizes = [arm.batch_size for arm in arms.values()]
    step_seconds = turn_step_seconds(list(turns.values()), uncounted)
    turn_batch_sizes = np.resize(batch_sizes, len(step_seconds))  # arms take turns
    return PairSample(
        a_fast_seconds=fast_step(turns["a"], uncounted) / arms["a"].batch_size,
        b_fast_seconds=fast_step(turns["b"], uncounted) / arms["b"].batch_size,
        turn_seconds=step_seconds / turn_batch_sizes,
        b_first=next(iter(arms)) == "b",
        seconds=spent,
        same_bits=same_bits,
        unit=arms["a"].unit,
    )


def fast_step(turns: Sequence[ArmTurn], uncounted: int) -> float:
    """Return the seconds that `FAST_SHARE` of an arm's counted steps do not exceed."""
    return float(np.quantile(_counted_steps(turns, uncounted), FAST_SHARE))


def _counted_steps(turns: Sequence[ArmTurn], uncounted: int) -> Numbers:
    """Return the seconds of an arm's counted steps, (steps,); a turn of a script may have one more."""
    return np.concatenate([turn.seconds[uncounted:] for turn in turns])


def turn_step_seconds(turns: Sequence[Sequence[ArmTurn]], uncounted: int) -> Numbers:
    """Return the mean seconds of a step in each turn, in the order of training, (windows,).

    `turns` are those of each arm. The time is that of the whole turn by the gate's clock, minus the
    overhead of a turn, so everything that an arm does in its turn counts. The overhead is the same for
    both arms: the mean over arms of the time that a usual turn takes in addition to its usual steps.
    Only this uses the clocks of the ranks: an arm that reports shorter steps than it has looks slower.
    """
    needed = []
    counts = []  # of steps
    costs = []
    usual_steps = []
    for of_arm in turns:
        seconds = np.asarray([turn.wall_seconds for turn in of_arm])
        steps = np.asarray([len(turn.seconds) for turn in of_arm])
        usual_step = float(np.median(_counted_steps(of_arm, uncounted)))
        overhead = float(np.median(seconds - steps * usual_step))
        needed.append(seconds)
        counts.append(steps)
        usual_steps.append(usual_step)
        costs.append(max(0.0, overhead))
    in_order = np.stack(needed, axis=1).ravel()
    steps_in_order = np.stack(counts, axis=1).ravel()
    # The overhead of an arm whose reports leave time out is no time of the other one's turns.
    floor = SHORTEST_TURN * steps_in_order * min(usual_steps)
    net_seconds = np.maximum(in_order - fmean(costs), floor)
    step_seconds: Numbers = net_seconds / steps_in_order
    return step_seconds


def summarize_pairs(
    samples: Sequence[PairSample], budget: Budget, wall_seconds: float
) -> PairedResult:
    """Return the result of all pairs together.

    The ratio is the geometric mean over pairs. Its interval is the last one of the confidence
    sequence, which holds although the samples were judged after every pair.
    """
    verdict, by_whole_turns = judge_pairs(samples, budget)
    fast, whole = _log_ratios(samples)
    if by_whole_turns:
        log_ratios, share = whole, WHOLE_ALPHA
        seconds = [sample.whole_seconds for sample in samples]
    else:
        log_ratios, share = fast, FAST_ALPHA
        seconds = [(sample.a_fast_seconds, sample.b_fast_seconds) for sample in samples]
    lows, highs = confidence_sequence(log_ratios, share * budget.alpha)
    a_seconds, b_seconds = zip(*seconds, strict=True)
    return PairedResult(
        verdict=verdict,
        by_whole_turns=by_whole_turns,
        ratio=math.exp(float(log_ratios.mean())),
        low=_ratio_bound(lows),
        high=_ratio_bound(highs),
        unit=samples[0].unit,
        a_rate=1 / geometric_mean(a_seconds),
        b_rate=1 / geometric_mean(b_seconds),
        pairs=len(samples),
        seconds=sum(sample.seconds for sample in samples),
        wall_seconds=wall_seconds,
        same_bits=all(sample.same_bits for sample in samples),
    )


def _ratio_bound(log_bounds: Numbers) -> float | None:
    """Return the bound of the ratio after the last pair, None if it says nothing."""
    bound = float(log_bounds[-1])
    if abs(bound) >= LARGEST_LOG_RATIO:
        return None
    return math.exp(bound)
