"""What a gate makes of sides whose times are known: a machine that is made up, and the order that
is real.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from harness.gate.arms import Arm, Turn
from harness.gate.paired import WARM_UP_STEPS, Budget, PairedResult, run_paired
from harness.statistics.sequential import stop
from tests.factories import make_cell

CELL = make_cell()
STEP = 0.005  # seconds


@pytest.fixture(autouse=True)
def soon_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.gate.paired.WARM_UP_SECONDS", 0.0)


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
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, Arm]]:
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


class Simulated(Arm):
    def __init__(self, machine: Machine, key: str, factor: float) -> None:
        self.machine, self.key, self.factor = machine, key, factor

    def train(self, steps: int) -> Turn:
        return Turn(seconds=self.machine.take(steps, self.factor), losses="")


def measured(machine: Machine, seconds: float = 2.0, min_effect: float = 0.001) -> PairedResult:
    budget = Budget(min_effect=min_effect, seconds=seconds, alpha=0.05)
    return run_paired(CELL, machine.pair, budget, machine.rng)


def test_luck_of_a_process_is_no_change() -> None:
    """Equal sides whose processes differ by 2% for life: as many false alarms as were allowed for,
    and no more.
    """
    rng = np.random.default_rng(0)
    words = [measured(Machine(rng=rng, placement=0.02)).verdict for _ in range(200)]
    alarms = sum(word in ("faster", "slower") for word in words)
    assert alarms <= 200 * (0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 200))


def test_blocks_of_one_pair_taken_for_independent_would_be_fooled() -> None:
    rng = np.random.default_rng(0)
    luck = rng.normal(0, 0.02, (300, 1)) - rng.normal(0, 0.02, (300, 1))
    results = stop(luck + rng.normal(0, 0.01, (300, 20)), min_effect=0.001)
    assert np.mean(np.abs(results.sign) == 1) > 0.5


@pytest.mark.parametrize(("slower", "seconds"), [(0.02, 10.0), (0.05, 2.0)])
def test_a_slowdown_is_found_in_time(slower: float, seconds: float) -> None:
    rng = np.random.default_rng(1)
    results = [
        measured(Machine(rng=rng, slower=slower, placement=0.003), seconds, min_effect=0.01)
        for _ in range(40)
    ]
    assert sum(result.verdict == "slower" for result in results) >= 38
    assert max(result.seconds for result in results) < seconds * 1.2


def test_who_starts_first_is_left_to_chance() -> None:
    rng = np.random.default_rng(4)
    words = [
        measured(Machine(rng=rng, placement=0.01, head_start=0.02)).verdict for _ in range(100)
    ]
    assert sum(word in ("faster", "slower") for word in words) <= 100 * (
        0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 100)
    )


@pytest.mark.parametrize(
    ("axes", "steps"), [({}, 3), ({"num_workers": 2, "prefetch_factor": 3}, 8)]
)
def test_what_was_prepared_while_the_other_side_trained_is_not_counted(
    axes: dict[str, Any], steps: int
) -> None:
    machine = Machine(rng=np.random.default_rng(5))
    budget = Budget(min_effect=0.5, seconds=0.1, alpha=0.05)
    result = run_paired(make_cell(**axes), machine.pair, budget, machine.rng)
    assert set(machine.turns) == {WARM_UP_STEPS, steps}
    assert result.seconds == pytest.approx(2 * STEP * result.windows, rel=0.05)


def test_every_value_is_a_fresh_pair_of_processes() -> None:
    machine = Machine(rng=np.random.default_rng(2), placement=0.05, noise=0.0)
    result = measured(machine)
    assert result.log_ratios == pytest.approx(machine.drawn, abs=1e-9)
    assert result.pairs == len(machine.drawn) > 5


class InSequence(Simulated):
    """Trains all of its blocks as long after the other side as those take."""

    def train(self, steps: int) -> Turn:
        now, self.machine.now = (
            self.machine.now,
            self.machine.now + (1.0 if self.key == "b" else 0.0),
        )
        turn = super().train(steps)
        self.machine.now = now + sum(turn.seconds)
        return turn


@pytest.mark.parametrize(("kind", "biased"), [(Simulated, False), (InSequence, True)])
def test_a_ramp_biases_a_sequential_order_and_not_ours(kind: type[Simulated], biased: bool) -> None:
    """A step takes 10% longer with every second: equal sides, one after the other, are told apart."""
    result = measured(Machine(rng=np.random.default_rng(3), ramp=0.1, noise=0.0001, kind=kind))
    assert result.verdict == ("slower" if biased else "same")
    assert result.ratio is not None
    assert (abs(result.ratio - 1) > 0.001) is biased
