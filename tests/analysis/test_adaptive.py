"""Repeats go on until cells are measured precisely enough, and no longer than allowed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.adaptive import (
    Goal,
    describe_precision,
    half_width,
    next_repeat_seconds,
    reached,
    run_until,
)
from harness.records.numbers import RATE
from harness.records.record import Record
from harness.sweep.cell import Cell
from harness.sweep.sweep import Sweep
from tests.factories import make_record
from tests.support.sweeps import load

BLOCK = 20.0  # seconds that both cells take


class Machine:
    """Runs sweeps in no time: a clock, and trials whose throughput scatters by `spread`."""

    def __init__(self, spread: float, *, fails: bool = False) -> None:
        self.spread, self.fails, self.now = spread, fails, 0.0
        self.records: dict[str, Record] = {}

    def clock(self) -> float:
        return self.now

    def run(self, sweep: Sweep, more: bool) -> list[Record]:
        for trial in sweep.trials():
            if trial.id not in self.records:
                self.records[trial.id] = self.trial(trial.cell, trial.seed, trial.repeat)
        return list(self.records.values())

    def trial(self, cell: Cell, seed: int, repeat: int) -> Record:
        status: Any = "failed" if self.fails else "done"
        record = make_record(cell, seed=seed, repeat=repeat, status=status)
        begun, self.now = self.now, self.now + BLOCK / 2
        record = replace(record, started=begun, ended=self.now)
        if not record.is_complete:
            return record
        speed = 1000 * math.exp(np.random.default_rng([seed, repeat]).normal(0, self.spread))
        return replace(record, numbers={**record.numbers, RATE: speed})


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return load(tmp_path, length={"steps": 60}, warmup=2, matrix={"precision": ["fp32", "bf16"]})


def blocks(machine: Machine, sweep: Sweep, goal: Goal) -> int:
    final_sweep, records = run_until(goal, sweep, machine.run, machine.clock)
    assert len(records) == 2 * final_sweep.repeats
    return final_sweep.repeats


def test_steady_cells_need_few_repeats_and_noisy_ones_more(sweep: Sweep) -> None:
    goal = Goal(half_width=0.02)
    few, many = (blocks(Machine(spread), sweep, goal) for spread in (0.002, 0.02))
    assert 3 <= few < many
    machine = Machine(0.02)
    final_sweep, records = run_until(goal, sweep, machine.run, machine.clock)
    assert reached(goal, final_sweep, records)
    before = [record for record in records if record.trial.repeat < final_sweep.repeats - 1]
    assert not reached(goal, final_sweep, before)


def test_the_budget_is_not_exceeded(sweep: Sweep) -> None:
    machine = Machine(0.1)
    assert blocks(machine, sweep, Goal(half_width=0.001, budget=5.5 * BLOCK)) == 5
    assert machine.now <= 5.5 * BLOCK


def test_trials_that_ran_side_by_side_take_their_time_once() -> None:
    trials = []
    for seed in range(8):
        record = make_record(seed=seed)
        lane = replace(record.lane, count=4)
        trials.append(replace(record, started=0.0, ended=60.0, lane=lane))
    assert next_repeat_seconds(trials) == 120.0


def test_the_least_precise_cell_is_named(sweep: Sweep) -> None:
    records = [make_record(sweep.cells[number // 2], repeat=number % 2) for number in range(4)]
    description = describe_precision(Goal(half_width=0.01), sweep, records)
    label = sweep.cells[0].label
    assert description.startswith(
        f"{label}, the least precise: no interval within ±100% after 2 trials,"
    )


def test_intervals_hold_although_measuring_stops_at_the_goal() -> None:
    rng, tries, covered = np.random.default_rng(3), 400, 0
    for row in rng.normal(0, 0.02, (tries, 60)):
        stopped = next((n for n in range(3, 61) if half_width(row[:n].tolist()) <= 0.02), 60)
        covered += abs(row[:stopped].mean()) <= half_width(row[:stopped].tolist()) + 1e-4
    assert covered / tries >= 0.95


def test_cells_that_fail_end_it_and_with_fail_fast_a_single_failure_does(sweep: Sweep) -> None:
    assert blocks(Machine(0.0, fails=True), sweep, Goal(half_width=0.02)) == 1
    machine = Machine(0.1)

    def run(sweep: Sweep, more: bool) -> list[Record]:
        machine.fails = more
        return machine.run(sweep, more)

    goal = Goal(half_width=0.001, budget=20 * BLOCK)
    ended, _ = run_until(goal, sweep, run, machine.clock, fail_fast=True)
    assert ended.repeats == 2
