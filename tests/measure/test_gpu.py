"""Readings of one GPU through the real pynvml, on a driver of ours and, where there is one, on a
real GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import pynvml
import pytest
import torch

from harness.measure.gpu import NvmlGpu
from harness.measure.telemetry import telemetry_for
from harness.sweep.cluster import Profile, count_gpus
from tests.support.gpu import UUID, Failing, FakeDriver

GPU = torch.device("cuda", 0)
Install = Callable[[FakeDriver], FakeDriver]
ANSWERS = {
    "nvmlDeviceGetUtilizationRates": {"gpu": 87, "memory": 40},
    "nvmlDeviceGetMemoryInfo": {"total": 80 << 30, "free": 60 << 30, "used": 20 << 30},
    "nvmlDeviceGetTemperature": 64,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetPowerUsage": 612_500,
    "nvmlDeviceGetTotalEnergyConsumption": 123_456_789_012,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x40 | 0x1 | 0x2 | 0x10 | 0x100,
}


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a driver below the real pynvml."""

    def put(driver: FakeDriver) -> FakeDriver:
        monkeypatch.setattr(pynvml, "nvmlLib", driver)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return driver

    return put


@pytest.fixture(autouse=not torch.cuda.is_available())
def uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch know a GPU."""
    properties = type("Properties", (), {"uuid": UUID})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def test_readings_come_in_their_units(install: Install) -> None:
    driver = install(FakeDriver(ANSWERS))
    gpu = NvmlGpu(GPU)
    assert gpu.gauges() == {
        "gpu_utilization": 0.87,
        "gpu_memory_bytes": 20 * 2**30,
        "gpu_temperature_c": 64,
        "gpu_sm_clock_hz": 1.98e9,
        "gpu_power_w": 612.5,
    }
    assert gpu.joules() == 123_456_789.012
    # Want of power and of cooling; the others are no throttling.
    reasons = gpu.throttle_reasons()
    assert reasons is not None
    assert {name for name, applies in reasons.items() if applies} == {
        "sw_power_cap",
        "hw_thermal_slowdown",
    }
    assert driver.open == 1
    gpu.close()
    assert driver.open == 0


def test_a_process_of_another_program_is_seen(install: Install) -> None:
    install(FakeDriver(ANSWERS, processes=[os.getpid()]))
    assert NvmlGpu(GPU).foreign_processes() == set()
    install(FakeDriver(ANSWERS, processes=[os.getpid(), 2**22 + 1]))
    assert NvmlGpu(GPU).foreign_processes() == {f"pid {2**22 + 1}"}
    for processes in ([], [77]):  # hidden, or of another namespace
        install(FakeDriver(ANSWERS, processes=processes))
        assert NvmlGpu(GPU).foreign_processes() is None


@pytest.mark.parametrize("status", ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", None])
def test_what_is_refused_is_absent(install: Install, status: str | None) -> None:
    answers = dict.fromkeys(ANSWERS, Failing(getattr(pynvml, status))) if status else {}
    install(FakeDriver(answers))
    gpu = NvmlGpu(GPU)
    assert gpu.gauges() == {}
    assert (gpu.joules(), gpu.throttle_reasons(), gpu.foreign_processes()) == (None, None, None)


def test_what_fails_otherwise_raises(install: Install) -> None:
    install(
        FakeDriver({**ANSWERS, "nvmlDeviceGetPowerUsage": Failing(pynvml.NVML_ERROR_GPU_IS_LOST)})
    )
    with pytest.raises(pynvml.NVMLError, match="GPU is lost"):
        NvmlGpu(GPU).gauges()


def test_part_of_a_gpu_is_found_too(install: Install) -> None:
    install(FakeDriver(ANSWERS, uuid=f"MIG-{UUID}".encode()))
    assert NvmlGpu(GPU).joules() == 123_456_789.012


def test_a_device_that_it_does_not_know(install: Install) -> None:
    install(FakeDriver(ANSWERS, uuid=b"GPU-another"))
    with pytest.raises(pynvml.NVMLError, match="Not Found"):
        NvmlGpu(GPU)


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


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("1", 1)])
def test_those_that_the_profile_makes_visible_are_its_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert Profile(environment={"CUDA_VISIBLE_DEVICES": visible}).gpus == count


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert count_gpus() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_readings_of_a_real_gpu_are_plausible() -> None:
    torch.ones(2**28, device="cuda").sum().item()
    telemetry = telemetry_for(GPU, warmup=0)
    with telemetry:
        telemetry.begin_segment()
        end = time.monotonic() + 3.5
        matrix = torch.randn(4096, 4096, device="cuda")
        while time.monotonic() < end:
            (matrix @ matrix).sum().item()
        telemetry.end_segment(100)
    report = telemetry.report()
    means = {name: float(np.nanmean(series)) for name, series in report.readings.items()}
    assert means["gpu_memory_bytes"] > 2**30
    assert 0 < means["gpu_utilization"] <= 1
    assert 10 < means["gpu_temperature_c"] < 110
    assert 1e8 < means["gpu_sm_clock_hz"] < 5e9
    assert 10 < means["gpu_power_w"] < 2000
    assert report.joules
    assert 0.5 < report.joules / (means["gpu_power_w"] * report.seconds) < 2
