"""Reads the telemetry of a trial's ranks: means over the ranks, the worst rank, or the sum.

A number of telemetry is that of the whole trial or of none: if one rank could not read it, it is
None, because a mean over the other ranks would pass for the mean over all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from harness.records.record import Record, Telemetry

T = TypeVar("T")


def mean_reading(reading: str) -> Callable[[Record], float | None]:
    """Return a function that reads the mean of a sampled reading: over samples, then over ranks.

    `reading` is a key of `Telemetry.readings`, whose name ends with its unit.
    """

    def read(telemetry: Telemetry) -> float | None:
        series = telemetry.readings.get(reading)
        if series is None:
            return None
        values = series.unpack()
        if np.isnan(values).all():  # a sample that could not be read is NaN
            return None
        return float(np.nanmean(values, dtype=np.float64))

    return lambda record: _mean(_of_every_rank(record, read))


def mean_share(counter: str) -> Callable[[Record], float | None]:
    """Return a function that reads the mean over ranks of a counter that covers every step.

    `counter` is a key of `Telemetry.shares`.
    """
    return lambda record: _mean(
        _of_every_rank(record, lambda telemetry: telemetry.shares.get(counter))
    )


def throttled_shares(record: Record) -> dict[str, float]:
    """Return the share of samples in which a GPU was throttled, by reason, at its worst rank.

    One slow GPU slows all ranks down, so that a mean over ranks would hide it.
    """
    worst: dict[str, float] = {}
    for shares in _of_every_rank(record, lambda telemetry: telemetry.throttled):
        for reason, share in shares.items():
            worst[reason] = max(worst.get(reason, 0.0), share)
    return worst


def foreign_processes(record: Record) -> float | None:
    """Return the number of processes on a GPU that are not of the trial, at the rank with most.

    None where a driver does not list the processes, as in some containers.
    """
    processes = _of_every_rank(record, lambda telemetry: telemetry.foreign_processes)
    if not processes:
        return None
    return max(map(len, processes))


def joules_per_sample(record: Record) -> float | None:
    """Return the energy that all ranks' GPUs took for one sample of the global batch, in joules.

    A rank's joules are of the steps in segments that are long enough for its energy counter.
    """

    def joules_per_step(telemetry: Telemetry) -> float | None:
        if telemetry.joules is None:
            return None
        return telemetry.joules / telemetry.metered_steps

    joules = _of_every_rank(record, joules_per_step)
    if not joules:
        return None
    return sum(joules) / record.trial.cell.axes.batch_size


def _of_every_rank(record: Record, read: Callable[[Telemetry], T | None]) -> list[T]:
    """Return what `read` returns for each rank, or nothing if it is None for any of them."""
    values = []
    for rank in record.ranks:
        if rank.telemetry is None:
            return []
        value = read(rank.telemetry)
        if value is None:
            return []
        values.append(value)
    return values


def _mean(values: list[float]) -> float | None:
    """Return the mean, None without values."""
    if not values:
        return None
    return float(np.mean(values))
