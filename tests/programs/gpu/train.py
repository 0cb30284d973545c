"""Trains one cell as a rank does, in this process, and leaves its record and its figures."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.paths import TrialFolder
from harness.core.ports import free_port
from harness.launch.assemble import assemble
from harness.launch.ranks import how_ended
from harness.records.assignment import Assignment, write_assignment
from harness.records.files import write_record
from harness.records.numbers import RATE, final_name
from harness.records.record import Record
from harness.sweep.axes import Axes
from harness.sweep.cell import Cell, Length, Trial, WorkloadRef
from harness.sweep.cluster import ValidityRules
from harness.training import worker
from tests.programs.gpu.arguments import leave, parser
from tests.programs.gpu.peaks import read_machine

DATA: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"source": "digits"},
    "cnn": {"source": "digits"},
    "distilbert": {"source": "tickets", "rows": 20_000},
}


def make_cell(
    workload: str,
    steps: int,
    axes: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> Cell:
    """Return a cell of a built-in workload that is evaluated once, at its end."""
    settings = {f"options.{name}": value for name, value in (options or {}).items()}
    settings.update({f"data.{name}": value for name, value in DATA[workload].items()})
    identity = {"uses": workload, "settings": settings, "files": None}
    return Cell(
        workload=WorkloadRef(label=workload, uses=workload, identity=identity, settings=settings),
        axes=Axes.of(axes),
        length=Length(steps=steps),
        evaluate=Length(steps=steps),
        warmup=min(10, steps // 2),
    )


def train(cell: Cell, folder: Path, device: Any) -> Record:
    """Train a cell and return its record, which is in the folder too.

    Raises RuntimeError with the failure of a trial that is not done.
    """
    # One rank finds itself here where its strategy has a process group.
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(free_port())
    folder.mkdir(parents=True, exist_ok=True)
    trial_folder = TrialFolder(folder)
    trial = Trial(cell=cell, seed=0)
    assignment = Assignment(trial=trial, base_folder=str(folder), device=device)
    write_assignment(trial_folder.assignment_path, assignment)
    started = time.time()
    worker.main([str(folder)])
    ended = how_ended(trial_folder, 1, started)
    peaks = read_machine(folder.parent.parent)
    record = assemble("gpu", assignment, ended, ValidityRules(), peaks=peaks)
    write_record(trial_folder.record_path, record)
    if record.failure is not None:
        raise RuntimeError(f"{record.failure.kind}: {record.failure.message}")
    return record


def figures_of(record: Record) -> dict[str, Any]:
    """Return what a record measured, by name and unit; what it did not measure is left out."""
    rank0, numbers = record.rank0, record.numbers
    assert rank0 is not None
    figures: dict[str, Any] = {
        "samples/s": numbers.get(RATE),
        "step ms": numbers.get("step_time_p50_ms"),
        rank0.target.name: numbers.get(final_name(rank0.target.name)),
        "MFU": numbers.get("mfu"),
        "MFU of the measured peak": numbers.get("mfu_measured"),
        "compile s": record.phases.get("compile"),
        "lowest clock MHz": numbers.get("gpu_sm_clock_lowest_mhz"),
        "highest clock MHz": numbers.get("gpu_sm_clock_highest_mhz"),
    }
    for name, amount in record.numbers.items():
        if name.startswith("memory_"):
            figures[name] = amount
    return {name: value for name, value in figures.items() if value is not None}


def main() -> int:
    """Train, leave the figures, and return the exit code: 1 where equal runs differ."""
    arguments = parser()
    arguments.add_argument("--cell", type=json.loads, required=True)
    arguments.add_argument("--times", type=int, default=1)
    options = arguments.parse_args()
    cell = make_cell(**options.cell)
    digests = []
    for number in range(options.times):
        record = train(cell, options.folder / f"trial{number}", options.device)
        assert record.rank0 is not None
        digests.append(record.rank0.parameter_digest)
    leave(options.folder, figures_of(record))
    if len(set(digests)) > 1:
        print(f"parameters: found {digests}; allowed: the same in all runs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
