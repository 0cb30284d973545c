"""The record of what a machine can do: its figures, its key, and that a broken one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput
from harness.hardware import machine as machines
from harness.hardware.machine import Timing, machine_key
from harness.records.environment import Hardware
from harness.records.format import sealed_text
from tests.factories import make_machine

CPU = Hardware(cpu="AMD EPYC", cpu_version="25.1.1", usable_cores=2)


@pytest.mark.parametrize(
    ("call", "ranks", "work"),
    [("matmul", 1, 2e6), ("copy", 1, 200), ("all-reduce", 2, 100), ("all-reduce", 8, 175)],
)
def test_work_of_a_call_of_size_100(call: Any, ranks: int, work: float) -> None:
    """The last two are the bus bandwidth of nccl-tests."""
    timing = Timing(call=call, dtype="fp32", size=100, ranks=ranks, seconds=[1.0])
    assert timing.work == work


def test_peak_is_the_best_of_all_sizes_and_repeats() -> None:
    machine = make_machine()
    assert machine.peak("fp32") == pytest.approx(100e9)
    assert machine.peak("bf16") == pytest.approx(400e9)
    assert machine.peak("fp16") is None


@pytest.mark.parametrize(
    ("changes", "device", "key"),
    [
        ({}, "cpu", "AMD-EPYC-25.1.1-2-cores"),
        ({"cpu_version": None, "usable_cores": 4}, "cpu", "AMD-EPYC-4-cores"),
        ({"gpus": ["NVIDIA H200"]}, "cpu", "AMD-EPYC-25.1.1-2-cores"),
        ({"gpus": ["NVIDIA H200"]}, "cuda", "1x-NVIDIA-H200"),
        ({"gpus": ["NVIDIA H100 80GB HBM3"] * 8}, "cuda", "8x-NVIDIA-H100-80GB-HBM3"),
    ],
)
def test_a_key_has_what_decides_speed(changes: dict[str, Any], device: Any, key: str) -> None:
    assert machine_key(replace(CPU, **changes), device) == key


def test_what_is_written_comes_back_equal_and_a_damaged_one_stops_no_command(
    tmp_path: Path,
) -> None:
    machine = make_machine()
    path = machines.write(tmp_path, machine)
    (tmp_path / "other-machine.json").write_text('{"schema": "2.0"}')
    assert path.name == "Test-CPU-2-cores.json"
    assert machines.read(path) == machine
    assert machines.read_all(tmp_path) == {machine.key: machine}
    assert machines.read_all(tmp_path / "peaks") == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.update(schema=1),
        lambda content: content.update(hardware={}),
        lambda content: content["timings"][0].update(seconds=[0.1, 0.0]),
    ],
)
def test_a_record_that_is_not_whole_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None]
) -> None:
    path = machines.write(tmp_path, make_machine())
    content = json.loads(path.read_text(encoding="utf-8"))
    damage(content)
    path.write_text(sealed_text(content), encoding="utf-8")
    problem = "(can't be read as a record of peaks|found 1).*harness peak makes a new one$"
    with pytest.raises(BadInput, match=problem):
        machines.read(path)
