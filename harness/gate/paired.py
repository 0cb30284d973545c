"""Measures two revisions against each other in pairs of fresh processes that train in turn, until
the result is certain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.core.errors import HarnessError
from harness.core.text import counted
from harness.core.worktree import Tree
from harness.gate.arms import ArmTurn, TrainingArm, milliseconds
from harness.gate.pairs import PairStarter
from harness.spec.cell import Cell, ThroughputUnit
from harness.spec.cluster import Profile
from harness.statistics.sequential import (
    FEWEST_VALUES,
    Decision,
    confidence_sequence,
    decide,
    half_width_after,
    log_ratio,
    stop,
)

# The shortest window in seconds. The caches are warm again after about ten steps, and the shorter
# windows are, the more alike are the conditions of neighboring ones.
WINDOW_SECONDS = 0.01
MIN_WINDOW_STEPS = 2  # after the uncounted steps at the start of its turn
MAX_WINDOW_STEPS = 500  # however short the steps are that a rank reports
MIN_WINDOWS = 8  # of a pair of arms
WARM_UP_SECONDS = 0.2  # of training by each arm before anything counts
WARM_UP_STEPS = 5  # of one turn
MAX_WARM_UP_STEPS = 200  # over all turns
PAIRS_PER_BUDGET = 30  # how many pairs of arms a budget is divided into
# The same for arms that are not forked: each takes seconds to load torch.
FRESH_PAIRS_PER_BUDGET = 12
MIN_PAIR_SECONDS = 0.1  # of measuring; a pair takes ten times as long to start

# Arms are compared by this quantile of their step times. Disturbances of the machine only make steps
# slower, so the fastest steps say most about the code.
FAST_SHARE = 0.05
# The slowdown of whole turns that must be ruled out before a cell passes, or `min_effect` if that is
# larger: fast steps say nothing about occasional slow ones.
WHOLE_MARGIN = 0.05
WHOLE_ALPHA = 0.2  # the part of the allowed error that goes to losses that whole turns show
SHORTEST_TURN = 0.1  # of what its steps usually take
# Seconds of its usual turn that a rank may leave out of its report, in addition to twice the time that
# the other arm leaves out. With more, its report is false.
MAX_UNREPORTED_SECONDS = 0.02
LARGEST_LOG_RATIO = 100.0  # of a bound; a larger one says nothing
NORMAL_QUANTILE = 1.645  # which a normal value exceeds in 5% of cases
MAX_PAIRS_ESTIMATED = 3000  # among which the one that makes it certain is looked for

# `not slower`: a slowdown that matters is excluded, a speed-up is neither excluded nor certain.
SpeedVerdict = Literal["faster", "slower", "same", "not slower", "inconclusive"]
# The verdict on arm B for each decision of a confidence sequence on log ratios.
VERDICTS: dict[str, SpeedVerdict] = {
    "up": "faster",
    "down": "slower",
    "same": "same",
    "not down": "not slower",
    "undecided": "inconclusive",
}
# Starts the arms with the given keys, in their order, for as long as the context lasts.
StartPair = Callable[[Sequence[str]], AbstractContextManager[Mapping[str, TrainingArm]]]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop measuring a cell: once the verdict is certain, or when the time is spent.

    `alpha` bounds the chance that equal arms are called different after any of the pairs.
    """

    min_effect: float  # smallest change of throughput that matters, a fraction
    seconds: float  # of measuring
    alpha: float  # chance of a false alarm
    # The share of an estimated loss that must be certain before measuring ends. Measuring that stops
    # at the first certain loss overestimates it; with a share above 0 its size is known.
    certain_share: float = 0.0
    pairs: int = PAIRS_PER_BUDGET
    # Whether the only question is if B is slower by `min_effect` or more. Then measuring ends as soon
    # as so large a slowdown is excluded, or any is certain; see `sequential.signs`.
    one_sided: bool = False

    @property
    def seconds_per_pair(self) -> float:
        """Return how long each pair of arms is measured."""
        return max(MIN_PAIR_SECONDS, self.seconds / self.pairs)


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """How fast arm B trains a cell, as a multiple of arm A's throughput."""

    verdict: SpeedVerdict = "inconclusive"
    by_whole_turns: bool = False  # whether the verdict rests on whole turns, not undisturbed steps
    ratio: float | None = None  # throughput of B over that of A, in undisturbed steps
    # The interval of the ratio, which holds after all pairs at once; None with too few pairs.
    low: float | None = None
    high: float | None = None
    # The same of whole turns by the gate's own clock.
    whole_ratio: float | None = None
    whole_low: float | None = None
    whole_high: float | None = None
    whole_turns_pass: bool = False  # whether they rule out a slowdown, as `judge_pairs` asks for
    unit: ThroughputUnit = "samples/s"  # of the rates
    a_rate: float | None = None  # in undisturbed steps
    b_rate: float | None = None  # in undisturbed steps
    mean_rate: float | None = None  # of both arms together, in all counted steps
    pairs: int = 0  # of processes
    windows: int = 0  # of all pairs together
    seconds: float = 0.0  # in the turns
    seconds_until_certain: float | None = None  # in all, estimated; None: unknown
    same_bits: bool | None = None  # whether both arms computed the same losses
    failure: str | None = None  # why it could not be measured
    log_ratios: Sequence[float] = field(default=(), repr=False)  # one for each pair

    @property
    def is_slower_as_a_whole(self) -> bool:
        """Whether B is slower by its whole turns, which its undisturbed steps don't show."""
        return self.verdict == "slower" and self.by_whole_turns

    @property
    def verdict_ratio(self) -> float | None:
        """The ratio of the measurement that the verdict rests on."""
        return self.whole_ratio if self.by_whole_turns else self.ratio

    @property
    def verdict_bounds(self) -> tuple[float | None, float | None]:
        """The interval of the measurement that the verdict rests on."""
        if self.by_whole_turns:
            return self.whole_low, self.whole_high
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class PairSample:
    """The measurements of one pair of arms, in two ways.

    Undisturbed steps are precise on a busy machine, but self-reported by the code that is measured,
    and they miss occasional slow steps. Whole turns are timed by the gate and leave nothing out,
    but are as noisy as the machine.
    """

    # Seconds a sample that `FAST_SHARE` of an arm's counted steps do not exceed. Per sample, because
    # the workload's default batch size may differ between the arms.
    a_fast_seconds: float
    b_fast_seconds: float
    mean_seconds: float  # a sample, over the counted steps of both arms
    # Mean seconds a sample in each turn by the gate's clock, the arms in turn, (windows,).
    turn_seconds: NDArray[np.float64]
    b_first: bool  # whether the first window is B's
    seconds: float  # in all turns, by the gate's clock
    same_bits: bool
    unit: ThroughputUnit = "samples/s"  # steps/s where a step counts as one sample
    # By arm, the error about a rank most of whose turns take far longer than it reports.
    misreports: Mapping[str, str] = field(default_factory=dict)

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
    """Measure the throughput of a cell in tree `b` as a multiple of that in tree `a`.

    The cell's paths are relative to the folder `base` of the working tree; `rng` draws which arm
    starts first. Raises HarnessError if a rank fails or reports false times.
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

    The unit is a pair of arms, however many windows it trains: the memory layout of a process makes
    it faster or slower for its whole life, so windows of one pair are not independent, and would
    show a difference of layout as if it were a change. One pair gives one value, the mean log ratio
    of its windows. Nothing is kept between pairs, and the arm that starts first is drawn at random.
    So values are independent, and for equal arms symmetric about 0.
    """
    samples: list[PairSample] = []
    verdict: SpeedVerdict = "inconclusive"
    is_done = False
    uncounted = uncounted_steps(cell)
    spent = 0.0
    while not is_done and spent < budget.seconds:
        order: list[str] = rng.permutation(["a", "b"]).tolist()
        with start_pair(order) as arms:
            counted_steps = warm_up(arms)
            sample = sample_pair(arms, uncounted, counted_steps, budget.seconds_per_pair)
        samples.append(sample)
        spent += sample.seconds
        if len(samples) >= FEWEST_VALUES or spent >= budget.seconds:
            refuse_misreports(samples)
        verdict = judge_pairs(samples, budget)
        is_done = verdict != "inconclusive"
        if verdict == "slower":
            is_done = is_precise(samples, budget)
        ratio = fmean(sample.log_ratio for sample in samples)
        on_progress(f"{counted(len(samples), 'pair')}, {math.expm1(ratio):+.1%}")
    return summarize_pairs(samples, verdict, budget)


def uncounted_steps(cell: Cell) -> int:
    """Return how many steps at the start of a turn are not counted.

    The first steps of a turn use batches that loader workers prepared in the arm's last turn, and
    at least one step finds the other arm's data in the caches.
    """
    prepared = cell.axes.num_workers * cell.axes.prefetch_factor
    return max(1, prepared)


def is_precise(samples: Sequence[PairSample], budget: Budget) -> bool:
    """Return whether a loss is measured as precisely as the budget requires."""
    fast, whole = _log_ratios(samples)
    for values, share in ((fast, 1 - WHOLE_ALPHA), (whole, WHOLE_ALPHA)):
        _, highs = confidence_sequence(values, share * budget.alpha)
        if highs[-1] < 0 and highs[-1] <= budget.certain_share * values.mean():
            return True
    return budget.certain_share == 0


def judge_pairs(samples: Sequence[PairSample], budget: Budget) -> SpeedVerdict:
    """Return the verdict of both measurements together.

    It is slower if either of them shows it, so they share the allowed error. Any other verdict is that
    of the undisturbed steps, if the whole turns rule out a slowdown of `WHOLE_MARGIN`: a pass needs
    both, so the whole turns may be wrong about it as often as both together about a loss.
    """
    fast, whole = _log_ratios(samples)
    decision = _decide(fast, budget)
    whole_decision = decide(whole, budget.min_effect, WHOLE_ALPHA * budget.alpha)
    if "down" in (decision, whole_decision):
        return "slower"
    return VERDICTS[decision] if _do_whole_turns_pass(whole, budget) else "inconclusive"


def _do_whole_turns_pass(whole: NDArray[np.float64], budget: Budget) -> bool:
    """Return whether whole turns, of these log ratios, are certain not to be slower by their margin."""
    lows, _ = confidence_sequence(whole, budget.alpha)
    return bool(lows[-1] >= _whole_margin(budget))


def _decide(fast: NDArray[np.float64], budget: Budget) -> Decision:
    """Return the decision of the undisturbed steps, whose log ratios are `fast`."""
    alpha = (1 - WHOLE_ALPHA) * budget.alpha
    return decide(fast, budget.min_effect, alpha, one_sided=budget.one_sided)


def _log_ratios(samples: Sequence[PairSample]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the log ratios of undisturbed steps and of whole turns, each (pairs,)."""
    fast = np.asarray([sample.log_ratio for sample in samples])
    whole = np.asarray([sample.whole_log_ratio for sample in samples])
    return fast, whole


def _whole_margin(budget: Budget) -> float:
    """Return the log ratio that whole turns must be certain to exceed for a cell to pass."""
    return math.log1p(-max(WHOLE_MARGIN, budget.min_effect))


def estimate_seconds_needed(samples: Sequence[PairSample], budget: Budget) -> float | None:
    """Estimate the total seconds of measuring until the verdict is certain, None if unknown.

    Further pairs are assumed to have the mean and the deviation of those measured.
    """
    if len(samples) < FEWEST_VALUES:
        return None
    signs = np.resize([1.0, -1.0], MAX_PAIRS_ESTIMATED)
    fast, whole = (values.mean() + values.std(ddof=1) * signs for values in _log_ratios(samples))
    alpha = (1 - WHOLE_ALPHA) * budget.alpha
    decided = stop(fast, budget.min_effect, alpha, one_sided=budget.one_sided)
    lows, _ = confidence_sequence(whole, budget.alpha)
    excludes_slowdown = lows > _whole_margin(budget)
    if math.isnan(float(decided.sign)):
        return None
    pairs = int(decided.count)
    if decided.sign >= 0:
        if not excludes_slowdown.any():
            return None
        pairs = max(pairs, int(excludes_slowdown.argmax()) + 1)
    seconds_per_pair = fmean(sample.seconds for sample in samples)
    return max(pairs, len(samples) + 1) * seconds_per_pair


def visible_effect(deviation: float, budget: Budget) -> float:
    """Return the smallest slowdown that the budget can tell from none, a fraction of throughput.

    `deviation` is that of the log ratio of a pair of equal arms. They are shown not to be slower by so
    much in nine of ten cases; the others are inconclusive.
    """
    alpha = (1 - WHOLE_ALPHA) * budget.alpha
    chance = NORMAL_QUANTILE * deviation / math.sqrt(budget.pairs)
    return -math.expm1(-half_width_after(budget.pairs, deviation, alpha) - chance)


def warm_up(arms: Mapping[str, TrainingArm]) -> int:
    """Train all arms until they are warm; return the steps to count in a window.

    A window takes `WINDOW_SECONDS` in the arm that reports the longer steps: an arm that reports
    shorter steps than it has does not make windows longer. Both arms train the same number of
    steps, so that their losses can be compared.
    """
    seconds = dict.fromkeys(arms, 0.0)
    fastest_steps = dict.fromkeys(arms, math.inf)
    steps = 0
    turns = 0
    while turns < 2 or (min(seconds.values()) < WARM_UP_SECONDS and steps < MAX_WARM_UP_STEPS):
        for key, arm in arms.items():
            turn = arm.train(WARM_UP_STEPS)
            seconds[key] += turn.wall_seconds
            fastest_steps[key] = min(fastest_steps[key], float(np.median(turn.seconds)))
        steps += WARM_UP_STEPS
        turns += 1
    steps_of_window = math.ceil(WINDOW_SECONDS / max(fastest_steps.values()))
    return min(MAX_WINDOW_STEPS, max(MIN_WINDOW_STEPS, steps_of_window))


def sample_pair(
    arms: Mapping[str, TrainingArm], uncounted: int, counted: int, seconds: float
) -> PairSample:
    """Train windows of both arms in turn for `seconds`, but at least `MIN_WINDOWS`."""
    turns: dict[str, list[ArmTurn]] = {key: [] for key in arms}
    same_bits = True
    spent = 0.0
    while sum(map(len, turns.values())) < MIN_WINDOWS or spent < seconds:
        for key, arm in arms.items():
            turn = arm.train(uncounted + counted)
            turns[key].append(turn)
            spent += turn.wall_seconds
        same_bits = same_bits and len({turns[key][-1].losses for key in arms}) == 1
    batch_sizes = [arm.batch_size for arm in arms.values()]
    of_arms = list(turns.values())
    mean_steps = [fmean(turn.seconds[uncounted:]) for of_arm in of_arms for turn in of_arm]
    step_seconds = turn_step_seconds(of_arms, uncounted)
    return PairSample(
        a_fast_seconds=fast_step(turns["a"], uncounted) / arms["a"].batch_size,
        b_fast_seconds=fast_step(turns["b"], uncounted) / arms["b"].batch_size,
        mean_seconds=geometric_mean(mean_steps) / geometric_mean(batch_sizes),
        turn_seconds=step_seconds / np.resize(batch_sizes, len(step_seconds)),  # arms take turns
        b_first=next(iter(arms)) == "b",
        seconds=spent,
        same_bits=same_bits,
        unit=arms["a"].unit,
        misreports=find_misreports(arms, turns),
    )


def fast_step(turns: Sequence[ArmTurn], uncounted: int) -> float:
    """Return the seconds that `FAST_SHARE` of an arm's counted steps do not exceed."""
    return float(np.quantile([turn.seconds[uncounted:] for turn in turns], FAST_SHARE))


def turn_step_seconds(turns: Sequence[Sequence[ArmTurn]], uncounted: int) -> NDArray[np.float64]:
    """Return the mean seconds of a step in each turn, in the order of training, (windows,).

    `turns` are those of each arm. The time is measured by the gate: that of the whole turn, minus the
    delay by other programs and the overhead of a turn. So everything that an arm does in its turn
    counts. The overhead is the same for both arms: the mean over arms of the time that a usual turn
    takes in addition to its usual steps. Only this uses the clocks of the ranks: an arm that reports
    shorter steps than it has looks slower.
    """
    steps = len(turns[0][0].seconds)
    needed = []
    costs = []
    usual_steps = []
    for of_arm in turns:
        seconds = np.asarray([turn.wall_seconds - turn.delay for turn in of_arm])
        usual_step = float(np.median([turn.seconds[uncounted:] for turn in of_arm]))
        needed.append(seconds)
        usual_steps.append(usual_step)
        costs.append(max(0.0, float(np.median(seconds)) - steps * usual_step))
    in_order = np.stack(needed, axis=1).ravel()
    # A turn that seems far shorter than usual is an error of the kernel's count; it may be negative.
    floor = SHORTEST_TURN * steps * min(usual_steps)
    step_seconds: NDArray[np.float64] = np.maximum(in_order - fmean(costs), floor) / steps
    return step_seconds


def find_misreports(
    arms: Mapping[str, TrainingArm], turns: Mapping[str, Sequence[ArmTurn]]
) -> dict[str, str]:
    """Return, by arm, the error about a rank most of whose turns take far longer than it reports.

    Messages and the beginning of epochs take time that no rank reports, but in both arms.
    """
    # By arm: the median seconds of a turn that the report of each rank leaves out.
    usual: dict[str, list[float]] = {}
    for key, of_arm in turns.items():
        unreported = [np.subtract(turn.elapsed, turn.reported) - turn.delay for turn in of_arm]
        usual[key] = np.median(np.asarray(unreported), axis=0).tolist()
    misreports: dict[str, str] = {}
    for key, of_arm in turns.items():
        allowed = MAX_UNREPORTED_SECONDS
        for other, seconds in usual.items():
            if other != key:
                allowed += 2 * max(seconds)
        for rank, left_out in enumerate(usual[key]):
            reported = float(np.median([turn.reported[rank] for turn in of_arm]))
            if left_out > max(allowed, reported):
                misreports[key] = (
                    f"{arms[key].name}: rank {rank} reported {milliseconds(reported)}"
                    f" for turns that took {milliseconds(reported + left_out)};"
                    f" log: {arms[key].log}"
                )
    return misreports


def refuse_misreports(samples: Sequence[PairSample]) -> None:
    """Raise HarnessError for an arm that reports false times in most of its pairs.

    On a busy machine, a single pair with few turns may look like that by chance.
    """
    suspects = Counter(key for sample in samples for key in sample.misreports)
    for key, pairs in suspects.items():
        if 2 * pairs > len(samples):
            messages = [sample.misreports[key] for sample in samples if key in sample.misreports]
            raise HarnessError(messages[-1])


def summarize_pairs(
    samples: Sequence[PairSample], verdict: SpeedVerdict, budget: Budget
) -> PairedResult:
    """Return the result of all pairs together.

    The ratio is the geometric mean over pairs. Its interval is the last one of the confidence
    sequence, which holds although the samples were judged after every pair.
    """
    fast, whole = _log_ratios(samples)
    low, high = _ratio_bounds(fast, (1 - WHOLE_ALPHA) * budget.alpha)
    whole_low, whole_high = _ratio_bounds(whole, WHOLE_ALPHA * budget.alpha)
    decision = _decide(fast, budget)
    a_seconds = [sample.a_fast_seconds for sample in samples]
    b_seconds = [sample.b_fast_seconds for sample in samples]
    mean_seconds = [sample.mean_seconds for sample in samples]
    windows = sum(len(sample.turn_seconds) for sample in samples)
    seconds = sum(sample.seconds for sample in samples)
    same_bits = all(sample.same_bits for sample in samples)
    return PairedResult(
        verdict=verdict,
        by_whole_turns=VERDICTS[decision] != verdict,
        ratio=math.exp(float(fast.mean())),
        low=low,
        high=high,
        whole_ratio=math.exp(float(whole.mean())),
        whole_low=whole_low,
        whole_high=whole_high,
        whole_turns_pass=_do_whole_turns_pass(whole, budget),
        unit=samples[0].unit,
        a_rate=_mean_rate(a_seconds),
        b_rate=_mean_rate(b_seconds),
        mean_rate=_mean_rate(mean_seconds),
        pairs=len(samples),
        windows=windows,
        seconds=seconds,
        seconds_until_certain=estimate_seconds_needed(samples, budget),
        same_bits=same_bits,
        log_ratios=fast.tolist(),
    )


def _mean_rate(seconds: Sequence[float]) -> float:
    """Return a throughput, the geometric mean over pairs, from seconds a sample."""
    return 1 / geometric_mean(seconds)


def _ratio_bounds(
    log_ratios: NDArray[np.float64], alpha: float
) -> tuple[float | None, float | None]:
    """Return the last interval of a ratio; a bound that is practically infinite is None."""
    bounds: list[float | None] = []
    for sequence in confidence_sequence(log_ratios, alpha):
        bound = float(sequence[-1])
        bounds.append(math.exp(bound) if abs(bound) < LARGEST_LOG_RATIO else None)
    low, high = bounds
    return low, high
