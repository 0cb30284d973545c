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


class TestFigures:
    @pytest.mark.parametrize(
        ("call", "ranks", "work"),
        [("matmul", 1, 2e6), ("copy", 1, 200), ("all-reduce", 2, 100), ("all-reduce", 8, 175)],
    )
    def test_work_of_a_call_of_size_100(self, call: Any, ranks: int, work: float) -> None:
        """The last two are the bus bandwidth of nccl-tests."""
        timing = Timing(call=call, dtype="fp32", size=100, ranks=ranks, seconds=[1.0])
        assert timing.work == work

    def test_peak_is_the_best_of_all_sizes_and_repeats(self) -> None:
        machine = make_machine()
        assert machine.peak("fp32") == pytest.approx(100e9)
        assert machine.peak("bf16") == pytest.approx(400e9)
        assert machine.peak("fp16") is None


class TestKey:
    def test_of_a_cpu(self) -> None:
        assert machine_key(CPU, "cpu") == "AMD-EPYC-25.1.1-2-cores"

    @pytest.mark.parametrize(
        "change", [{"cpu": "Intel"}, {"cpu_version": "26.2.1"}, {"usable_cores": 4}]
    )
    def test_differs_with_what_decides_speed(self, change: dict[str, Any]) -> None:
        assert machine_key(replace(CPU, **change), "cpu") != machine_key(CPU, "cpu")

    def test_of_a_cpu_of_unknown_version(self) -> None:
        assert machine_key(replace(CPU, cpu_version=None), "cpu") == "AMD-EPYC-2-cores"

    def test_of_gpus_counts_them(self) -> None:
        gpus = ["NVIDIA H100 80GB HBM3"] * 8
        assert machine_key(replace(CPU, gpus=gpus), "cuda") == "8x-NVIDIA-H100-80GB-HBM3"
        assert machine_key(replace(CPU, gpus=gpus[:1]), "cuda") == "1x-NVIDIA-H100-80GB-HBM3"
        assert machine_key(replace(CPU, gpus=gpus), "cpu") == machine_key(CPU, "cpu")


class TestOnDisk:
    def test_comes_back_equal(self, tmp_path: Path) -> None:
        machine = make_machine()
        path = machines.write(tmp_path, machine)
        assert path.name == "Test-CPU-2-cores.json"
        assert machines.read(path) == machine
        assert machines.read_all(tmp_path) == {machine.key: machine}

    def test_one_that_is_damaged_stops_no_command(self, tmp_path: Path) -> None:
        machine = make_machine()
        machines.write(tmp_path, machine)
        (tmp_path / "other-machine.json").write_text('{"schema": "2.0"}')
        assert machines.read_all(tmp_path) == {machine.key: machine}

    def test_nothing_measured_yet(self, tmp_path: Path) -> None:
        assert machines.read_all(tmp_path / "peaks") == {}

    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: content.update(schema=1),
            lambda content: content.pop("device"),
            lambda content: content.update(hardware={}),
            lambda content: content["timings"][0].pop("seconds"),
            lambda content: content["timings"][0].update(seconds=[0.1, 0.0]),
            lambda content: content.pop("timings"),
        ],
    )
    def test_that_is_not_whole_is_refused(
        self, tmp_path: Path, damage: Callable[[dict[str, Any]], None]
    ) -> None:
        path = damaged(tmp_path, damage)
        with pytest.raises(
            BadInput,
            match=r"(can't be read as a record of peaks|found 1).*harness peak makes a new one$",
        ) as caught:
            machines.read(path)
        assert "\n" not in str(caught.value)


def damaged(folder: Path, damage: Callable[[dict[str, Any]], None]) -> Path:
    path = machines.write(folder, make_machine())
    content = json.loads(path.read_text(encoding="utf-8"))
    damage(content)
    path.write_text(sealed_text(content), encoding="utf-8")
    return path
