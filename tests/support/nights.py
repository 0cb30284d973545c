"""Nights of a sweep that never ran: its records, each night with a commit, hardware and versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.core.paths import Results
from harness.housekeeping.archive import archive
from harness.records.code import Repository
from harness.records.record import Record
from harness.spec.cell import Cell
from tests.factories import BEGUN, make_cell, make_record, with_throughput, write_sweep

DAY = 86_400.0
NOISE = 0.003  # of a night, relative


def make_night(
    number: int,
    factor: float,
    *,
    cell: Cell | None = None,
    cpu: str = "Test CPU",
    torch: str = "2.13.0",
    drift: float = 1.0,
    commit: str = "",
    sweep: str = "nightly",
) -> list[Record]:
    """Return the two trials that a cell has in a night, for 1,000 samples/s times both factors.

    Without a `commit` the night has one of its own.
    """
    cell = cell or make_cell()
    rng = np.random.default_rng([number, len(cell.workload.label)])
    rate = 1000 * factor * drift * float(np.exp(NOISE * rng.standard_normal()))
    records = []
    for seed in (0, 1):
        started = BEGUN + DAY * number + 60 * seed
        record = with_throughput(make_record(cell, seed=seed, started=started, sweep=sweep), rate)
        assert record.environment is not None
        environment = record.environment
        environment = replace(
            environment,
            hardware=replace(environment.hardware, cpu=cpu),
            software=replace(environment.software, torch=torch),
            repository=Repository(commit=commit or f"{number:040x}", dirty=False),
        )
        records.append(replace(record, environment=environment))
    return records


def write_archives(folder: Path, nights: Sequence[Sequence[Record]]) -> None:
    """Leave an archive of each night, as `harness results archive` writes it."""
    folder.mkdir(exist_ok=True)
    for number, records in enumerate(nights):
        results = Results(folder / f"night-{number}")
        sweep_folder = results.sweep_folder(records[0].sweep)
        sweep_folder.path.mkdir(parents=True)
        write_sweep(sweep_folder, records)
        archive(sweep_folder, folder / f"nightly-{number:03}.tar.gz")
