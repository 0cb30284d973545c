"""Telemetry beside training, with scripted GPUs and hosts and with this machine's own host."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import pytest
import torch

from harness.analysis.scalars import scalars
from harness.measure.gpu import THROTTLING
from harness.measure.host import Counters
from harness.measure.telemetry import (
    MIN_METERED_SECONDS,
    TelemetrySampler,
    joules_between,
    telemetry_for,
)
from harness.records import files
from harness.records import record as records
from harness.records.across import in_memory_ranks
from tests.factories import make_record
from tests.support.gpu import UUID, FakeGpu, FakeHost
from tests.support.running import by_label, line_sweep, run, wait_until

ME = os.getpid()
QUICK = 0.01  # seconds from sample to sample


def watch(telemetry: TelemetrySampler, *, samples: int = 3) -> records.Telemetry:
    """The account of one segment that lasts for so many samples."""
    with telemetry:
        telemetry.begin_segment()
        wait_until(lambda: telemetry.report().sample_times.count >= samples)
        telemetry.end_segment(10)
    return telemetry.report()


def metered(
    monkeypatch: pytest.MonkeyPatch, energy: list[Any], *, segments: int = 1
) -> records.Telemetry:
    """The account of segments of 10 steps and 0.1 s, which are long enough; no thread takes part."""
    monkeypatch.setattr("harness.measure.telemetry.MIN_METERED_SECONDS", 0.05)
    telemetry = TelemetrySampler(FakeGpu(energy=energy), FakeHost())
    for _ in range(segments):
        telemetry.begin_segment()
        time.sleep(0.1)
        telemetry.end_segment(10)
    return telemetry.report()


class TestSamples:
    def test_hold_what_was_read_and_nan_for_what_was_not(self) -> None:
        gpu = FakeGpu(
            readings=[{"gpu_power_w": 300.0}, {"gpu_power_w": 310.0, "gpu_temperature_c": 60.0}]
        )
        report = watch(TelemetrySampler(gpu, FakeHost(), interval=QUICK))
        readings = {name: series.unpack() for name, series in report.readings.items()}
        assert readings["gpu_power_w"][:3].tolist() == [300, 310, 310]
        assert np.isnan(readings["gpu_temperature_c"][0])
        assert readings["gpu_temperature_c"][1] == 60
        assert set(readings["load_per_core"]) == {0.5}
        assert {len(values) for values in readings.values()} == {report.sample_times.count}
        assert np.all(np.abs(report.sample_times.unpack() - time.time()) < 60)

    def test_say_how_often_the_gpu_was_throttled_and_why(self) -> None:
        telemetry = TelemetrySampler(
            FakeGpu(throttled=[{"sw_power_cap"}, {"sw_power_cap", "hw_slowdown"}, ()]),
            FakeHost(),
            interval=QUICK,
        )
        report = watch(telemetry)
        assert report.throttled
        shares = {
            name: round(share * report.sample_times.count)
            for name, share in report.throttled.items()
        }
        assert shares == {**dict.fromkeys(THROTTLING, 0), "sw_power_cap": 2, "hw_slowdown": 1}

    def test_do_not_say_unthrottled_where_that_is_unknown(self) -> None:
        assert (
            watch(TelemetrySampler(FakeGpu(throttled=[None]), FakeHost(), interval=QUICK)).throttled
            is None
        )
        assert watch(TelemetrySampler(None, FakeHost(), interval=QUICK)).throttled is None

    def test_outside_segments_do_not_count(self) -> None:
        telemetry = TelemetrySampler(FakeGpu(), FakeHost(), interval=QUICK)
        with telemetry:
            time.sleep(10 * QUICK)
            telemetry.begin_segment()
            wait_until(lambda: telemetry.report().sample_times.count >= 3)
            telemetry.end_segment(10)
            count = telemetry.report().sample_times.count
            time.sleep(10 * QUICK)
        assert telemetry.report().sample_times.count == count

    def test_that_straddle_the_end_of_a_segment_do_not_count(self) -> None:
        reading, ended = threading.Event(), threading.Event()

        class Slow(FakeGpu):
            def gauges(self) -> dict[str, float]:
                reading.set()
                ended.wait(60)
                return {"gpu_power_w": 1.0}

        telemetry = TelemetrySampler(Slow(), FakeHost(), interval=QUICK)
        with telemetry:
            telemetry.begin_segment()
            reading.wait(60)
            telemetry.end_segment(10)
            ended.set()
        assert telemetry.report().sample_times.count == 0

    def test_are_evenly_apart_in_training_time_across_short_segments(self) -> None:
        telemetry = TelemetrySampler(None, FakeHost(), interval=0.25)
        with telemetry:
            for _ in range(10):
                telemetry.begin_segment()
                time.sleep(0.1)
                telemetry.end_segment(1)
        assert 1 <= telemetry.report().sample_times.count <= telemetry.report().seconds / 0.25

    def test_of_the_warm_up_do_not_count(self) -> None:
        telemetry = TelemetrySampler(
            FakeGpu(energy=[0, 10**9]), FakeHost(), warmup=3, interval=QUICK
        )
        with telemetry:
            for steps in (1, 2):
                telemetry.begin_segment()
                time.sleep(5 * QUICK)
                telemetry.end_segment(steps)
            report = telemetry.report()
            assert (report.sample_times.count, report.steps, report.seconds, report.shares) == (
                0,
                0,
                0.0,
                {},
            )
            telemetry.begin_segment()
            telemetry.end_segment(4)
        assert telemetry.report().steps == 4


class TestForeignProcess:
    def test_is_seen_and_named(self) -> None:
        gpu = FakeGpu(pids=[{ME}, {ME, 77}, {ME}])
        assert watch(
            TelemetrySampler(gpu, FakeHost(names={77: "miner"}), interval=QUICK)
        ).foreign_processes == ["pid 77 miner"]

    def test_is_not_one_of_the_trial(self) -> None:
        assert (
            watch(
                TelemetrySampler(
                    FakeGpu(pids=[{ME, 78}]), FakeHost(names={77: "miner"}), interval=QUICK
                )
            ).foreign_processes
            == []
        )

    @pytest.mark.parametrize(
        "pids", [None, (), {77}], ids=["refused", "hidden", "of-another-namespace"]
    )
    def test_is_unknown_where_our_own_is_not_listed(self, pids: Any) -> None:
        assert (
            watch(
                TelemetrySampler(
                    FakeGpu(pids=[pids]), FakeHost(names={77: "miner"}), interval=QUICK
                )
            ).foreign_processes
            is None
        )


class TestEnergy:
    @pytest.mark.parametrize(
        ("before", "after", "joules"),
        [
            (1_000, 601_000, 600.0),
            (2**40, 2**40 + 600_000, 600.0),
            (2**32 - 200_000, 400_000, 600.0),  # wrapped at 32 bits
            (9_000_000, 0, None),  # set back
            (2**40, 5_000, None),
            (0, 2**31, None),
        ],
    )
    def test_is_the_difference_of_a_counter_that_may_wrap(
        self, before: int, after: int, joules: float | None
    ) -> None:
        assert joules_between(before, after, 2.0) == joules

    def test_adds_up_over_segments_and_leaves_out_what_lies_between(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = metered(monkeypatch, [1_000, 31_000, 999_000, 1_019_000], segments=2)
        assert (report.joules, report.metered_steps, report.errors) == (50.0, 20, {})

    def test_of_a_counter_that_wraps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        report = metered(monkeypatch, [2**32 - 10_000, 20_000])
        assert (report.joules, report.metered_steps) == (30.0, 10)

    def test_of_a_counter_that_was_set_back_is_unknown_and_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = metered(monkeypatch, [9_000_000, 100])
        assert (report.joules, report.metered_steps) == (None, 0)
        assert report.errors["gpu energy"].startswith(
            "the counter went from 9000000 to 100 mJ in 0.1"
        )

    def test_of_segments_too_short_for_the_counter_is_unknown(self) -> None:
        telemetry = TelemetrySampler(FakeGpu(energy=[0, 10_000, 20_000]), FakeHost())
        for _ in range(3):
            telemetry.begin_segment()
            telemetry.end_segment(10)
        report = telemetry.report()
        assert report.seconds < MIN_METERED_SECONDS
        assert (report.steps, report.joules, report.metered_steps) == (30, None, 0)

    def test_is_not_read_before_a_segment_that_will_be_too_short(self) -> None:
        """A reading takes milliseconds, which would be much of an epoch of a few steps."""
        gpu = FakeGpu(energy=[0, AssertionError("read again")])
        telemetry = TelemetrySampler(gpu, FakeHost())
        for _ in range(3):  # how long a step takes is known from the second on
            telemetry.begin_segment(10)
            telemetry.end_segment(10)
        assert telemetry.report().errors == {}

    def test_of_a_gpu_without_a_counter_is_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        report = metered(monkeypatch, [None])
        assert (report.joules, report.errors) == (None, {})


class TestShares:
    def test_come_from_both_ends_of_every_segment_however_short(self) -> None:
        script = [
            Counters(10, 100, 50, 5, 7), Counters(12, 104, 53, 5.5, 8),
            Counters(50, 300, 200, 90, 40), Counters(54, 308, 206, 90.5, 44),
        ]  # fmt: skip
        telemetry = TelemetrySampler(None, FakeHost(script))
        for _ in range(2):
            telemetry.begin_segment()
            telemetry.end_segment(1)
        assert telemetry.report().shares == {
            "cpu_use": pytest.approx(9 / 12),
            "cpu_steal": pytest.approx(1 / 12),
            "process_cpu": pytest.approx(5 / 6),
        }

    def test_of_a_sample_cover_the_time_since_the_one_before_it_in_its_segment(self) -> None:
        script = [
            Counters(total=at, stolen=stolen) for at, stolen in ((0, 0), (10, 1), (20, 1), (30, 7))
        ]
        report = watch(TelemetrySampler(None, FakeHost(script), interval=QUICK), samples=3)
        assert report.readings["cpu_steal"].unpack()[:3] == pytest.approx([0.1, 0.0, 0.6])


class TestTrouble:
    def test_leaves_its_name_and_takes_nothing_else_along(self) -> None:
        lost = RuntimeError("GPU is\nlost")
        gpu = FakeGpu(readings=[lost], energy=[lost], throttled=[lost], pids=[lost])
        report = watch(TelemetrySampler(gpu, FakeHost(), interval=QUICK))
        names = ("gpu", "gpu energy", "gpu throttle reasons", "gpu processes")
        assert report.errors == dict.fromkeys(names, "RuntimeError: GPU is lost")
        assert (report.joules, report.throttled, report.foreign_processes) == (None, None, None)
        assert set(report.readings) == {"load_per_core"}

    def test_of_the_host_stops_no_training(self) -> None:
        report = watch(
            TelemetrySampler(
                FakeGpu(readings=[{"gpu_power_w": 1.0}]),
                FakeHost([OSError("no /proc")]),
                interval=QUICK,
            )
        )
        assert report.errors == {"host counters": "OSError: no /proc"}
        assert (report.shares, report.steps) == ({}, 10)
        assert set(report.readings) == {"gpu_power_w", "load_per_core"}

    def test_that_passes_is_still_told(self) -> None:
        report = watch(
            TelemetrySampler(
                FakeGpu(readings=[ValueError("once"), {"gpu_power_w": 1.0}]),
                FakeHost(),
                interval=QUICK,
            )
        )
        assert report.errors == {"gpu": "ValueError: once"}
        assert report.readings["gpu_power_w"].unpack()[1] == 1.0


class TestThread:
    def test_ends_with_its_block_and_lets_go_of_the_gpu(self) -> None:
        gpu = FakeGpu()
        telemetry = TelemetrySampler(gpu, FakeHost(), interval=QUICK)
        watch(telemetry)
        assert not telemetry.thread.is_alive()
        assert gpu.closed

    def test_ends_at_once_when_training_fails_within_a_segment(self) -> None:
        telemetry = TelemetrySampler(None, FakeHost(), interval=600)

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
        telemetry = TelemetrySampler(gpu, FakeHost(), interval=QUICK)
        with telemetry:
            telemetry.begin_segment()
            reading.wait(60)
            telemetry.end_segment(1)
        assert telemetry.report().errors["thread"] == "has not ended within 0.1 s"
        assert not gpu.closed  # the thread is in it
        assert telemetry.thread.daemon
        freed.set()
        telemetry.thread.join(60)


def test_where_there_is_no_nvml_the_account_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = type("Properties", (), {"uuid": UUID})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(
        pynvml, "nvmlInit", lambda: (_ for _ in ()).throw(pynvml.NVMLError_LibraryNotFound())
    )
    telemetry = telemetry_for(torch.device("cuda", 0), warmup=0)
    assert telemetry.gpu is None
    assert telemetry.report().errors == {
        "gpu": "NVMLError_LibraryNotFound: NVML Shared Library Not Found"
    }


def test_account_comes_back_from_a_record(tmp_path: Path) -> None:
    gpu = FakeGpu(readings=[{"gpu_power_w": 300.0}], pids=[{ME, 77}])
    (rank,) = make_record().ranks
    rank = replace(
        rank, telemetry=watch(TelemetrySampler(gpu, FakeHost(names={77: "miner"}), interval=QUICK))
    )
    files.write_record(tmp_path / "rank0.json", rank)
    assert files.read_rank_result(tmp_path / "rank0.json").telemetry == rank.telemetry


def test_metrics_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def account(power: float, energy: int, throttled: set[str]) -> records.Telemetry:
        report = metered(monkeypatch, [0, energy])
        gpu = FakeGpu(
            readings=[{"gpu_power_w": power, "gpu_sm_clock_hz": 1.5e9}, {"gpu_power_w": power}],
            throttled=[throttled],
        )
        seen = watch(
            TelemetrySampler(gpu, FakeHost([Counters(), Counters(1, 10, 5, 1, 1)]), interval=QUICK)
        )
        return replace(seen, joules=report.joules, metered_steps=report.metered_steps)

    record = make_record()
    single_rank = [replace(record.ranks[0], telemetry=account(300, 40_000, {"hw_slowdown"}))]
    two = [*single_rank, replace(record.ranks[0], rank=1, telemetry=account(200, 24_000, set()))]
    report = scalars(replace(record, ranks=in_memory_ranks(two)))
    batch = record.trial.cell.axes.batch_size
    assert report["gpu_power_w"] == 250
    assert report["gpu_sm_clock_mhz"] == 1500
    assert report["gpu_sm_clock_movement"] == 0
    assert report["gpu_throttled_share.hw_slowdown"] == 1
    assert report["gpu_throttled_share.sw_power_cap"] == 0
    assert report["joules_per_sample"] == pytest.approx((40 + 24) / (10 * batch))
    assert (report["cpu_use"], report["cpu_steal"], report["load_per_core"]) == (0.5, 0.1, 0.5)
    assert "gpu_foreign_processes" not in report  # nobody's pid was listed
    assert "gpu_temperature_c" not in report
    assert record.summary is not None
    reported = replace(record.summary, samples_per_step=5.0)
    of_script = replace(record, ranks=in_memory_ranks(two), summary=reported)
    assert scalars(of_script)["joules_per_sample"] == pytest.approx((40 + 24) / (10 * 5))
    in_steps = replace(of_script, summary=replace(reported, throughput_unit="steps/s"))
    assert "joules_per_sample" not in scalars(in_steps)
    unknown = replace(two[1], telemetry=replace(account(200, 0, set()), joules=None))
    assert "joules_per_sample" not in scalars(
        replace(record, ranks=in_memory_ranks([single_rank[0], unknown]))
    )


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
    assert rank.step_seconds
    measured = rank.step_seconds.unpack()[-report.steps :]
    assert 0 < report.steps < 80
    assert measured.sum() <= report.seconds < measured.sum() + 0.5
    assert report.sample_times.count >= 1
    assert (
        0
        <= report.shares["cpu_steal"]
        <= report.shares["cpu_use"] + report.shares["cpu_steal"]
        <= 1.001
    )
    assert report.readings["resident_bytes"].unpack().min() > 50 * 2**20
    assert (report.joules, report.throttled, report.foreign_processes, report.errors) == (
        None,
        None,
        None,
        {},
    )
    assert {"cpu_use", "cpu_steal", "process_cpu", "load_per_core"} <= set(scalars(record))
