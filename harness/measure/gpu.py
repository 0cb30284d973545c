"""Reads one GPU through NVML: sensors, energy, throttling, and who computes on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pynvml
import torch

from harness.measure.host import foreign_process

# The clock event reasons that mean throttling: the GPU runs slower than it could for lack of power or
# of cooling. The other reasons are none: an idle GPU, and clocks that somebody has set.
THROTTLING = {
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sw_thermal_slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal_slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake_slowdown": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
# Functions of a GPU's handle, by the reading; `gpu_utilization` is the share of the last sampling period
# in which a kernel ran. Temperature and throttle reasons have newer names, which older drivers lack.
SENSORS: dict[str, Callable[[Any], float]] = {
    "gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "gpu_memory_bytes": lambda gpu: float(pynvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "gpu_temperature_c": lambda gpu: float(
        pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)
    ),
    "gpu_sm_clock_hz": lambda gpu: 1e6 * pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
    "gpu_power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
}
# What this GPU, driver or user does not have; other errors are problems.
UNAVAILABLE = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_FunctionNotFound,
)


class NvmlGpu:
    """A GPU, read by pynvml. Unavailable readings are absent or None; other problems raise."""

    def __init__(self, device: torch.device) -> None:
        """Open the GPU that torch calls `device`, or the slice of one.

        By its UUID, as NVML counts all GPUs of the machine, CUDA only those in CUDA_VISIBLE_DEVICES.
        Raises pynvml.NVMLError without NVML or such a GPU.
        """
        uuid = torch.cuda.get_device_properties(device).uuid
        pynvml.nvmlInit()
        try:
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")

    def gauges(self) -> dict[str, float]:
        """Return the present values of its sensors, as far as it has them."""
        values = {name: self._query(read) for name, read in SENSORS.items()}
        return {name: value for name, value in values.items() if value is not None}

    def joules(self) -> float | None:
        """Return a counter of the energy consumed so far; only differences of it mean something.

        GPUs before Volta do not count it.
        """
        millijoules = self._query(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1e3

    def throttle_reasons(self) -> dict[str, bool] | None:
        """Return whether each of THROTTLING applies now, None if the GPU does not report them."""
        bits = self._query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        if bits is None:
            return None
        return {name: bool(bits & bit) for name, bit in THROTTLING.items()}

    def foreign_processes(self) -> set[str] | None:
        """Return the processes that compute here and are not of this trial, None if that is unknown.

        In a container, NVML may list the process ids of the host's namespace, or none. This process
        computes on the GPU: if its own id is not listed, the others cannot be trusted either.
        """
        processes = self._query(pynvml.nvmlDeviceGetComputeRunningProcesses) or []
        pids = {process.pid for process in processes}
        return set(filter(None, map(foreign_process, pids))) if os.getpid() in pids else None

    def close(self) -> None:
        """Shut NVML down; nothing is read afterwards."""
        pynvml.nvmlShutdown()

    def _query(self, read: Callable[[Any], Any]) -> Any:
        """Return what a function of the GPU's handle returns, None where that is unavailable."""
        try:
            return read(self.handle)
        except UNAVAILABLE:
            return None
