"""Telemetry beside training, on a driver of ours, on this machine's host and, where there is one, on
a real GPU.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pynvml
import pytest
import torch

from harness.measure.telemetry import (
    TelemetrySampler,
    core_seconds,
    core_shares,
    is_foreign,
)
from harness.records import files
from harness.records.record import Telemetry
from harness.sweep.cluster import Profile, count_gpus
from tests.factories import make_record
from tests.support.gpu import UUID, Failing, FakeDriver
from tests.support.running import by_label, line_sweep, run, wait_until

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
QUICK = 0.01  # seconds from sample to sample
LOST = Failing(pynvml.NVML_ERROR_GPU_IS_LOST)
HEAT = 0x40
# Its own power limit, an idle GPU, clocks that somebody has set.
NOT_THROTTLED = 0x4 | 0x1 | 0x2 | 0x10 | 0x100
ANSWERS = {
    "nvmlDeviceGetUtilizationRates": {"gpu": 87, "memory": 40},
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetPowerUsage": 612_500,
    "nvmlDeviceGetCurrentClocksThrottleReasons": HEAT | NOT_THROTTLED,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.measure.telemetry.SAMPLE_INTERVAL", QUICK)


def watch(telemetry: TelemetrySampler) -> Telemetry:
    """Return the report of one segment of 10 steps that lasts for three samples."""
    with telemetry:
        telemetry.begin_segment()
        wait_until(lambda: len(telemetry._samples) >= 3)
        telemetry.end_segment(10)
    return telemetry.report()


def watch_gpu(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> Telemetry:
    driver.install(monkeypatch)
    return watch(TelemetrySampler(GPU, warmup=0))


def test_readings_of_a_gpu_come_in_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(ANSWERS, processes=[os.getpid(), 2**22 + 1])
    report = watch_gpu(monkeypatch, driver)
    gpu = {name: values[0] for name, values in report.readings.items() if name.startswith("gpu_")}
    assert gpu == pytest.approx(
        {
            "gpu_utilization": 0.87,
            "gpu_sm_clock_mhz": 1980,
            "gpu_power_w": 612.5,
            "gpu_throttled": 1,
            "gpu_foreign_processes": 1,
        }
    )


def test_samples_hold_nan_for_what_was_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nvmlDeviceGetPowerUsage": [300_000, 310_000],
        "nvmlDeviceGetClockInfo": [Failing(pynvml.NVML_ERROR_NOT_SUPPORTED), 1980],
        "nvmlDeviceGetCurrentClocksThrottleReasons": [HEAT, NOT_THROTTLED],
    }
    readings = watch_gpu(monkeypatch, FakeDriver(answers)).readings
    assert readings["gpu_power_w"][:3].tolist() == [300, 310, 310]
    assert np.isnan(readings["gpu_sm_clock_mhz"][0])
    assert readings["gpu_sm_clock_mhz"][1] == 1980
    assert readings["gpu_throttled"][:2].tolist() == [1, 0]
    assert len({len(values) for values in readings.values()}) == 1


@pytest.mark.parametrize("status", ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", None])
def test_what_a_gpu_does_not_tell_is_unknown(
    monkeypatch: pytest.MonkeyPatch, status: str | None
) -> None:
    answers = dict.fromkeys(ANSWERS, Failing(getattr(pynvml, status))) if status else {}
    assert set(watch_gpu(monkeypatch, FakeDriver(answers)).readings) == {"load_per_core"}


@pytest.mark.parametrize("processes", [[], [77]], ids=["hidden", "of another namespace"])
def test_others_are_unknown_where_this_process_is_not_listed(
    monkeypatch: pytest.MonkeyPatch, processes: list[int]
) -> None:
    report = watch_gpu(monkeypatch, FakeDriver(ANSWERS, processes=processes))
    assert "gpu_foreign_processes" not in report.readings


def test_trouble_is_named_in_the_log_once_and_takes_nothing_else_along(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {**ANSWERS, "nvmlDeviceGetPowerUsage": [LOST, 1000], "nvmlDeviceGetClockInfo": LOST}
    readings = watch_gpu(monkeypatch, FakeDriver(answers, processes=[os.getpid()])).readings
    assert capsys.readouterr().out.splitlines() == [
        f"telemetry: {name}: NVMLError_GpuIsLost: GPU is lost"
        for name in ("gpu_sm_clock_mhz", "gpu_power_w")
    ]
    assert readings["gpu_power_w"][1] == 1.0
    assert "gpu_sm_clock_mhz" not in readings


def test_counters_of_the_host_that_cant_be_read_cost_a_line_and_no_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container that shows fewer cores than the trial is bound to."""
    monkeypatch.setattr("harness.measure.telemetry.core_seconds", lambda _: [][8])
    report = watch(TelemetrySampler(CPU, warmup=0))
    message = "telemetry: host counters: IndexError: list index out of range\n"
    assert capsys.readouterr().out == message
    assert report.shares == {}
    assert report.readings["load_per_core"].min() >= 0


def test_part_of_a_gpu_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(ANSWERS, uuid=f"MIG-{UUID}".encode())
    assert watch_gpu(monkeypatch, driver).readings["gpu_power_w"][0] == 612.5


def test_where_there_is_no_such_gpu_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = watch_gpu(monkeypatch, FakeDriver(ANSWERS, uuid=b"GPU-another"))
    assert capsys.readouterr().out == "telemetry: gpu: NVMLError_NotFound: Not Found\n"
    assert report.readings["load_per_core"].min() >= 0


def test_outside_segments_and_of_the_warm_up_nothing_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(0.0)
    monkeypatch.setattr("harness.measure.telemetry.core_seconds", lambda _: {"wall": next(clock)})
    monkeypatch.setattr("harness.measure.telemetry.core_shares", dict)
    telemetry = TelemetrySampler(CPU, warmup=3)
    with telemetry:
        for steps in (1, 2):
            telemetry.begin_segment()
            time.sleep(5 * QUICK)
            telemetry.end_segment(steps)
            time.sleep(5 * QUICK)
        report = telemetry.report()
        for _ in range(2):
            telemetry.begin_segment()
            telemetry.end_segment(4)
    assert (report.readings, report.shares) == ({}, {})
    assert telemetry.report().shares == {"wall": 2.0}


class TestThread:
    def test_drops_a_sample_during_which_the_segment_ends(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reading, ended = threading.Event(), threading.Event()

        def slow() -> int:
            reading.set()
            ended.wait(60)
            return 1000

        FakeDriver({"nvmlDeviceGetPowerUsage": slow}).install(monkeypatch)
        telemetry = TelemetrySampler(GPU, warmup=0)
        with telemetry:
            telemetry.begin_segment()
            reading.wait(60)
            telemetry.end_segment(10)
            ended.set()
        wait_until(lambda: not of_telemetry())
        assert telemetry.report().readings == {}

    def test_ends_when_training_fails_within_a_segment(self) -> None:
        telemetry = TelemetrySampler(CPU, warmup=0)

        def train() -> None:
            with telemetry:
                telemetry.begin_segment()
                raise ValueError("the loss is a NaN")

        with pytest.raises(ValueError, match="NaN"):
            train()
        wait_until(lambda: not of_telemetry())

    def test_that_hangs_in_a_driver_holds_up_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reading, freed = threading.Event(), threading.Event()

        def stuck() -> int:
            reading.set()
            freed.wait(60)
            return 0

        FakeDriver({"nvmlDeviceGetPowerUsage": stuck}).install(monkeypatch)
        telemetry = TelemetrySampler(GPU, warmup=0)
        with telemetry:
            telemetry.begin_segment()
            reading.wait(60)
            telemetry.end_segment(1)
        (thread,) = of_telemetry()
        assert thread.daemon
        freed.set()
        thread.join(60)


def of_telemetry() -> list[threading.Thread]:
    """Return the threads of this process that sample."""
    return [thread for thread in threading.enumerate() if thread.name == "telemetry"]


def test_the_report_comes_back_from_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rank,) = make_record().ranks
    report = watch_gpu(monkeypatch, FakeDriver(ANSWERS))
    files.write_rank_result(tmp_path / "rank0.json", replace(rank, telemetry=report))
    read = files.read_rank_result(tmp_path / "rank0.json").telemetry
    assert read == report
    assert {name: list(values) for name, values in read.readings.items()} == {
        name: list(values) for name, values in report.readings.items()
    }


def compute(seconds: float) -> None:
    """Use a core for so many seconds of CPU time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_cpu_time_is_that_of_this_process_and_of_its_workers() -> None:
    before = core_seconds()
    compute(0.3)
    worker = multiprocessing.get_context("fork").Process(target=compute, args=(0.3,))
    worker.start()
    wait_until(lambda: core_seconds()["process"] - before["process"] >= 0.59)
    worker.join()
    after = core_seconds()
    assert after["process"] - before["process"] >= 0.59, "also of one that has ended"
    assert after["host"] <= after["all cores"]
    assert after["waited"] >= before["waited"] >= 0


def test_shares() -> None:
    spent = {"wall": 2.0, "all cores": 8.0, "stolen": 1.0, "host": 3.0, "process": 1.5}
    shares = {"cpu_steal": 0.125, "host_cpu": 1.5, "process_cpu": 0.75}
    assert core_shares(spent) == shares
    assert core_shares({**spent, "waited": 0.5}) == {**shares, "cpu_wait": 0.25}
    assert core_shares({**spent, "wall": 0.9}) == core_shares({}) == {}


def test_tells_strangers_from_ranks_by_the_command_line() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not is_foreign(os.getpid())
        assert is_foreign(child.pid)
    assert is_foreign(child.pid), "it has ended"


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("", 0), ("-1", 0), ("1", 1), ("0,1,2,3", 2), ("0,-1,1", 1), (f"GPU-{UUID}", 1)],
)
def test_gpus_that_a_process_may_use_are_counted_as_cuda_does(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == count
    if visible in ("", "1"):  # as the profile makes them visible
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        assert Profile(environment={"CUDA_VISIBLE_DEVICES": visible}).gpus == count


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert count_gpus() == 0


@pytest.mark.distributed
def test_a_real_trial_leaves_telemetry_of_its_steps_after_the_warm_up(tmp_path: Path) -> None:
    path = line_sweep(
        tmp_path, {"slow": {"options": {"step_seconds": 0.04}}}, length={"steps": 80}, seeds=[0]
    )
    (record,) = by_label(run(path)).values()
    assert record.status == "done", record.failure
    (rank,) = record.ranks
    assert set(rank.telemetry.readings) == {"load_per_core"}
    assert {"cpu_steal", "process_cpu", "host_cpu"} <= set(rank.telemetry.shares)
    assert {"cpu_steal", "load_per_core"} <= set(record.numbers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_readings_of_a_real_gpu_are_plausible() -> None:
    telemetry = TelemetrySampler(GPU, warmup=0)
    with telemetry:
        telemetry.begin_segment()
        end = time.monotonic() + 3.5
        matrix = torch.randn(4096, 4096, device="cuda")
        while time.monotonic() < end:
            (matrix @ matrix).sum().item()
        telemetry.end_segment(100)
    report = telemetry.report()
    means = {name: float(np.nanmean(series)) for name, series in report.readings.items()}
    assert 0 < means["gpu_utilization"] <= 1
    assert 100 < means["gpu_sm_clock_mhz"] < 5000
    assert 10 < means["gpu_power_w"] < 2000
    assert means["gpu_foreign_processes"] >= 0
