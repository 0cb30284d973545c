"""A sweep that has run, with all that a report can show of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.paths import Results
from harness.records.record import Failure, Record
from harness.records.store import write_spec
from harness.sweep.sweep import Sweep
from tests.factories import BEGUN, make_record, write_trial
from tests.support.sweeps import load

# A text that takes over the title of a page which does not escape it.
HOSTILE = (
    "</pre></style><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\">"
)
STRATEGIES = {"strategy": ["single", "ddp"], "world_size": [1, 2]}


def make_sweep(folder: Path, *, seeds: int = 3, **keys: Any) -> Sweep:
    """Return a sweep of two precisions by two strategies of a small MLP."""
    return load(
        folder,
        seeds=list(range(seeds)),
        length={"steps": 60},
        matrix={"precision": ["fp32", "bf16"]},
        zip=[STRATEGIES],
        **keys,
    )


def make_records(sweep: Sweep, *, hostile: bool = False) -> list[Record]:
    """Return a record for each trial, every cell twice as fast as the one before it.

    If `hostile`, the last trial has failed with an attacker's texts.
    """
    numbers = {cell.id: number for number, cell in enumerate(sweep.cells)}
    records = []
    for trial_number, trial in enumerate(sweep.trials()):
        record = make_record(
            trial.cell,
            seed=trial.seed,
            sweep=sweep.name,
            step_seconds=0.1 / 2 ** numbers[trial.cell.id],
            started=BEGUN + 100 * trial_number,
        )
        records.append(record)
    if hostile:
        records[-1] = failed(records[-1])
    return records


def failed(record: Record) -> Record:
    """Return the record of the same trial, failed with an attacker's texts."""
    log = "logs/rank0.log"
    failure = Failure(
        kind="Error", message=HOSTILE, rank=0, host=HOSTILE, log=log, traceback=HOSTILE
    )
    trial = record.trial
    return make_record(
        trial.cell, seed=trial.seed, sweep=record.sweep, status="failed", failure=failure
    )


def write_run(results: Results, sweep: Sweep, records: list[Record], *, logs: str = "") -> None:
    """Write what a run of the sweep leaves on disk; every log has the text `logs`."""
    folder = results.sweep_folder(sweep.name)
    for record in records:
        write_trial(folder, record, logs=logs)
    write_spec(sweep, folder)
