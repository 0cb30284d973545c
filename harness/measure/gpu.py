"""Reads one GPU through NVML: sensors, energy, throttling, and who computes on it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

# The clock event reasons of NVML that mean throttling: the GPU runs slower than it could for lack
# of power or of cooling. The other reasons are none: an idle GPU, and clocks that somebody has set
# (application clocks, sync boost, display clocks).
THROTTLING = {
    "sw_power_cap": "nvmlClocksEventReasonSwPowerCap",
    "hw_slowdown": "nvmlClocksEventReasonHwSlowdown",
    "sw_thermal_slowdown": "nvmlClocksEventReasonSwThermalSlowdown",
    "hw_thermal_slowdown": "nvmlClocksEventReasonHwThermalSlowdown",
    "hw_power_brake_slowdown": "nvmlClocksEventReasonHwPowerBrakeSlowdown",
}


class NvmlGpu:
    """A GPU, read by pynvml. Unsupported readings are absent or None; other problems raise."""

    def __init__(self, uuid: str) -> None:
        """Open the GPU with CUDA's `uuid`, which has no prefix.

        The index of a device would not do: NVML counts all GPUs of the machine, CUDA only those in
        CUDA_VISIBLE_DEVICES. Raises pynvml.NVMLError without NVML or such a GPU.
        """
        import pynvml  # loaded only where there is a GPU

        self.nvml: Any = pynvml
        self.nvml.nvmlInit()
        try:
            try:
                self.handle = self.nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            except (self.nvml.NVMLError_NotFound, self.nvml.NVMLError_InvalidArgument):
                self.handle = self.nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")  # a slice of one
        except pynvml.NVMLError:
            self.close()
            raise

    @staticmethod
    def of(device: torch.device) -> NvmlGpu:
        """Open the GPU that torch calls `device`."""
        return NvmlGpu(str(torch.cuda.get_device_properties(device).uuid))

    def gauges(self) -> dict[str, float]:
        """Return the present values of its sensors, as far as it reports them.

        - `gpu_utilization`: the share of the last sampling period in which a kernel ran
        - `gpu_memory_bytes`: memory in use, by any process
        - `gpu_temperature_c`, `gpu_sm_clock_hz`, `gpu_power_w`
        """
        readings: dict[str, float] = {}
        utilization = self._query("nvmlDeviceGetUtilizationRates")
        if utilization is not None:
            readings["gpu_utilization"] = utilization.gpu / 100
        memory = self._query("nvmlDeviceGetMemoryInfo")
        if memory is not None:
            readings["gpu_memory_bytes"] = float(memory.used)
        celsius = self.celsius()
        if celsius is not None:
            readings["gpu_temperature_c"] = celsius
        megahertz = self._query("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM)
        if megahertz is not None:
            readings["gpu_sm_clock_hz"] = megahertz * 1e6
        milliwatts = self._query("nvmlDeviceGetPowerUsage")
        if milliwatts is not None:
            readings["gpu_power_w"] = milliwatts / 1e3
        return readings

    def celsius(self) -> float | None:
        """Return its temperature in degrees Celsius, None if it does not report it."""
        celsius = self._query("nvmlDeviceGetTemperatureV", self.nvml.NVML_TEMPERATURE_GPU)
        if celsius is None:  # drivers before 570 know only the older function
            celsius = self._query("nvmlDeviceGetTemperature", self.nvml.NVML_TEMPERATURE_GPU)
        return None if celsius is None else float(celsius)

    def energy_millijoules(self) -> int | None:
        """Return a counter of the energy consumed so far; only differences of it mean something.

        GPUs before Volta do not count it.
        """
        counter: int | None = self._query("nvmlDeviceGetTotalEnergyConsumption")
        return counter

    def throttle_reasons(self) -> Collection[str] | None:
        """Return the keys of THROTTLING that apply now, None if the GPU does not report them."""
        bits: int | None = self._query("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535 know only the older name
            bits = self._query("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None:
            return None
        return {
            name for name, constant in THROTTLING.items() if bits & getattr(self.nvml, constant)
        }

    def compute_pids(self) -> Collection[int] | None:
        """Return the processes that NVML lists as computing on the GPU, not only drawing.

        In a container these may be the process ids of the host's namespace, or the list is empty.
        """
        processes = self._query("nvmlDeviceGetComputeRunningProcesses_v3")
        if processes is None:
            return None
        return {process.pid for process in processes}

    def close(self) -> None:
        """Shut NVML down; nothing is read afterwards."""
        self.nvml.nvmlShutdown()

    def _query(self, function: str, *arguments: Any) -> Any:
        """Call a function of NVML with this GPU's handle.

        Returns None where this GPU, driver, user or version of pynvml does not have it.
        """
        nvml = self.nvml
        if not hasattr(nvml, function):
            return None
        try:
            return getattr(nvml, function)(self.handle, *arguments)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_FunctionNotFound,
        ):
            return None
