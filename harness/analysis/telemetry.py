"""Reads the telemetry of all ranks of a trial as the header of its record has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.records.record import Record


def mean_reading(reading: str) -> Callable[[Record], float | None]:
    """Return a function that reads the mean of a sampled reading: over samples, then over ranks.

    `reading` is a key of `Telemetry.readings`, whose name ends with its unit.
    """

    def read(record: Record) -> float | None:
        telemetry = record.ranks.across.telemetry
        return None if telemetry is None else telemetry.readings.get(reading)

    return read


def mean_share(counter: str) -> Callable[[Record], float | None]:
    """Return a function that reads the mean over ranks of a counter that covers every step.

    `counter` is a key of `Telemetry.shares`.
    """

    def read(record: Record) -> float | None:
        telemetry = record.ranks.across.telemetry
        return None if telemetry is None else telemetry.shares.get(counter)

    return read


def throttled_shares(record: Record) -> Mapping[str, float]:
    """Return the share of samples in which a GPU was throttled, by reason, at its worst rank."""
    telemetry = record.ranks.across.telemetry
    return {} if telemetry is None else telemetry.throttled


def foreign_processes(record: Record) -> float | None:
    """Return the number of processes on a GPU that are not of the trial, at the rank with most.

    None where a driver does not list the processes, as in some containers.
    """
    telemetry = record.ranks.across.telemetry
    return None if telemetry is None else telemetry.foreign_processes


def joules_per_sample(record: Record) -> float | None:
    """Return the energy that all ranks' GPUs took for one sample of the global batch, in joules."""
    telemetry = record.ranks.across.telemetry
    if telemetry is None or telemetry.joules_per_step is None:
        return None
    return telemetry.joules_per_step / record.trial.cell.axes.batch_size
