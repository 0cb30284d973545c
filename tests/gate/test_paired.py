"""What a gate makes of sides whose times are known: a machine that is made up, and the order that
is real.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.gate.arms import ArmTurn, TrainingArm
from harness.gate.paired import (
    WARM_UP_STEPS,
    Budget,
    PairedResult,
    PairSample,
    run_paired,
    summarize_pairs,
)
from tests.factories import make_cell

CELL = make_cell()
STEP = 0.005  # seconds


@pytest.fixture(autouse=True)
def soon_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.gate.paired.WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr("harness.gate.paired.WINDOW_SECONDS", 0.001)


@dataclass
class Machine:
    """Trains for both sides in turn. A process is faster or slower for as long as it lives, by
    `placement`.
    """

    rng: np.random.Generator
    slower: float = 0.0  # side b, by this share
    placement: float = 0.0
    head_start: float = 0.0  # what it is worth to be started first
    noise: float = 0.01  # of a block
    ramp: float = 0.0  # growth of a step's time with each second that passes
    now: float = 0.0
    drawn: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # steps of each
    kind: type[Simulated] | None = None

    @contextmanager
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, TrainingArm]]:
        luck = {
            "a": float(self.rng.normal(0, self.placement)),
            "b": float(self.rng.normal(0, self.placement)),
        }
        luck[keys[0]] -= self.head_start
        self.drawn.append(luck["a"] - luck["b"])
        kind = self.kind or Simulated
        yield {
            key: kind(self, key, math.exp(luck[key]) * (1 + self.slower * (key == "b")))
            for key in keys
        }

    def take(self, steps: int, factor: float) -> list[float]:
        self.turns.append(steps)
        noise = math.exp(self.rng.normal(0, self.noise))
        seconds_of_steps = []
        for _ in range(steps):
            seconds_of_steps.append(STEP * factor * noise * (1 + self.ramp * self.now))
            self.now += seconds_of_steps[-1]
        return seconds_of_steps


def report(seconds: Sequence[float], *, hidden: float = 0.0) -> ArmTurn:
    """A turn of one rank that takes `hidden` seconds beside the steps that it reports."""
    return ArmTurn(seconds=seconds, wall_seconds=sum(seconds) + hidden, losses="")


class Simulated(TrainingArm):
    def __init__(self, machine: Machine, key: str, factor: float) -> None:
        super().__init__(f"tree {key}", Path("log"))
        self.machine, self.key, self.factor = machine, key, factor

    def train(self, steps: int) -> ArmTurn:
        return report(self.machine.take(steps, self.factor))


def measured(machine: Machine, seconds: float = 2.0, min_effect: float = 0.001) -> PairedResult:
    budget = Budget(min_effect=min_effect, seconds=seconds, alpha=0.05)
    return run_paired(CELL, machine.pair, budget, machine.rng)


@pytest.mark.nightly
@pytest.mark.parametrize(("placement", "head_start"), [(0.02, 0.0), (0.01, 0.02)])
def test_luck_of_a_process_is_no_change(placement: float, head_start: float) -> None:
    """Equal sides whose processes differ by 2% for life, or gain as much by being the first: as many
    false alarms as were allowed for, and no more.
    """
    rng = np.random.default_rng(0)
    words = []
    for _ in range(100):
        machine = Machine(rng=rng, placement=placement, head_start=head_start)
        words.append(measured(machine).verdict)
    alarms = sum(word in ("faster", "slower") for word in words)
    assert alarms <= 100 * (0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 100))


@pytest.mark.parametrize(("slower", "seconds"), [(0.02, 10.0), (0.05, 2.0)])
def test_a_slowdown_is_found_in_time(slower: float, seconds: float) -> None:
    rng = np.random.default_rng(1)
    results = [
        measured(Machine(rng=rng, slower=slower, placement=0.003), seconds, min_effect=0.01)
        for _ in range(40)
    ]
    assert sum(result.verdict == "slower" for result in results) >= 38
    assert max(result.seconds for result in results) < seconds * 1.2


@pytest.mark.parametrize(
    ("axes", "steps"), [({}, 3), ({"num_workers": 2, "loader.prefetch_factor": 3}, 8)]
)
def test_what_was_prepared_while_the_other_side_trained_is_not_counted(
    axes: dict[str, Any], steps: int
) -> None:
    machine = Machine(rng=np.random.default_rng(5))
    budget = Budget(min_effect=0.5, seconds=0.1, alpha=0.05)
    result = run_paired(make_cell(**axes), machine.pair, budget, machine.rng)
    assert set(machine.turns) == {WARM_UP_STEPS, steps}
    assert result.pairs > 0


def test_every_value_is_a_fresh_pair_of_processes() -> None:
    machine = Machine(rng=np.random.default_rng(2), placement=0.05, noise=0.0)
    result = measured(machine)
    assert math.log(result.ratio or 0) == pytest.approx(np.mean(machine.drawn), abs=1e-9)
    assert result.pairs == len(machine.drawn) > 5


def test_a_machine_that_slows_down_biases_neither_side() -> None:
    """A step takes 1% longer with every second."""
    result = measured(Machine(rng=np.random.default_rng(3), ramp=0.01, noise=0.0001))
    assert result.verdict == "same"
    assert result.ratio == pytest.approx(1, abs=0.001)


class HandsOver(Simulated):
    """A script's optimizers follow each other: a turn may have one step more than was asked for."""

    def train(self, steps: int) -> ArmTurn:
        further = int(self.machine.rng.random() < 0.3)
        return super().train(steps + further)


def test_a_turn_with_one_step_more_is_measured_by_its_steps() -> None:
    machine = Machine(rng=np.random.default_rng(3), kind=HandsOver, noise=0.0001)
    result = measured(machine)
    assert result.verdict == "same"
    assert result.ratio == pytest.approx(1, abs=0.001)


class Intermittent(Simulated):
    """One turn in ten of side b takes three times as long."""

    def train(self, steps: int) -> ArmTurn:
        seconds = self.machine.take(steps, self.factor)
        if self.key == "b" and self.machine.rng.random() < 0.1:
            seconds = [3 * step for step in seconds]
        return report(seconds)


class MovedToTheFirstStep(Simulated):
    """Side b does in the first step of a turn, which is not counted, what the others leave out."""

    def train(self, steps: int) -> ArmTurn:
        first, *others = self.machine.take(steps, self.factor)
        if self.key == "b":
            first += 0.5 * sum(others)
        return report([first, *others])


class CallsItsStepsShorter(Simulated):
    """Side b takes 30% longer and reports what side a does."""

    def train(self, steps: int) -> ArmTurn:
        seconds = self.machine.take(steps, self.factor)
        return report(seconds, hidden=0.3 * sum(seconds) * (self.key == "b"))


@pytest.mark.parametrize("kind", [Intermittent, MovedToTheFirstStep, CallsItsStepsShorter])
def test_what_usual_steps_do_not_show_whole_turns_do(kind: type[Simulated]) -> None:
    machine = Machine(rng=np.random.default_rng(6), kind=kind, placement=0.002)
    result = measured(machine, seconds=20.0, min_effect=0.01)
    assert result.verdict == "slower"
    assert result.by_whole_turns
    assert result.ratio is not None
    assert result.ratio < 0.99
    assert (result.b_rate or 0) / (result.a_rate or 1) == pytest.approx(result.ratio, rel=0.1)


class SleepsAndLies(Simulated):
    """Side b takes longer by half a second a turn, and reports 5 µs."""

    def train(self, steps: int) -> ArmTurn:
        if self.key == "a":
            return super().train(steps)
        return report([5e-6 / steps] * steps, hidden=0.5)


def test_a_rank_that_reports_next_to_nothing_is_slower() -> None:
    result = measured(Machine(rng=np.random.default_rng(7), kind=SleepsAndLies), seconds=20.0)
    assert result.verdict == "slower"
    assert result.by_whole_turns


def samples(count: int, mean: float, deviation: float) -> list[PairSample]:
    """Pairs of a second each whose log ratios have this mean and this deviation."""
    signs = np.resize([1.0, -1.0], count)
    pairs = []
    for log_ratio in mean + deviation * signs:
        b_fast_seconds = STEP * math.exp(-log_ratio)
        turns = np.asarray([STEP, b_fast_seconds] * 4)
        pair = PairSample(
            a_fast_seconds=STEP,
            b_fast_seconds=b_fast_seconds,
            turn_seconds=turns,
            b_first=False,
            seconds=1.0,
            same_bits=True,
        )
        pairs.append(pair)
    return pairs


@pytest.mark.parametrize(
    ("mean", "deviation", "verdict"),
    [(0.01, 0.012, "not slower"), (0.0, 0.003, "same"), (-0.03, 0.012, "slower")],
)
def test_one_side_passes_once_a_slowdown_is_excluded(
    mean: float, deviation: float, verdict: str
) -> None:
    budget = Budget(min_effect=0.01, seconds=30.0, alpha=0.05)
    pairs = samples(12, mean, deviation)
    result = summarize_pairs(pairs, budget, 60.0)
    assert result.verdict == verdict
    assert not result.by_whole_turns


def contradicts(result: PairedResult, min_effect: float) -> bool:
    """Whether the interval that is shown says something else than the verdict beside it."""
    low, high = result.low or 0.0, result.high or math.inf
    if result.verdict == "slower":
        return high >= 1
    if result.verdict == "faster":
        return low <= 1
    lies_within = 1 - min_effect < low and high < 1 + min_effect
    if result.verdict == "same":
        return not lies_within
    if result.verdict == "not slower":
        return not 1 - min_effect < low
    return lies_within


def test_a_verdict_never_contradicts_its_interval() -> None:
    """Verdicts after every look, of steps and turns that differ by other amounts."""
    rng = np.random.default_rng(21)
    seen: Counter[tuple[str, bool]] = Counter()
    for _ in range(100):
        budget = Budget(min_effect=0.02, seconds=30.0, alpha=0.05, certain_share=0.5)
        pairs: list[PairSample] = []
        fast, whole = rng.choice([0.0, -0.05, 0.05], 2) + rng.normal(0, 0.01, 2)
        noise = 10 ** rng.uniform(-3, -1)
        for _ in range(rng.integers(3, 25)):
            (pair,) = samples(1, fast + rng.normal(0, noise), 0.0)
            step = STEP * math.exp(-whole - rng.normal(0, 2 * noise))
            pairs.append(replace(pair, turn_seconds=np.asarray([STEP, step] * 4)))
            result = summarize_pairs(pairs, budget, 60.0)
            assert not contradicts(result, budget.min_effect), result
            seen[result.verdict, result.by_whole_turns] += 1
    assert set(seen) == {
        ("slower", False),
        ("slower", True),
        ("faster", False),
        ("same", False),
        ("not slower", False),
        ("inconclusive", False),
        ("inconclusive", True),
    }
