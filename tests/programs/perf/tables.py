"""Seconds an epoch of the MLP and the CNN in four trainings: `python -m tests.programs.perf.tables`.

They are a textbook's loop, the harness, the harness with torch.compile, and JAX with `jax.jit`, which
needs the extra `jax`. All of them train the same model without dropout, from the same parameters,
with the same optimizer, schedule and batch size; all but the textbook's loop, which shuffles by
itself, have the same batches in the same order, and must compute the same losses.

They take turns, forth and back (ABCD DCBA), on one core with one thread each, so that drift of the
machine affects all alike. JAX has a process of its own, which rests while it is not its turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from harness.core.cores import usable_cores
from harness.records.assignment import Assignment
from harness.records.environment import describe_hardware
from harness.statistics.interval import geometric_mean_interval
from harness.training.entry import load_workload
from harness.training.ranks import Ranks
from tests.programs.perf.comparison import format_interval, ratio_of
from tests.programs.perf.jax_loop import JaxLoop, largest_difference
from tests.programs.perf.loops import Harness, Textbook
from tests.programs.perf.overhead import DATA, images, make_assignments
from tests.programs.perf.race import Race
from workloads.base import load_splits

PLANNED_STEPS = 50_000  # for which learning-rate schedules are made; more than are ever trained
# The steps whose losses must agree, and by how much they may differ, as a share. In fp32 the
# difference doubles every few steps, as each begins with the rounded parameters of the last; in
# double precision it does not show (`tests/training/test_jax.py`).
COMPARED_STEPS = 20
LOSS_TOLERANCE = 1e-3
INSTALL = "pip install 'distributed-training-harness[jax]'"
TEXTBOOK, EAGER, COMPILED, JAX = "textbook loop", "harness", "harness, compiled", "JAX, jit"

EpochSeconds = Mapping[str, Sequence[float]]  # of each window, by the name of the training


def measure(eager: Assignment, compiled: Assignment, folder: Path, windows: int) -> EpochSeconds:
    """Return what epochs take; raises RuntimeError if trainings computed other losses."""
    ranks = Ranks.from_environment()
    cell = eager.trial.cell
    with JaxLoop(eager, folder / f"jax-{cell.workload.label}") as jax_loop:
        race = Race(
            {
                TEXTBOOK: lambda: Textbook(eager.trial, load_workload(eager)),
                EAGER: lambda: Harness(eager, folder / eager.trial.id, ranks),
                COMPILED: lambda: Harness(compiled, folder / compiled.trial.id, ranks),
                JAX: lambda: jax_loop,
            }
        )
        steps = race.run(windows)
        reference = race.loops[EAGER].losses[:COMPARED_STEPS]
        for name in (COMPILED, JAX):
            difference = largest_difference(race.loops[name].losses, reference)
            if not difference <= LOSS_TOLERANCE:
                raise RuntimeError(f"{name} computed other losses, by {difference:.1e}")
    samples = len(load_splits(load_workload(eager)).train)
    windows_per_epoch = (samples // cell.axes.batch_size) / steps
    epoch_seconds = {}
    for name, seconds in race.seconds.items():
        epoch_seconds[name] = [window * windows_per_epoch for window in seconds]
    return epoch_seconds


def print_row(title: str, texts: Sequence[str]) -> None:
    """Print a row of a table in Markdown."""
    print(f"| {title} | {' | '.join(texts)} |")


def print_tables(rows: Mapping[str, EpochSeconds]) -> None:
    """Print seconds an epoch by workload, and the speed beside the textbook's loop, as Markdown."""
    names = (TEXTBOOK, EAGER, COMPILED, JAX)
    print_row("seconds an epoch", names)
    print_row("---", ["---"] * len(names))
    for workload, seconds in rows.items():
        means = [format_interval(geometric_mean_interval(seconds[name])) for name in names]
        print_row(workload, means)
    print()
    print_row(f"times as fast as the {TEXTBOOK}", names[1:])
    print_row("---", ["---"] * len(names[1:]))
    for workload, seconds in rows.items():
        ratios = [ratio_of(seconds[name], seconds[TEXTBOOK]) for name in names[1:]]
        print_row(workload, [format_interval(ratio) for ratio in ratios])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.tables", description=__doc__
    )
    parser.add_argument("--data", type=Path, default=DATA, help="a folder of IDX files")
    parser.add_argument("--windows", type=int, default=20, help="of each training (default 20)")
    options = parser.parse_args()
    for package in ("jax", "optax"):
        if importlib.util.find_spec(package) is None:
            parser.error(f"found no package {package}; needed: {INSTALL}")
    # Before JAX starts, which makes as many threads as it may use cores.
    os.sched_setaffinity(0, {max(usable_cores())})
    torch.set_num_threads(1)
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for workload in ("mlp", "cnn"):
            entry = {"data": images(options.data), "options": {"dropout": 0.0}}
            eager, compiled = make_assignments(
                folder, {workload: entry}, PLANNED_STEPS, execution=["eager", "compile"]
            )
            rows[workload] = measure(eager, compiled, folder, options.windows)
    print_tables(rows)
    source = options.data.name if options.data else "digits"
    print(
        f"\nGeometric means of {options.windows} windows with 95% intervals; ratios are paired by window."
        f" Images of {source}, batch size 64, Adam, no dropout. torch {torch.__version__}, on one of"
        f" {os.cpu_count()} cores of {describe_hardware().cpu}, load {os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    main()
