"""What a cell's trials come to: the form in which records and baselines are held against each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.hardware.machine import machine_key
from harness.hardware.roofline import device_of
from harness.measure.summary import find_window, unpack
from harness.records.record import Record, Target
from harness.spec.cell import Cell
from harness.statistics.trace import batch_means, trace_mean

KEPT = 10  # block means at least that a trial keeps, where it has so many steps
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial that is done."""

    sweep: str
    seed: int
    repeat: int
    started: float  # seconds since the epoch
    ended: float
    throughput: float | None  # samples/s in the measured window; None if it was not measured
    relative_error: (
        float | None
    )  # its standard error as a fraction, by the steps of this trial alone
    settled: bool | None
    window_steps: int
    batch_seconds: Sequence[
        float
    ]  # seconds a step, of blocks of equal length one after the other in the window
    metric: float | None  # the target metric at the end
    parameter_digest: str
    order_digest: str | None


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell and its trials. `conditions` are what they ran under, hardware, code and software, each of them once."""

    cell: Cell
    target: Target | None
    conditions: Mapping[str, Sequence[str]]
    trials: Sequence[TrialResult]
    left_out: Mapping[str, int]  # trials that are not done, by status


def aggregate(records: Sequence[Record]) -> list[CellResult]:
    """The cells of some records in order of appearance, each with all its trials."""
    return join([of_trial(record) for record in records])


def join(parts: Sequence[CellResult]) -> list[CellResult]:
    """Parts of cells to whole ones, in order of appearance."""
    by_cell: dict[str, list[CellResult]] = {}
    for part in parts:
        by_cell.setdefault(part.cell.id, []).append(part)
    return [_joined(own) for own in by_cell.values()]


def _joined(parts: Sequence[CellResult]) -> CellResult:
    conditions: dict[str, dict[str, None]] = {}
    for part in parts:
        for kind, found in part.conditions.items():
            conditions.setdefault(kind, {}).update(dict.fromkeys(found))
    left_out: Counter[str] = Counter()
    for part in parts:
        left_out.update(part.left_out)
    return CellResult(
        cell=parts[0].cell,
        target=next((part.target for part in parts if part.target), None),
        conditions={kind: list(found) for kind, found in conditions.items()},
        trials=[trial for part in parts for trial in part.trials],
        left_out=dict(left_out),
    )


def of_trial(record: Record) -> CellResult:
    """What a single trial says of its cell."""
    done = record.status == "done"
    return CellResult(
        cell=record.trial.cell,
        target=record.rank0.target if done and record.rank0 else None,
        conditions={kind: [found] for kind, found in _conditions(record).items()} if done else {},
        trials=[_trial_result(record)] if done else [],
        left_out={} if done else {record.status: 1},
    )


def _trial_result(record: Record) -> TrialResult:
    assert record.summary is not None
    assert record.rank0 is not None
    seconds = window_seconds(record)
    found = trace_mean(seconds) if len(seconds) else None
    known = found is not None and bool(np.isfinite(found.standard_error))
    return TrialResult(
        sweep=record.sweep,
        seed=record.trial.seed,
        repeat=record.trial.repeat,
        started=record.started,
        ended=record.ended,
        throughput=record.summary.throughput,
        relative_error=rounded(float(found.standard_error / found.mean))
        if found is not None and known
        else None,
        settled=record.summary.settled,
        window_steps=record.summary.window_steps,
        batch_seconds=[rounded(float(value)) for value in batch_means(seconds, KEPT)]
        if len(seconds)
        else [],
        metric=record.summary.final_metric,
        parameter_digest=record.rank0.parameter_digest,
        order_digest=record.order_digest,
    )


def window_seconds(record: Record) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The measured steps of the rank that took longest for them, whose time throughput is counted over."""
    steps = np.stack([unpack(rank.step_seconds) for rank in record.ranks]).astype(np.float64)
    taken_up = [one.step for one in record.ranks[0].interruptions]
    inside = find_window(steps.max(axis=0), record.trial.cell.warmup, taken_up).mask
    spent: np.ndarray[Any, np.dtype[np.float64]] = steps[
        steps[:, inside].sum(axis=1).argmax(), inside
    ]
    return spent


def _conditions(record: Record) -> dict[str, str]:
    """In words that are the same for what is the same."""
    environment = record.rank0.environment if record.rank0 else {}
    hardware, software, code = (
        environment.get(name) or {} for name in ("hardware", "software", "harness")
    )
    versions = {
        "python": software.get("python"),
        "cuda": software.get("cuda"),
        "nccl": software.get("nccl"),
    }
    versions |= {"torch": software.get("torch"), **software.get("packages", {})}
    commit = str(code.get("commit") or "")[:12]
    words = [str(code.get("version", "")), commit, "with changes" if code.get("dirty") else ""]
    return {
        "hardware": machine_key(hardware, device_of(record)) if hardware else UNKNOWN,
        "code": " ".join(word for word in words if word) or UNKNOWN,
        "software": ", ".join(
            f"{name} {version}" for name, version in sorted(versions.items()) if version
        )
        or UNKNOWN,
    }


def rounded(value: float) -> float:
    """To six digits, so that files and pages read well."""
    return value if value == 0 else round(value, 5 - math.floor(math.log10(abs(value))))
