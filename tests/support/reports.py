"""A sweep that has run, with all that a report can show of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.paths import Results
from harness.launch.sweep import write_spec
from harness.records.record import Failure, Record
from harness.spec.sweep import Sweep
from tests.factories import make_record, write_trial
from tests.support.sweeps import load

HOSTILE = "</pre></style><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
STRATEGIES = {"strategy": ["single", "ddp"], "world_size": [1, 2]}


def make_sweep(folder: Path, *, seeds: int = 3, label: str = "mlp", **keys: Any) -> Sweep:
    """Two precisions by two strategies of a small MLP."""
    return load(
        folder,
        {label: {"uses": "mlp", "data": {"source": "digits"}}},
        seeds=list(range(seeds)),
        length={"steps": 60},
        matrix={"precision": ["fp32", "bf16"]},
        zip=[STRATEGIES],
        **keys,
    )


def make_records(sweep: Sweep, *, hostile: bool = False) -> list[Record]:
    """Every cell twice as fast as the one before it; if hostile, the last trial failed with words of an attacker."""
    place = {cell.id: number for number, cell in enumerate(sweep.cells)}
    found = [
        make_record(
            trial.cell,
            seed=trial.seed,
            sweep=sweep.name,
            step_seconds=0.1 / 2 ** place[trial.cell.id],
            started=1_700_000_000.0 + 100 * number,
        )
        for number, trial in enumerate(sweep.trials())
    ]
    if hostile:
        failure = Failure(
            kind="Error",
            message=HOSTILE,
            rank=0,
            host=HOSTILE,
            log="logs/rank0.log",
            traceback=HOSTILE,
        )
        last = found[-1]
        found[-1] = make_record(
            last.trial.cell, seed=last.trial.seed, status="failed", failure=failure
        )
        found[-1] = replace(found[-1], sweep=sweep.name)
    return found


def leave(results: Results, sweep: Sweep, records: list[Record], *, logs: str = "") -> None:
    """What a run leaves on disk."""
    folder = results.sweep_folder(sweep.name)
    for record in records:
        write_trial(folder, record, logs=logs)
    write_spec(sweep, folder)
