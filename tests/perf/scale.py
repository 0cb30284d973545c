"""Measures how commands grow with cells, trials, ranks and steps, on generated records.

No trial runs: records are made from a few that are consistent in themselves, and sealed as the
runner seals them. Every command is a process of its own, of which the wall time and the peak of its
resident memory are reported.

python -m tests.perf.scale [--trials N ...] [--shapes RANKSxSTEPS ...]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.launch.assemble import assemble
from harness.records.assignment import Assignment
from harness.records.files import write_record
from harness.spec.cell import Cell, Length, Trial
from harness.spec.validity import ValidityRules
from tests.factories import make_cell, make_record, write_spec_of
from tests.perf.tracking import average, deliver_sweep

SEEDS = 5
SHAPES = [(8, 10_000), (64, 10_000), (1024, 10_000)]  # ranks and steps of a trial
COMMANDS = {
    "first command": ("status", "scale"),  # which reads every record and keeps the headers
    "status": ("status", "scale"),
    "show": ("show", "scale"),
    "compare": ("compare", "scale", "--by", "precision"),
    "effects": ("compare", "scale", "--effects"),
    "report": ("report", "scale"),
}
# Delivering a trial to MLflow takes some hundredths of a second, a hundred times what reading it does.
COLLECT = ("collect", "scale")
MOST_COLLECTED = 1000  # trials


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one command took."""

    seconds: float  # of wall time
    cpu_seconds: float
    mib: float  # the peak of the resident memory


def write_records(folder: SweepFolder, trials: int, *, seeds: int = SEEDS) -> list[Trial]:
    """Leave what a sweep of so many trials leaves, all of them done, and return them.

    Cells differ in five axes, and half of them are slower. The
    records of a cell and its seeds have other step times, losses and metrics; they are not flushed
    to the disk one by one, which would take longer than all else.
    """
    made = []
    for number in range(trials):
        cell = cell_of(number // seeds)
        record = make_record(
            cell, seed=number % seeds, sweep="scale", step_seconds=0.01 * (1 + number // seeds % 2)
        )
        trial_folder = folder.trial_folder(record.trial.id)
        trial_folder.path.mkdir(parents=True)
        write_record(trial_folder.record_path, record, durable=False)
        made.append(record.trial)
    write_spec_of(folder, "scale", made)
    return made


def cell_of(number: int) -> Cell:
    """Return one of any number of cells, as a matrix of five axes has them."""
    rest, precision = divmod(number, 2)
    rest, batch_size = divmod(rest, 8)
    rest, lr = divmod(rest, 5)
    num_threads, num_workers = divmod(rest, 5)
    return make_cell(
        precision=("fp32", "bf16")[precision],
        batch_size=8 * (1 + batch_size),
        lr=1e-4 * (1 + lr),
        num_workers=num_workers,
        num_threads=1 + num_threads,
    )


def measure(command: Sequence[str], results: Path) -> Cost:
    """Run a command of the harness and return what it took; raises RuntimeError if it failed."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *command, "--results", str(results)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # 1 and 3 are verdicts of a comparison, which says nothing on stderr.
    if process.returncode not in (0, 1, 3) or (process.returncode and errors):
        raise RuntimeError(errors.decode())
    return Cost(
        seconds=time.perf_counter() - began,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        mib=usage.ru_maxrss / 1024,
    )


def measure_trials(counts: Iterable[int]) -> dict[str, dict[int, Cost]]:
    """Return what each command takes by the number of trials."""
    costs: dict[str, dict[int, Cost]] = {name: {} for name in COMMANDS}
    for count in counts:
        with tempfile.TemporaryDirectory() as aside:
            results = Results(Path(aside))
            write_records(results.sweep_folder("scale"), count)
            for name, command in COMMANDS.items():
                costs[name][count] = measure(command, results.path)
                show(f"{name}, {count:,} trials", costs[name][count])
            if count <= MOST_COLLECTED:
                measure_collect(results, count)
    return costs


def measure_collect(results: Results, trials: int) -> None:
    """Print what it takes to deliver a recorded sweep, again, and one trial of a sweep that runs."""
    for name in ("collect", "collect again"):
        show(f"{name}, {trials:,} trials", measure(COLLECT, results.path))
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        delivery = process.submit(deliver_sweep, trials).result()
    trial = average(delivery.trials)
    cost = Cost(seconds=trial.wall, cpu_seconds=trial.cpu, mib=delivery.mib)
    show(f"delivery of 1 of {trials:,} trials", cost)


def show(title: str, cost: Cost) -> None:
    """Print one row."""
    print(
        f"{title:40}{cost.seconds:9.3f} s{cost.cpu_seconds:9.3f} CPU s{cost.mib:8.0f} MiB",
        flush=True,
    )


def measure_assembly(ranks: int, steps: int) -> Cost:
    """Return what it takes to assemble and write the record of a trial, without making its ranks.

    Memory is the peak of this process, so that the largest trial has to come last.
    """
    once = Length(steps=steps)
    cell = make_cell(strategy="ddp", world_size=ranks, batch_size=ranks, steps=steps)
    cell = replace(cell, evaluate=once)
    (rank,) = make_record(replace(cell, axes=make_cell().axes)).ranks
    with tempfile.TemporaryDirectory() as aside:
        folder = TrialFolder(Path(aside))
        for number in range(ranks):
            rank0 = rank.rank0 if number == 0 else None
            result = replace(rank, rank=number, rank0=rank0)
            write_record(folder.result_path(number), result, durable=False)
        assignment = Assignment(trial=Trial(cell=cell, seed=0, repeat=0), base_folder=".")
        wall, cpu = time.perf_counter(), time.process_time()
        record = assemble(
            folder, "scale", assignment, started=1.7e9, ended=1.7e9 + 60, previous_failures=(),
            ended_by=None, rules=ValidityRules(),
        )  # fmt: skip
        assert record.summary is not None, record.failure
        write_record(folder.record_path, record)
        return Cost(
            seconds=time.perf_counter() - wall,
            cpu_seconds=time.process_time() - cpu,
            mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


def _shape(text: str) -> tuple[int, int]:
    """Return the numbers of `1024x10000`."""
    ranks, _, steps = text.partition("x")
    return int(ranks), int(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--shapes", type=_shape, nargs="*", default=SHAPES, metavar="RANKSxSTEPS")
    options = parser.parse_args()
    for ranks, steps in options.shapes:
        show(f"assemble {ranks:,} ranks x {steps:,} steps", measure_assembly(ranks, steps))
    measure_trials(options.trials)


if __name__ == "__main__":
    main()
