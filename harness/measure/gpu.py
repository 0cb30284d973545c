"""One GPU as NVML sees it: readings, energy, why its clocks are held down, and who computes on it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import torch

# NVML's clocks-event reasons that say a GPU ran slower than it could: for want of power or of cooling. The others are
# no throttling: an idle GPU, and clocks that somebody set (application clocks, sync boost, display clocks).
THROTTLING = {
    "sw_power_cap": "nvmlClocksEventReasonSwPowerCap",
    "hw_slowdown": "nvmlClocksEventReasonHwSlowdown",
    "sw_thermal_slowdown": "nvmlClocksEventReasonSwThermalSlowdown",
    "hw_thermal_slowdown": "nvmlClocksEventReasonHwThermalSlowdown",
    "hw_power_brake_slowdown": "nvmlClocksEventReasonHwPowerBrakeSlowdown",
}


class Gpu(Protocol):
    """One device. What it can't tell is absent or None; whatever else goes wrong raises."""

    def gauges(self) -> dict[str, float]:
        """Of `gpu_utilization` (share of the time in which a kernel ran), `gpu_memory_bytes` (used, by anyone),
        `gpu_temperature_c`, `gpu_sm_clock_hz` and `gpu_power_w`, those that the device tells."""
        ...

    def energy_millijoules(self) -> int | None:
        """A cumulative counter in millijoules."""
        ...

    def throttle_reasons(self) -> Collection[str] | None:
        """The names in THROTTLING that hold now."""
        ...

    def compute_pids(self) -> Collection[int] | None:
        """The pids that NVML lists as computing on the device; those that only draw on it are left out.

        In a container they may be those of the host's namespace, or none at all.
        """
        ...

    def close(self) -> None:
        """Nothing is read afterwards."""


class NvmlGpu:
    """Through pynvml. Raises pynvml.NVMLError where there is no NVML or it knows no such device."""

    def __init__(self, uuid: str) -> None:
        """`uuid` is CUDA's, without a prefix: NVML numbers devices as CUDA_VISIBLE_DEVICES does not."""
        import pynvml  # here, because on the CPU nobody needs it

        self.nvml: Any = pynvml
        self.nvml.nvmlInit()
        try:
            self.handle = self._find(uuid)
        except pynvml.NVMLError:
            self.close()
            raise

    @staticmethod
    def of(device: torch.device) -> NvmlGpu:
        return NvmlGpu(str(torch.cuda.get_device_properties(device).uuid))

    def _find(self, uuid: str) -> Any:
        try:
            return self.nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except (self.nvml.NVMLError_NotFound, self.nvml.NVMLError_InvalidArgument):
            return self.nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")

    def gauges(self) -> dict[str, float]:
        nvml, ask = self.nvml, self._ask
        used, shares = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
        megahertz, milliwatts = (
            ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            ask("nvmlDeviceGetPowerUsage"),
        )
        celsius = ask("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU)
        if celsius is None:  # before driver 570
            celsius = ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        found = {
            "gpu_utilization": None if shares is None else shares.gpu / 100,
            "gpu_memory_bytes": None if used is None else used.used,
            "gpu_temperature_c": celsius,
            "gpu_sm_clock_hz": None if megahertz is None else megahertz * 1e6,
            "gpu_power_w": None if milliwatts is None else milliwatts / 1e3,
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def energy_millijoules(self) -> int | None:
        counter: int | None = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return counter

    def throttle_reasons(self) -> Collection[str] | None:
        bits: int | None = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # before driver 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return (
            None
            if bits is None
            else {name for name, bit in THROTTLING.items() if bits & getattr(self.nvml, bit)}
        )

    def compute_pids(self) -> Collection[int] | None:
        found = self._ask("nvmlDeviceGetComputeRunningProcesses_v3")
        return None if found is None else {process.pid for process in found}

    def close(self) -> None:
        self.nvml.nvmlShutdown()

    def _ask(self, name: str, *arguments: Any) -> Any:
        """None for what this device, driver, user or version of pynvml does not have."""
        nvml = self.nvml
        if not hasattr(nvml, name):
            return None
        try:
            return getattr(nvml, name)(self.handle, *arguments)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_FunctionNotFound,
        ):
            return None
