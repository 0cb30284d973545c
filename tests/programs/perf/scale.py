"""Measures how commands grow with cells, trials, ranks and steps, on generated records.

    python -m tests.programs.perf.scale            four minutes, while nothing else should run
    python -m tests.programs.perf.scale --quick    a tenth of all sizes: whether all of it runs

No trial runs: records are made from a few that are consistent in themselves, and sealed as the
runner seals them. Each command is a process of its own, of which the wall time and the peak of its
resident memory are reported.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.launch.assemble import assemble
from harness.launch.ranks import how_ended
from harness.records.assignment import Assignment
from harness.records.files import write_rank_result, write_record
from harness.sweep.cell import Cell, Length, Trial
from harness.sweep.cluster import ValidityRules
from tests.factories import make_cell, make_record, write_spec_of
from tests.programs.perf.results import Benchmark, markdown
from tests.support.sweeps import write

SEEDS = 5
TRIALS = (100, 1000, 10_000)
CELLS = (1000, 10_000, 100_000)  # of sweeps that are planned
# Ranks and steps of trials whose records are assembled.
ASSEMBLIES = ((8, 10_000), (64, 10_000), (1024, 10_000), (64, 1000), (64, 100))
COMMANDS = (
    ("status", "scale"),
    ("show", "scale"),
    ("compare", "scale", "--effects"),
    ("report", "scale"),
)
# Delivering a trial to MLflow takes some hundredths of a second, a hundred times what reading it does.
MOST_COLLECTED = 1000  # trials, of which all deliveries take a minute

Costs = Mapping[str, str]  # what was measured -> the seconds and the memory that it took


def table(unit: str, sizes: Sequence[int], measure: Callable[[int], Costs]) -> str:
    """Return a table of what is measured at each size, and print it as it comes."""
    columns: dict[str, Costs] = {}
    for size in sizes:
        costs = columns[f"{size:,} {unit}"] = measure(size)
        for name, cost in costs.items():
            print(f"{name:48}{size:8,} {unit:8}{cost}", flush=True)
    rows = []
    for name in next(iter(columns.values())):
        rows.append({"": name} | {title: costs.get(name, "–") for title, costs in columns.items()})
    return markdown(rows)


def cost(began: float, usage: resource.struct_rusage) -> str:
    """Return the seconds since `began` and the peak of a process's memory."""
    return f"{time.perf_counter() - began:.2g} s, {usage.ru_maxrss / 1024:.0f} MiB"


def write_records(folder: SweepFolder, trials: Sequence[Trial]) -> None:
    """Leave the records of these trials, all of them done; half of the cells are slower.

    They are not flushed to the disk one by one, which would take longer than all else.
    """
    for trial in trials:
        step_seconds = 0.02 if trial.cell.axes.precision == "bf16" else 0.01
        record = make_record(trial.cell, seed=trial.seed, sweep="scale", step_seconds=step_seconds)
        trial_folder = folder.trial_folder(trial.id)
        trial_folder.path.mkdir(parents=True)
        write_record(trial_folder.record_path, record, durable=False)


def make_numbered_cell(number: int) -> Cell:
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


def run(results: Path, *arguments: str) -> str:
    """Run a command of the harness and return what it took; raises RuntimeError if it failed."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "--results", str(results), *arguments],
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
    return cost(began, usage)


def measure_trials(count: int) -> Costs:
    """Return what each command takes for so many trials of cells that differ in five axes."""
    trials = []
    for number in range(count):
        trials.append(Trial(cell=make_numbered_cell(number // SEEDS), seed=number % SEEDS))
    costs = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Results(Path(name)).sweep_folder("scale")
        write_records(folder, trials)
        write_spec_of(folder, "scale", trials)
        for command in COMMANDS:
            words = [word for word in command if word != "scale"]
            costs[f"`harness {' '.join(words)}`"] = run(Path(name), *command)
        if count <= MOST_COLLECTED:
            costs["`harness collect`"] = run(Path(name), "collect", "scale")
            costs["`harness collect`, again"] = run(Path(name), "collect", "scale")
    return costs


def measure_plan(count: int) -> Costs:
    """Return what `harness plan` takes for so many cells, a multiple of 100."""
    matrix = {
        "batch_size": [8 * (1 + number) for number in range(10)],
        "num_workers": list(range(10)),
        "lr": [round(1e-6 * (1 + number), 6) for number in range(count // 100)],
    }
    with tempfile.TemporaryDirectory() as name:
        sweep = write(Path(name), {"mlp": None}, matrix=matrix)
        return {"`harness plan`": run(Path(name), "plan", str(sweep))}


def assemble_record(ranks: int, steps: int) -> str:
    """Return what it takes to assemble and write the record of a trial, without making its ranks."""
    cell = make_cell(strategy="ddp", world_size=ranks, batch_size=ranks, steps=steps)
    cell = replace(cell, evaluate=Length(steps=steps))
    (rank,) = make_record(replace(cell, axes=make_cell().axes)).ranks
    with tempfile.TemporaryDirectory() as name:
        folder = TrialFolder(Path(name))
        for number in range(ranks):
            rank0 = rank.rank0 if number == 0 else None
            write_rank_result(folder.result_path(number), replace(rank, rank=number, rank0=rank0))
        assignment = Assignment(trial=Trial(cell=cell, seed=0, repeat=0), base_folder=".")
        began = time.perf_counter()
        ended = how_ended(folder, ranks, 1.7e9)
        record = assemble("scale", assignment, ended, ValidityRules())
        assert record.is_complete, record.failure
        write_record(folder.record_path, record)
        return cost(began, resource.getrusage(resource.RUSAGE_SELF))


def main() -> None:
    """Measure all, and leave the tables."""
    benchmark = Benchmark("scale", __doc__)
    divisor = 10 if benchmark.is_quick else 1
    tables = [table("trials", [count // divisor for count in TRIALS], measure_trials)]
    benchmark.probe()
    tables.append(table("cells", [count // divisor for count in CELLS], measure_plan))
    benchmark.probe()
    rows = []
    for ranks, steps in ASSEMBLIES:
        # In a process of its own, whose peak of memory counts.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            took = process.submit(assemble_record, ranks, steps // divisor).result()
        title = f"{ranks:,} ranks and {steps // divisor:,} steps"
        rows.append({"assembling the record of": title, "": took})
    benchmark.write("\n".join([*tables, markdown(rows)]))


if __name__ == "__main__":
    main()
