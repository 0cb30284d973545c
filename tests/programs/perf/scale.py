"""Measures how commands grow with cells, trials, ranks and steps, on generated records.

    python -m tests.programs.perf.scale            four minutes, while nothing else should run
    python -m tests.programs.perf.scale --quick    a tenth of all sizes: whether all of it runs

No trial runs: records are made from a few that are consistent in themselves, and sealed as the
runner seals them. Each command is a process of its own, of which the wall time and the peak of its
resident memory are reported.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.launch.assemble import assemble
from harness.launch.ranks import how_ended
from harness.records.assignment import Assignment
from harness.records.files import write_rank_result, write_record
from harness.sweep.cell import Cell, Length, Trial
from harness.sweep.cluster import ValidityRules
from harness.tracking import Tracker
from tests.factories import make_cell, make_record, write_spec_of
from tests.programs.perf.results import Watch, write_results

SEEDS = 5
TRIALS = (100, 1000, 10_000)
CELLS = (1000, 10_000, 100_000)  # of sweeps that are planned
RANKS = (8, 64, 1024)  # of trials with the most of STEPS
STEPS = (100, 1000, 10_000)
RANKS_OF_STEPS = 64
COMMANDS = (
    ("status", "scale"),
    ("show", "scale"),
    ("compare", "scale", "--by", "precision"),
    ("compare", "scale", "--effects"),
    ("report", "scale"),
)
# Delivering a trial to MLflow takes some hundredths of a second, a hundred times what reading it does.
MOST_COLLECTED = 1000  # trials, of which all deliveries take a minute
DELIVERED = 8  # trials that are delivered at once while a sweep runs
SWEEP = """\
name: scale
workloads: {{mlp: null}}
matrix:
  batch_size: {batch_sizes}
  num_workers: {num_workers}
  lr: {rates}
"""


@dataclass(frozen=True, kw_only=True)
class Point:
    """What something took at one size."""

    unit: str  # of the size, in the plural: trials, cells, ranks, steps
    name: str  # of what was measured
    size: int
    seconds: float  # of wall time
    mib: float  # the peak of the resident memory of its process


def tables(points: Sequence[Point]) -> str:
    """Return a table in Markdown for each unit, in wall seconds and MiB."""
    parts = []
    for unit in _distinct(point.unit for point in points):
        of_unit = [point for point in points if point.unit == unit]
        sizes = sorted({point.size for point in of_unit})
        by_size = {(point.name, point.size): point for point in of_unit}
        parts.append(f"| | {' | '.join(f'{size:,} {unit}' for size in sizes)} |")
        parts.append("| --- " * (1 + len(sizes)) + "|")
        for name in _distinct(point.name for point in of_unit):
            cells = [name]
            for size in sizes:
                point = by_size.get((name, size))
                cells.append(
                    "–" if point is None else f"{point.seconds:.2g} s, {point.mib:.0f} MiB"
                )
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)


def _distinct(texts: Iterable[str]) -> list[str]:
    """Return each text once, in order of appearance."""
    return list(dict.fromkeys(texts))


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


def trials_of(count: int) -> list[Trial]:
    """Return so many trials of cells that differ in five axes."""
    return [Trial(cell=_cell(number // SEEDS), seed=number % SEEDS) for number in range(count)]


def _cell(number: int) -> Cell:
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


def measure(unit: str, size: int, *arguments: str, aside: str | Path) -> Point:
    """Run a command of the harness and return what it took; raises RuntimeError if it failed."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "--results", str(aside), *arguments],
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
    seconds = time.perf_counter() - began
    words = [word for word in arguments if word != "scale" and "/" not in word]
    name = f"`harness {' '.join(words)}`"
    return Point(unit=unit, name=name, size=size, seconds=seconds, mib=usage.ru_maxrss / 1024)


def measure_trials(counts: Sequence[int]) -> Iterator[Point]:
    """Yield what each command takes by the number of trials, and deliveries while a sweep runs."""
    for count in counts:
        with tempfile.TemporaryDirectory() as aside:
            folder = Results(Path(aside)).sweep_folder("scale")
            trials = trials_of(count)
            write_records(folder, trials)
            write_spec_of(folder, "scale", trials)
            for command in COMMANDS:
                yield measure("trials", count, *command, aside=aside)
            if count > MOST_COLLECTED:
                continue
            yield measure("trials", count, "collect", "scale", aside=aside)
            again = measure("trials", count, "collect", "scale", aside=aside)
            yield replace(again, name=f"{again.name}, again")
        yield in_own_process(measure_deliveries, count)


def measure_deliveries(count: int) -> Point:
    """Return what a trial's delivery takes while a sweep of so many trials runs."""
    with tempfile.TemporaryDirectory() as aside:
        results = Results(Path(aside))
        folder = results.sweep_folder("scale")
        folder.path.mkdir(parents=True)
        trials = trials_of(count)
        write_spec_of(folder, "scale", trials)
        tracker = Tracker(results)
        tracker.prepare()
        seconds = 0.0
        for start in range(0, count - 1, DELIVERED):  # the last trial brings all verdicts
            batch = trials[start : min(start + DELIVERED, count - 1)]
            write_records(folder, batch)
            began = time.perf_counter()
            tracker.deliver_trials(folder, [trial.id for trial in batch])
            seconds += time.perf_counter() - began
    name = "delivery of a trial while a sweep runs"
    return Point(unit="trials", name=name, size=count, seconds=seconds / count, mib=peak_mib())


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
            yield measure("cells", count, "plan", str(sweep), aside=aside)


def measure_assemblies(ranks: Sequence[int], steps: Sequence[int]) -> Iterator[Point]:
    """Yield what assembling the record of a trial takes by its ranks, then by its steps."""
    for count in ranks:
        yield in_own_process(measure_assembly, "ranks", count, max(steps))
    for count in steps:
        yield in_own_process(measure_assembly, "steps", RANKS_OF_STEPS, count)


def in_own_process(function: Callable[..., Point], *arguments: object) -> Point:
    """Call a function in a process of its own, whose peak of memory it reports."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def measure_assembly(unit: str, ranks: int, steps: int) -> Point:
    """Return what it takes to assemble and write the record of a trial, without making its ranks."""
    cell = make_cell(strategy="ddp", world_size=ranks, batch_size=ranks, steps=steps)
    cell = replace(cell, evaluate=Length(steps=steps))
    (rank,) = make_record(replace(cell, axes=make_cell().axes)).ranks
    with tempfile.TemporaryDirectory() as aside:
        folder = TrialFolder(Path(aside))
        for number in range(ranks):
            rank0 = rank.rank0 if number == 0 else None
            write_rank_result(folder.result_path(number), replace(rank, rank=number, rank0=rank0))
        assignment = Assignment(trial=Trial(cell=cell, seed=0, repeat=0), base_folder=".")
        began = time.perf_counter()
        ended = how_ended(folder, ranks, 1.7e9)
        record = assemble("scale", assignment, ended, ValidityRules())
        assert record.is_complete, record.failure
        write_record(folder.record_path, record)
        seconds = time.perf_counter() - began
    what = f"{steps:,} steps" if unit == "ranks" else f"{ranks} ranks"
    size = ranks if unit == "ranks" else steps
    name = f"assembling the record of {what}"
    return Point(unit=unit, name=name, size=size, seconds=seconds, mib=peak_mib())


def peak_mib() -> float:
    """Return the peak of this process's resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure all, print it, and leave figures and tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.scale", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="try whether all of it runs")
    is_quick = parser.parse_args().quick
    divisor = 10 if is_quick else 1
    points: list[Point] = []
    watch = Watch()
    for measured in (
        measure_trials([count // divisor for count in TRIALS]),
        measure_plans([count // divisor for count in CELLS]),
        measure_assemblies(
            [count // divisor or 1 for count in RANKS], [count // divisor for count in STEPS]
        ),
    ):
        for point in measured:
            took = f"{point.seconds:9.3f} s{point.mib:8.0f} MiB"
            print(f"{point.name:48}{point.size:8,} {point.unit:8}{took}", flush=True)
            points.append(point)
        watch.probe()
    figures = {"points": [asdict(point) for point in points]}
    write_results("scale", figures, tables(points), watch, is_quick=is_quick)


if __name__ == "__main__":
    main()
