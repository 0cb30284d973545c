"""Telemetry beside training, with scripted GPUs and with this machine's own host."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pynvml
import pytest
import torch

from harness.measure.gpu import THROTTLING
from harness.measure.telemetry import TelemetrySampler, telemetry_for
from harness.records import files
from harness.records import record as records
from tests.factories import make_record, with_ranks
from tests.support.gpu import UUID, FakeGpu
from tests.support.running import by_label, line_sweep, run, wait_until

QUICK = 0.01  # seconds from sample to sample


def sampler(
    gpu: FakeGpu | None = None, warmup: int = 0, interval: float = QUICK
) -> TelemetrySampler:
    """Return telemetry of this host and a scripted GPU."""
    telemetry = TelemetrySampler(warmup=warmup, interval=interval)
    telemetry.gpu = gpu
    return telemetry


def watch(telemetry: TelemetrySampler, *, samples: int = 3) -> records.Telemetry:
    """Return the report of one segment of 10 steps that lasts for so many samples."""
    with telemetry:
        telemetry.begin_segment()
        wait_until(lambda: len(telemetry._readings) >= samples)
        telemetry.end_segment(10)
    return telemetry.report()


class TestSamples:
    def test_hold_what_was_read_and_nan_for_what_was_not(self) -> None:
        later = {"gpu_power_w": 310.0, "gpu_temperature_c": 60.0}
        report = watch(sampler(FakeGpu(readings=[{"gpu_power_w": 300.0}, later])))
        readings = report.readings
        assert readings["gpu_power_w"][:3].tolist() == [300, 310, 310]
        assert np.isnan(readings["gpu_temperature_c"][0])
        assert readings["gpu_temperature_c"][1] == 60
        assert min(readings["resident_bytes"]) > 2**20
        assert len({len(values) for values in readings.values()}) == 1

    def test_say_how_often_the_gpu_was_throttled_and_why(self) -> None:
        reasons = [{"sw_power_cap"}, {"sw_power_cap", "hw_slowdown"}, set()]
        report = watch(sampler(FakeGpu(throttled=reasons)))
        assert report.throttled is not None
        count = len(report.readings["resident_bytes"])
        shares = {name: round(share * count) for name, share in report.throttled.items()}
        assert shares == {**dict.fromkeys(THROTTLING, 0), "sw_power_cap": 2, "hw_slowdown": 1}

    def test_do_not_say_unthrottled_where_that_is_unknown(self) -> None:
        assert watch(sampler(FakeGpu())).throttled is None
        assert watch(sampler()).throttled is None

    def test_name_the_foreign_processes_of_all(self) -> None:
        gpu = FakeGpu(processes=[set(), {"pid 77 miner"}, set()])
        assert watch(sampler(gpu)).foreign_processes == ["pid 77 miner"]
        assert watch(sampler(FakeGpu(processes=[None, set()]))).foreign_processes == []
        assert watch(sampler(FakeGpu())).foreign_processes is None

    def test_outside_segments_and_of_the_warm_up_do_not_count(self) -> None:
        telemetry = sampler(FakeGpu(), warmup=3)
        with telemetry:
            for steps in (1, 2):
                telemetry.begin_segment()
                time.sleep(5 * QUICK)
                telemetry.end_segment(steps)
                time.sleep(5 * QUICK)
            report = telemetry.report()
            telemetry.begin_segment()
            telemetry.end_segment(4)
        assert (report.readings, report.steps, report.seconds, report.shares) == ({}, 0, 0, {})
        assert telemetry.report().steps == 4

    def test_that_straddle_the_end_of_a_segment_do_not_count(self) -> None:
        reading, ended = threading.Event(), threading.Event()

        class Slow(FakeGpu):
            def gauges(self) -> dict[str, float]:
                reading.set()
                ended.wait(60)
                return {"gpu_power_w": 1.0}

        telemetry = sampler(Slow())
        with telemetry:
            telemetry.begin_segment()
            reading.wait(60)
            telemetry.end_segment(10)
            ended.set()
        assert telemetry.report().readings == {}


class TestEnergy:
    def test_is_that_of_the_segments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("harness.measure.telemetry.MIN_METERED", 0.0)
        telemetry = sampler(FakeGpu(joules=[100.0, 150.0, 900.0, 925.0]))
        for _ in range(2):
            telemetry.begin_segment()
            telemetry.end_segment(10)
        assert telemetry.report().joules == 75.0

    @pytest.mark.parametrize(("least", "counters"), [(0.0, [9e9, 3.0]), (60.0, [1.0, 2.0])])
    def test_of_a_counter_that_was_reset_or_too_short_is_unknown(
        self, monkeypatch: pytest.MonkeyPatch, least: float, counters: list[float]
    ) -> None:
        monkeypatch.setattr("harness.measure.telemetry.MIN_METERED", least)
        assert watch(sampler(FakeGpu(joules=counters))).joules is None

    def test_of_a_gpu_without_a_counter_is_unknown(self) -> None:
        report = watch(sampler(FakeGpu()))
        assert report.joules is None


def test_trouble_is_named_in_the_log_once_and_takes_nothing_else_along(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = RuntimeError("GPU is\nlost")
    gpu = FakeGpu(readings=[lost, {"gpu_power_w": 1.0}], joules=[lost], throttled=[lost])
    report = watch(sampler(gpu))
    assert capsys.readouterr().out.splitlines() == [
        f"telemetry: {name}: RuntimeError: GPU is lost"
        for name in ("gpu energy", "gpu", "gpu throttle reasons")
    ]
    assert (report.joules, report.throttled, report.foreign_processes) == (None, None, None)
    assert report.readings["gpu_power_w"][1] == 1.0
    assert report.steps == 10


class TestThread:
    def test_ends_with_its_block_and_lets_go_of_the_gpu(self) -> None:
        gpu = FakeGpu()
        telemetry = sampler(gpu)
        watch(telemetry)
        assert not telemetry.thread.is_alive()
        assert gpu.closed

    def test_ends_at_once_when_training_fails_within_a_segment(self) -> None:
        telemetry = sampler(interval=600)

        def train() -> None:
            with telemetry:
                telemetry.begin_segment()
                raise ValueError("the loss is a NaN")

        with pytest.raises(ValueError, match="NaN"):
            train()
        assert not telemetry.thread.is_alive()

    def test_that_hangs_in_a_driver_holds_up_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("harness.measure.telemetry.JOIN_TIMEOUT", 0.1)
        reading, freed = threading.Event(), threading.Event()

        class Stuck(FakeGpu):
            def gauges(self) -> dict[str, float]:
                reading.set()
                freed.wait(60)
                return {}

        gpu = Stuck()
        telemetry = sampler(gpu)
        with telemetry:
            telemetry.begin_segment()
            reading.wait(60)
            telemetry.end_segment(1)
        assert not gpu.closed  # the thread is in it
        assert telemetry.thread.daemon
        freed.set()
        telemetry.thread.join(60)


def test_where_there_is_no_nvml_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    properties = type("Properties", (), {"uuid": UUID})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    telemetry = telemetry_for(torch.device("cuda", 0), warmup=0)
    assert telemetry.gpu is None
    assert capsys.readouterr().out == (
        "telemetry: gpu: NVMLError_LibraryNotFound: NVML Shared Library Not Found\n"
    )


def test_the_report_comes_back_from_a_record(tmp_path: Path) -> None:
    gpu = FakeGpu(readings=[{"gpu_power_w": 300.0}], processes=[{"pid 77 miner"}])
    (rank,) = make_record().ranks
    rank = replace(rank, telemetry=watch(sampler(gpu)))
    files.write_rank_result(tmp_path / "rank0.json", rank)
    assert files.read_rank_result(tmp_path / "rank0.json").telemetry == rank.telemetry


def test_metrics_of_all_ranks() -> None:
    def report(power: float, joules: float, throttled: set[str]) -> records.Telemetry:
        both = [{"gpu_power_w": power, "gpu_sm_clock_hz": 1.5e9}, {"gpu_power_w": power}]
        seen = watch(sampler(FakeGpu(readings=both, throttled=[throttled])))
        return replace(seen, joules=joules)

    record = make_record()
    first = replace(record.ranks[0], telemetry=report(300, 40.0, {"hw_slowdown"}))
    two = [first, replace(first, rank=1, telemetry=report(200, 24.0, set()))]
    metrics = with_ranks(record, two).numbers
    batch = record.trial.cell.axes.batch_size
    assert metrics["gpu_power_w"] == 250
    assert metrics["gpu_sm_clock_mhz"] == 1500
    assert metrics["gpu_sm_clock_highest_mhz"] == 1500
    assert metrics["gpu_throttled_share.hw_slowdown"] == 1
    assert metrics["gpu_throttled_share.sw_power_cap"] == 0
    assert metrics["joules_per_sample"] == pytest.approx((40 + 24) / (10 * batch))
    assert "gpu_foreign_processes" not in metrics  # no driver listed any
    assert "gpu_temperature_c" not in metrics
    assert record.summary is not None
    reported = replace(record.summary, samples_per_step=5.0)
    of_script = with_ranks(record, two, summary=reported)
    assert of_script.numbers["joules_per_sample"] == pytest.approx((40 + 24) / (10 * 5))
    assert two[1].telemetry is not None
    unknown = replace(two[1], telemetry=replace(two[1].telemetry, joules=None))
    metrics = with_ranks(record, [first, unknown]).numbers
    assert "joules_per_sample" not in metrics


@pytest.mark.distributed
def test_a_real_trial_leaves_telemetry_of_its_steps_after_the_warm_up(tmp_path: Path) -> None:
    path = line_sweep(
        tmp_path, {"slow": {"options": {"step_seconds": 0.04}}}, length={"steps": 80}, seeds=[0]
    )
    (record,) = by_label(run(path)).values()
    assert record.status == "done", record.failure
    (rank,) = record.ranks
    report = rank.telemetry
    assert report
    assert rank.step_seconds is not None
    measured = rank.step_seconds[-report.steps :]
    assert 0 < report.steps < 80
    assert measured.sum() <= report.seconds
    assert report.readings["resident_bytes"].min() > 50 * 2**20
    assert (report.joules, report.throttled, report.foreign_processes) == (None, None, None)
    assert {"cpu_use", "cpu_steal", "process_cpu", "load_per_core"} <= set(record.numbers)
