"""Measures what grows with the ranks of one trial, without training, by what ranks leave.

Heartbeats and results are written by the worker's own functions in a few processes, each for its
part of the ranks, and read by those that a runner calls. Each rank's result has the series of so
many steps.

    python -m tests.programs.perf.ranks [--ranks N ...] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.paths import TrialFolder, write_atomically
from harness.launch.assemble import assemble
from harness.launch.watchdog import LOOK_SECONDS, STALE_SECONDS, Watchdog
from harness.records.assignment import Assignment
from harness.records.files import write_record
from harness.records.record import RankResult
from harness.records.running import Heartbeat, heartbeat_seconds
from harness.spec.cell import Cell, Length, Trial
from harness.spec.validity import ValidityRules
from tests.factories import make_cell, make_record

PROCESSES = 8  # that play the ranks
TIMEOUT = 120.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one thing costs for a trial of so many ranks."""

    name: str
    seconds: float  # of wall time
    note: str  # how often it happens, and where


def share(ranks: int, part: int) -> range:
    """Return the ranks that one of the processes plays."""
    return range(part, ranks, PROCESSES)


def in_processes(target: Callable[..., None], *arguments: Any) -> float:
    """Run a function in all processes at once, and return the seconds that it took in all of them.

    It gets its number before the arguments, and a barrier that all processes pass before the time
    begins. Raises RuntimeError if one of them fails.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(PROCESSES + 1)
    processes = []
    for part in range(PROCESSES):
        process = context.Process(target=target, args=(part, barrier, *arguments))
        process.start()
        processes.append(process)
    barrier.wait(TIMEOUT)
    start = time.perf_counter()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"exit codes {[process.exitcode for process in processes]}")
    return time.perf_counter() - start


def write_heartbeats(part: int, barrier: Any, folder: TrialFolder, ranks: int) -> None:
    """Write one heartbeat of each rank of a share."""
    barrier.wait()
    for rank in share(ranks, part):
        beat = Heartbeat(
            rank=rank,
            host="node",
            pid=os.getpid(),
            created=1.0,
            step=7,
            in_step=True,
            position="m.f:1",
            at=time.time(),
        )
        path = folder.heartbeat_path(rank)
        write_atomically(path, json.dumps(asdict(beat)), durable=False)


def write_results(
    part: int, barrier: Any, folder: TrialFolder, ranks: int, result: RankResult
) -> None:
    """Write the result of each rank of a share, as a rank does when it ends."""
    barrier.wait()
    for rank in share(ranks, part):
        rank0 = result.rank0 if rank == 0 else None
        write_record(folder.result_path(rank), replace(result, rank=rank, rank0=rank0))


def measure_look(folder: TrialFolder, ranks: int) -> float:
    """Return the seconds of a look at a trial without progress: at every rank's heartbeat."""
    now = 0.0
    watchdog = Watchdog(folder, ranks, 1e6, clock=lambda: now)
    seconds = 0.0
    while now <= STALE_SECONDS:
        now += LOOK_SECONDS
        start = time.perf_counter()
        if watchdog.look() is not None:
            raise RuntimeError("ranks with fresh heartbeats were taken to hang")
        seconds = time.perf_counter() - start
    return seconds


def measure_assembly(folder: TrialFolder, cell: Cell) -> tuple[float, int, int]:
    """Return the seconds of assembling and writing a record, its bytes, and those of its columns."""
    assignment = Assignment(trial=Trial(cell=cell, seed=0, repeat=0), base_folder=".")
    results = sorted(folder.path.glob("rank*"))
    start = time.perf_counter()
    record = assemble(
        folder, "ranks", assignment, started=1.7e9, ended=1.7e9 + 60, previous_failures=(),
        ended_by=None, rules=ValidityRules(),
    )  # fmt: skip
    if record.failure is not None:
        raise RuntimeError(record.failure.message)
    write_record(folder.record_path, record)
    seconds = time.perf_counter() - start
    files = {path for path in folder.path.iterdir() if path.is_file()}
    columns = files - {folder.record_path, *results}
    return (
        seconds,
        folder.record_path.stat().st_size,
        sum(path.stat().st_size for path in columns),
    )


def measure(ranks: int, steps: int) -> list[Row]:
    """Return a row for each thing that grows with the ranks."""
    cell = make_cell(strategy="ddp", world_size=ranks, batch_size=ranks, steps=steps)
    cell = replace(cell, evaluate=Length(steps=steps))
    (result,) = make_record(replace(cell, axes=make_cell().axes)).ranks
    with tempfile.TemporaryDirectory() as aside:
        folder = TrialFolder(Path(aside))
        folder.heartbeat_folder.mkdir()
        beats = in_processes(write_heartbeats, folder, ranks)
        look = measure_look(folder, ranks)
        results = in_processes(write_results, folder, ranks, result)
        assembly, header, columns = measure_assembly(folder, cell)
    period = heartbeat_seconds(ranks)
    return [
        Row(name="heartbeats", seconds=beats, note=f"every {period:g} s, a file a rank"),
        Row(
            name="look",
            seconds=look,
            note=f"every {max(LOOK_SECONDS, period / 2):g} s without progress, in the runner",
        ),
        Row(name="results", seconds=results, note="once, two files a rank"),
        Row(
            name="assemble",
            seconds=assembly,
            note=f"once: header {header / 1e3:.0f} kB, columns {columns / 1e6:.1f} MB",
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each number of ranks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024])
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args(arguments)
    for ranks in options.ranks:
        for row in measure(ranks, options.steps):
            print(f"{ranks:6} {row.name:12}{row.seconds:8.3f} s  {row.note}", flush=True)


if __name__ == "__main__":
    main()
