"""Measures how commands grow with cells, trials, ranks and steps, on generated records.

No trial runs: records are made from a few that are consistent in themselves, and sealed as the
runner seals them. Every command is a process of its own, of which the wall time and the peak of its
resident memory are reported.

    python -m tests.programs.perf.scale            four minutes, while nothing else should run
    python -m tests.programs.perf.scale --quick    a tenth of all sizes: whether all of it runs

Figures, tables and the plot are left in results/bench. A quick run leaves them in build/bench.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

from harness.core.paths import Results, SweepFolder, TrialFolder, write_atomically
from harness.launch.assemble import assemble
from harness.launch.ranks import how_ended
from harness.records.assignment import Assignment
from harness.records.files import write_rank_result, write_record
from harness.sweep.cell import Cell, Length, Trial
from harness.sweep.validity import ValidityRules
from tests.factories import make_cell, make_record, write_spec_of
from tests.programs.perf.growth import Cost, Point, draw, tables
from tests.programs.perf.results import FOLDER, Watch, write_results
from tests.programs.perf.tracking import average, deliver_sweep
from tests.support.tree import TOP

SEEDS = 5
TRIALS = (100, 1000, 10_000)
CELLS = (1000, 10_000, 100_000)  # of sweeps that are planned
RANKS = (8, 64, 1024)  # of trials with the most of STEPS
STEPS = (100, 1000, 10_000)
RANKS_OF_STEPS = 64
COMMANDS = {
    "`harness status`": ("status", "scale"),
    "`harness show`": ("show", "scale"),
    "`harness compare --by`": ("compare", "scale", "--by", "precision"),
    "`harness compare --effects`": ("compare", "scale", "--effects"),
    "`harness report`": ("report", "scale"),
}
# Delivering a trial to MLflow takes some hundredths of a second, a hundred times what reading it does.
COLLECT = ("collect", "scale")
MOST_COLLECTED = 1000  # trials, of which all deliveries take a minute
QUICK_FOLDER = TOP / "build" / "bench"
SWEEP = """\
name: scale
workloads: {{mlp: null}}
matrix:
  batch_size: {batch_sizes}
  num_workers: {num_workers}
  lr: {rates}
"""


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


def measure(*arguments: str | Path) -> Cost:
    """Run a command of the harness and return what it took; raises RuntimeError if it failed."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *map(str, arguments)],
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


def measure_trials(counts: Sequence[int]) -> Iterator[Point]:
    """Yield what each command takes by the number of trials."""
    for count in counts:
        with tempfile.TemporaryDirectory() as aside:
            results = Results(Path(aside))
            write_records(results.sweep_folder("scale"), count)
            for name, command in COMMANDS.items():
                cost = measure(*command, "--results", results.path)
                yield Point(unit="trials", name=name, size=count, cost=cost)
            if count <= MOST_COLLECTED:
                yield from measure_collect(results, count)
                yield from measure_deliveries(count)


def measure_collect(results: Results, trials: int) -> Iterator[Point]:
    """Yield what it takes to deliver a recorded sweep, and to do so again."""
    for name in ("`harness collect`", "`harness collect`, again"):
        cost = measure(*COLLECT, "--results", results.path)
        yield Point(unit="trials", name=name, size=trials, cost=cost)


def measure_deliveries(trials: int) -> Iterator[Point]:
    """Yield what a trial's delivery takes while a sweep runs, and what the last one of the sweep does."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        delivery = process.submit(deliver_sweep, trials).result()
    trial = average(delivery.trials)
    cost = Cost(seconds=trial.wall, cpu_seconds=trial.cpu, mib=delivery.running_mib)
    yield Point(
        unit="trials", name="delivery of a trial while a sweep runs", size=trials, cost=cost
    )
    calls = average(delivery.calls)
    cost = Cost(seconds=calls.wall, cpu_seconds=calls.cpu, mib=delivery.running_mib)
    name = "its `create_run`, `log_batch` and `set_terminated` alone"
    yield Point(unit="trials", name=name, size=trials, cost=cost)
    cost = Cost(seconds=delivery.end.wall, cpu_seconds=delivery.end.cpu, mib=delivery.mib)
    yield Point(unit="trials", name="the last delivery of a sweep", size=trials, cost=cost)


def measure_plans(counts: Sequence[int]) -> Iterator[Point]:
    """Yield what `harness plan` takes by the number of cells, which are multiples of 100."""
    for count in counts:
        rates = [f"{1e-6 * (1 + number):.6f}" for number in range(count // 100)]
        text = SWEEP.format(
            batch_sizes=[8 * (1 + number) for number in range(10)],
            num_workers=list(range(10)),
            rates=f"[{', '.join(rates)}]",
        )
        with tempfile.TemporaryDirectory() as aside:
            sweep = Path(aside) / "scale.yaml"
            sweep.write_text(text, encoding="utf-8")
            cost = measure("plan", sweep, "--results", aside)
        yield Point(unit="cells", name="`harness plan`", size=count, cost=cost)


def measure_assemblies(ranks: Sequence[int], steps: Sequence[int]) -> Iterator[Point]:
    """Yield what assembling the record of a trial takes by its ranks, then by its steps."""
    for count in ranks:
        cost = in_own_process(count, max(steps))
        name = f"assembling the record of {max(steps):,} steps"
        yield Point(unit="ranks", name=name, size=count, cost=cost)
    for count in steps:
        cost = in_own_process(RANKS_OF_STEPS, count)
        name = f"assembling the record of {RANKS_OF_STEPS} ranks"
        yield Point(unit="steps", name=name, size=count, cost=cost)


def in_own_process(ranks: int, steps: int) -> Cost:
    """Return what `measure_assembly` does in a process of its own, whose peak of memory it is."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(measure_assembly, ranks, steps).result()


def show(point: Point) -> None:
    """Print one row."""
    title = f"{point.plain_name}, {point.size:,} {point.unit}"
    cost = point.cost
    print(
        f"{title:56}{cost.seconds:9.3f} s{cost.cpu_seconds:9.3f} CPU s{cost.mib:8.0f} MiB",
        flush=True,
    )


def measure_assembly(ranks: int, steps: int) -> Cost:
    """Return what it takes to assemble and write the record of a trial, without making its ranks.

    Memory is the peak of this process, so that a process measures one trial.
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
            write_rank_result(folder.result_path(number), result)
        assignment = Assignment(trial=Trial(cell=cell, seed=0, repeat=0), base_folder=".")
        wall, cpu = time.perf_counter(), time.process_time()
        ended = how_ended(folder, ranks, 1.7e9)
        record = assemble("scale", assignment, ended, ValidityRules())
        assert record.summary is not None, record.failure
        write_record(folder.record_path, record)
        return Cost(
            seconds=time.perf_counter() - wall,
            cpu_seconds=time.process_time() - cpu,
            mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


def main() -> None:
    """Measure all, print it, and leave figures, tables and the plot."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.scale", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="try whether all of it runs")
    divisor = 10 if parser.parse_args().quick else 1
    folder = FOLDER if divisor == 1 else QUICK_FOLDER
    points: list[Point] = []
    with Watch() as watch:
        for measured in (
            measure_plans([count // divisor for count in CELLS]),
            measure_assemblies(
                [count // divisor or 1 for count in RANKS], [count // divisor for count in STEPS]
            ),
            measure_trials([count // divisor for count in TRIALS]),
        ):
            for point in measured:
                show(point)
                points.append(point)
            watch.probe()
    points.sort(key=lambda point: ("trials", "cells", "ranks", "steps").index(point.unit))
    conditions = watch.conditions()
    figures = {"points": [asdict(point) for point in points]}
    path = write_results("scale", figures, conditions, folder=folder)
    write_atomically(path.with_suffix(".md"), tables(points, conditions))
    draw(points, path.with_suffix(".png"))
    print(f"{path}, {path.with_suffix('.md').name} and {path.with_suffix('.png').name} have them.")


if __name__ == "__main__":
    main()
