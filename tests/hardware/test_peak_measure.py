"""How repeats are timed, and how the figures are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.hardware.machine import Timing
from harness.hardware.measured_peaks import MIN_SECONDS, REPEATS, product, repeat, runner
from harness.view.machine import peaks_view
from tests.factories import make_machine


class Fake:
    """Calls that take as long as said; `slow` numbers runs that were interrupted for a second."""

    def __init__(self, seconds: float, slow: tuple[int, ...] = ()) -> None:
        self.seconds, self.slow = seconds, slow
        self.runs: list[int] = []

    def __call__(self, calls: int) -> float:
        self.runs.append(calls)
        return calls * self.seconds + (1.0 if len(self.runs) in self.slow else 0.0)


def test_short_calls_are_gathered_until_they_take_long_enough() -> None:
    run = Fake(1e-6)
    assert repeat(run) == pytest.approx([1e-6] * REPEATS)
    assert len(set(run.runs[-REPEATS:])) == 1
    assert run.runs[-1] * 1e-6 >= MIN_SECONDS
    assert len(run.runs) < 30
    long_run = Fake(0.1)
    assert repeat(long_run) == [0.1] * REPEATS
    assert long_run.runs == [1] * (1 + REPEATS), "the first is a warm-up"


def test_interruptions_do_not_make_repeats_short() -> None:
    for slow in [*((number,) for number in range(1, 12)), (2, 3), (2, 3, 5), (2, 3, 4, 5)]:
        run = Fake(1e-6, slow)
        assert min(repeat(run)) * run.runs[-1] >= 0.99 * MIN_SECONDS


def test_the_host_is_timed_by_calls() -> None:
    made: list[int] = []
    assert runner(lambda: made.append(1), torch.device("cpu"))(5) > 0
    assert len(made) == 5
    for dtype in (torch.float32, torch.bfloat16):
        result = product(32, dtype, torch.device("cpu"))()
        assert isinstance(result, torch.Tensor)
        assert result.abs().sum() > 0


def test_the_table_has_a_row_for_each_call() -> None:
    machine = make_machine()
    seconds = [2e-5, 4e-5, 3e-5]
    reduced = Timing(call="all-reduce", dtype="fp32", size=4, ranks=4, seconds=seconds)
    machine = replace(machine, timings=[*machine.timings, reduced])
    (table,) = peaks_view(machine, Path("peaks/machine.json")).tables
    rows = [[field.text for field in row] for row in table.drawn()]
    assert rows[1] == ["product 512 × 512 fp32", "100", "90.9", "GFLOP/s"]
    assert rows[3][:2] == ["copy 256 MiB", "10"]
    assert rows[4] == ["all-reduce 4 B, 4 ranks, bus", "0.0003", "0.00015", "GB/s"]
