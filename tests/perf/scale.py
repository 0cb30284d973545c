"""Measures how commands grow with cells, trials, ranks and steps, on generated records.

No trial runs: records are made from a few that are consistent in themselves, and sealed as the
runner seals them. Every command is a process of its own, of which the wall time and the peak of its
resident memory are reported.

python -m tests.perf.scale [--trials N ...] [--plot FILE.svg]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.paths import Results, SweepFolder
from harness.records.files import write_record
from harness.spec.cell import Cell, Trial
from tests.factories import make_cell, make_record, write_spec_of

SEEDS = 5
COMMANDS = {
    "status": ("status", "scale"),
    "show": ("show", "scale"),
    "compare": ("compare", "scale", "--by", "precision"),
    "report": ("report", "scale"),
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one command took."""

    seconds: float  # of wall time
    cpu_seconds: float
    mib: float  # the peak of the resident memory


def write_records(folder: SweepFolder, trials: int, *, seeds: int = SEEDS) -> list[Trial]:
    """Leave what a sweep of so many trials leaves, all of them done, and return them.

    Cells differ in batch size, precision and learning rate, and half of them are slower. The
    records of a cell and its seeds have other step times, losses and metrics; they are not flushed
    to the disk one by one, which would take longer than all else.
    """
    made = []
    written = []
    for number in range(trials):
        cell = cell_of(number // seeds)
        record = make_record(
            cell, seed=number % seeds, sweep="scale", step_seconds=0.01 * (1 + number // seeds % 2)
        )
        trial_folder = folder.trial_folder(record.trial.id)
        trial_folder.path.mkdir(parents=True)
        write_record(trial_folder.record_path, record, durable=False)
        made.append(record.trial)
        written.append(record.trial.cell)
    write_spec_of(folder, "scale", made)
    return made


def cell_of(number: int) -> Cell:
    """Return one of any number of cells."""
    precision = ("fp32", "bf16")[number % 2]
    return make_cell(
        batch_size=8 * (1 + number // 2 % 8), precision=precision, lr=1e-4 * (1 + number // 16)
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
    return costs


def show(title: str, cost: Cost) -> None:
    """Print one row."""
    print(
        f"{title:40}{cost.seconds:8.2f} s{cost.cpu_seconds:8.2f} CPU s{cost.mib:8.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    options = parser.parse_args()
    measure_trials(options.trials)


if __name__ == "__main__":
    main()
