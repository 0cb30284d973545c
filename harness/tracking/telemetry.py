"""What MLflow is to show of a trial's telemetry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.records.record import RankResult, Telemetry

MIB, MHZ = 2.0**20, 1e6
SHOWN = {  # reading -> metric, and what to divide by
    "gpu_utilization": ("gpu_utilization", 1.0),
    "gpu_memory_bytes": ("gpu_memory_mib", MIB),
    "gpu_temperature_c": ("gpu_temperature_c", 1.0),
    "gpu_sm_clock_hz": ("gpu_sm_clock_mhz", MHZ),
    "gpu_power_w": ("gpu_power_w", 1.0),
    "cpu_frequency_hz": ("cpu_frequency_mhz", MHZ),
    "load_per_core": ("load_per_core", 1.0),
}


def telemetry_scalars(ranks: Sequence[RankResult], batch_size: int) -> dict[str, float]:
    """Means over samples and then over ranks, `gpu_throttled_share` by reason at the rank that had most, and the
    energy of all ranks' GPUs. `batch_size` is the global one. What is not known of every rank has no metric."""
    found = [rank.telemetry for rank in ranks if rank.telemetry]
    if not found or len(found) < len(ranks):
        return {}
    means = [_means(one) for one in found]
    metrics = {
        name: float(np.mean([mean[name] for mean in means]))
        for name in means[0]
        if _known(name, means)
    }
    throttled = [one.throttled for one in found if one.throttled is not None]
    if len(throttled) == len(found):
        reasons = {
            reason: max(one.get(reason, 0.0) for one in throttled)
            for one in throttled
            for reason in one
        }
        metrics |= {f"gpu_throttled_share.{reason}": share for reason, share in reasons.items()}
    foreign = [one.foreign_processes for one in found if one.foreign_processes is not None]
    if len(foreign) == len(found):
        metrics["gpu_foreign_processes"] = max(len(one) for one in foreign)
    joules = [one.joules / one.metered_steps for one in found if one.joules is not None]
    if len(joules) == len(found):
        metrics["joules_per_sample"] = sum(joules) / batch_size
    return metrics


def _means(telemetry: Telemetry) -> dict[str, float]:
    found = dict(telemetry.shares)
    for reading, series in telemetry.readings.items():
        values = series.unpack()
        if reading in SHOWN and not np.isnan(values).all():
            name, unit = SHOWN[reading]
            found[name] = float(np.nanmean(values, dtype=np.float64)) / unit
    return found


def _known(name: str, means: Sequence[dict[str, float]]) -> bool:
    return all(name in mean for mean in means)
