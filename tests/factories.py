"""Records of trials that never ran, as real ones would be; for whatever reads records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from harness.core.paths import SweepFolder, TrialFolder
from harness.hardware.machine import Machine, Timing
from harness.launch import assemble
from harness.records import store
from harness.records.environment import Code, Environment, Hardware, Software
from harness.records.files import write_record
from harness.records.format import sealed_text
from harness.records.record import (
    Evaluation,
    Failure,
    Rank0Report,
    RankResult,
    Record,
    Status,
    StopOutcome,
    TargetMetric,
)
from harness.sweep.axes import Axes
from harness.sweep.cell import Cell, Length, Trial, WorkloadRef
from harness.training.order import join_digests

BEGUN = 1_700_000_000.0  # seconds since the epoch
PHASES = {"data_wait": 0.1, "forward": 0.4, "backward": 0.3, "optimizer": 0.2}  # shares of a step
ENVIRONMENT = Environment(
    software=Software(python="3.11.7", torch="2.13.0"),
    hardware=Hardware(cpu="Test CPU", usable_cores=2, gpus=[]),
    variables={"OMP_NUM_THREADS": "1"},
    code=Code(version="0.1.0", commit="c0ffee" * 6 + "c0ff", dirty=False),
)


def make_cell(
    label: str = "mlp", *, steps: int = 20, options: Mapping[str, Any] | None = None, **axes: Any
) -> Cell:
    """A cell of the workload `label`; `axes` are those that differ from eager fp32 on one rank."""
    options = {"hidden": [256, 128], "dropout": 0.2} if options is None else options
    settings = {f"options.{name}": value for name, value in options.items()}
    settings["data.source"] = "digits"
    return Cell(
        workload=WorkloadRef(
            label=label,
            uses=label,
            settings={**settings, "data.split_seed": 0},
            identity={"uses": label, "settings": settings, "files": None},
        ),
        axes=Axes.of({"batch_size": 64, **axes}),
        length=Length(steps=steps),
        evaluate=Length(steps=10),
        warmup=2,
    )


def make_record(
    cell: Cell | None = None,
    *,
    seed: int = 0,
    repeat: int = 0,
    status: Status = "done",
    sweep: str = "demo",
    started: float = BEGUN,
    attempt: int = 1,
    step_seconds: float = 0.01,
    failure: Failure | None = None,
    invalid: Sequence[str] = (),
) -> Record:
    """One trial's record: consistent in itself, and the same every time for the same arguments."""
    cell = cell or make_cell()
    trial = Trial(cell=cell, seed=seed, repeat=repeat)
    done = status in ("done", "invalid")
    if status == "invalid":
        invalid = invalid or ["1 of 20 steps took longer than ten others"]
    learned = _rank0_report(cell, seed, started, step_seconds)
    ranks = [
        _rank(rank, trial, started, step_seconds, learned if rank == 0 else None)
        for rank in range(cell.axes.world_size)
    ]
    if not done:
        failure = failure or Failure(
            kind="Interrupted" if status == "interrupted" else "ValueError",
            message="no such thing", rank=0, host="node1", log="logs/rank0.log",
            traceback="Traceback (most recent call last):\nValueError: no such thing\n", at=started + 5,
        )  # fmt: skip
        blank: Any = {"loss": None, "step_seconds": None, "step_phases": {}, "rank0": None}
        ranks = [replace(rank, environment=None, **blank) for rank in ranks]
        for number, rank in enumerate(ranks):
            if rank.rank == failure.rank:
                ranks[number] = replace(rank, failure=failure)
    record = Record(
        sweep=sweep,
        trial=trial,
        status=status,
        attempt=attempt,
        started=started,
        ended=started + 5.0 + step_seconds * _trained_steps(cell),
        failure=failure,
        violations=tuple(invalid),
        previous_failures=(),
        order_digest=join_digests([rank.order_sums for rank in ranks]) if done else None,
        load_ranks=lambda: ranks,
        rank0=learned if done else None,
        environment=ENVIRONMENT if done else None,
    )
    return with_ranks(record, ranks)


def with_ranks(record: Record, ranks: Sequence[RankResult] | None = None, **changes: Any) -> Record:
    """Return a record with these ranks, or its own, and changes, with the numbers that it then has."""
    return assemble.with_ranks(replace(record, **changes), ranks or record.ranks, {})


def same_loss(a: Record | RankResult, b: Record | RankResult) -> bool:
    """Return whether two trials, or ranks, had the same losses to the bit."""
    return np.asarray(a.loss).tobytes() == np.asarray(b.loss).tobytes()


def write_sweep(folder: SweepFolder, found: Sequence[Record], *, logs: str = "") -> None:
    """Leave in `folder` what a sweep with these records leaves."""
    for record in found:
        write_trial(folder, record, logs=logs)
    write_spec_of(folder, found[0].sweep, [record.trial for record in found])


def write_spec_of(folder: SweepFolder, name: str, trials: Sequence[Trial]) -> None:
    """Leave in `folder` the file of the sweep that asks for these trials."""
    cells = {trial.cell.id: trial.cell for trial in trials}
    spec = {
        "schema": store.SCHEMA,
        "name": name,
        "seeds": sorted({trial.seed for trial in trials}),
        "repeats": max(trial.repeat for trial in trials) + 1,
        "source": "demo.yaml",
        "timeout": 3600.0,
        "excluded": [],
        "unused_rules": [],
        "cells": [asdict(cell) for cell in cells.values()],
        "trials": [trial.id for trial in trials],
    }
    folder.spec_path.write_text(sealed_text(spec), encoding="utf-8")


def write_trial(folder: SweepFolder, record: Record, *, logs: str = "") -> None:
    """Leave what one trial leaves."""
    place = TrialFolder(folder.path / record.trial.id, record.attempt)
    write_record(place.record_path, record)
    place.launch_log.parent.mkdir(exist_ok=True)
    place.launch_log.write_text(f"launched\n{logs}", encoding="utf-8")
    for rank in record.ranks:
        place.rank_log(rank.rank).write_text(f"rank {rank.rank}\n{logs}", encoding="utf-8")


def _trained_steps(cell: Cell) -> int:
    """Return the steps of a trial; one with a rule for stopping ends halfway."""
    steps = cell.length.in_steps(10)
    return steps if cell.stop is None else steps // 2


def _rank(
    rank: int, trial: Trial, started: float, step_seconds: float, rank0: Rank0Report | None
) -> RankResult:
    steps = _trained_steps(trial.cell)
    rng = np.random.default_rng([trial.seed, trial.repeat, rank])
    seconds = step_seconds * rng.uniform(0.95, 1.05, steps)
    loss = 2.3 * np.exp(-np.arange(steps) / steps) + rng.normal(0, 0.01, steps)
    return RankResult(
        rank=rank,
        host="node1",
        entered_at=started + 2.0,
        loss=loss.astype(np.float32),
        step_seconds=seconds,
        step_phases={name: (seconds * share).astype(np.float32) for name, share in PHASES.items()},
        order_sums=(12345 + trial.seed, 67890 + rank),
        numbers={"memory_resident_mib": 300.0 + rank, "memory_training_mib": 100.0 + rank},
        phases={"build": 0.5, "train": float(seconds.sum())},
        rank0=rank0,
    )


def _rank0_report(cell: Cell, seed: int, started: float, step_seconds: float) -> Rank0Report:
    steps = _trained_steps(cell)
    every = cell.evaluate.in_steps(10)
    evaluations = [
        Evaluation(
            step=step,
            metrics=_metrics(step / steps, seed),
            seconds=0.05,
            started_at=started + 2.5 + step * (step_seconds + 0.05),
        )
        for step in sorted({*range(every, steps + 1, every), steps})
    ]
    stop = None
    if cell.stop is not None:
        evaluations = [replace(done, validation=done.metrics) for done in evaluations]
        stop = StopOutcome(reason="patience", step=steps)
    return Rank0Report(
        stop=stop,
        target=TargetMetric(name="accuracy", higher_is_better=True),
        steps_per_epoch=10,
        flops_per_sample=1_007_104.0,
        evaluations=tuple(evaluations),
        parameter_digest=f"{seed:064x}",
        training_began_at=started + 2.5,
        test_samples=60,
    )


def _metrics(progress: float, seed: int) -> dict[str, float]:
    accuracy = 0.9 * progress + 0.001 * seed
    return {"accuracy": accuracy, "macro_f1": accuracy - 0.01, "loss": 2.3 - 2 * progress}


def make_machine(**changes: Any) -> Machine:
    """Return the machine of the made records: 100 GFLOP/s in fp32, 10 GB/s."""

    def product(dtype: str, size: int, rate: float) -> Timing:
        best = 2 * size**3 / rate
        return Timing(call="matmul", dtype=dtype, size=size, seconds=[best * 1.1, best])

    best = 2 * 2**28 / 10e9
    found = Machine(
        device="cpu",
        measured_at=BEGUN,
        hardware=ENVIRONMENT.hardware,
        software=ENVIRONMENT.software,
        timings=[
            product("fp32", 256, 40e9),
            product("fp32", 512, 100e9),
            product("bf16", 512, 400e9),
            Timing(call="copy", dtype="bytes", size=2**28, seconds=[best, best * 1.2]),
        ],
    )
    return replace(found, **changes)
