"""Seconds an epoch of the MLP and the CNN in four trainings: `python -m tests.programs.perf.tables`.

They are a textbook's loop, the harness, the harness with torch.compile, and JAX with `jax.jit`, which
needs the extra `jax`. All of them train the same model without dropout, from the same parameters,
with the same optimizer, schedule and batch size; all but the textbook's loop, which shuffles by
itself, have the same batches in the same order, and must compute the same losses.

They take turns, forth and back (ABCD DCBA), in one process on one core with one thread each, so that drift of
the machine affects all alike.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from harness.core.cores import usable_cores
from harness.records.assignment import Assignment
from harness.statistics.interval import geometric_mean_interval
from harness.training.entry import load_workload
from harness.training.ranks import Ranks
from tests.programs.perf.comparison import format_interval, ratio_of
from tests.programs.perf.jax_loop import JaxLoop
from tests.programs.perf.loops import Harness, Textbook
from tests.programs.perf.overhead import IMAGES, make_assignments
from tests.programs.perf.race import Race
from tests.programs.perf.results import Benchmark, Row, markdown
from workloads.base import load_splits

PLANNED_STEPS = 50_000  # for which learning-rate schedules are made; more than are ever trained
WINDOWS = 20  # of each training
# The steps whose losses must agree, and by how much they may differ, as a share. The
# difference doubles every few steps, as each begins with the rounded parameters of the last.
COMPARED_STEPS = 20
LOSS_TOLERANCE = 1e-3
TEXTBOOK, EAGER, COMPILED, JAX = "textbook loop", "harness", "harness, compiled", "JAX, jit"

EpochSeconds = Mapping[str, Sequence[float]]  # of each window, by the name of the training


def measure(eager: Assignment, compiled: Assignment, folder: Path, windows: int) -> EpochSeconds:
    """Return what epochs take; raises RuntimeError if trainings computed other losses."""
    ranks = Ranks.from_environment()
    race = Race(
        {
            TEXTBOOK: lambda: Textbook(eager.trial, load_workload(eager)),
            EAGER: lambda: Harness(eager, folder / eager.trial.id, ranks),
            COMPILED: lambda: Harness(compiled, folder / compiled.trial.id, ranks),
            JAX: lambda: JaxLoop(eager),
        }
    )
    steps = race.run(windows)
    reference = race.loops[EAGER].losses[:COMPARED_STEPS]
    for name in (COMPILED, JAX):
        losses = race.loops[name].losses[:COMPARED_STEPS]
        if not np.allclose(losses, reference, rtol=LOSS_TOLERANCE, atol=0):
            raise RuntimeError(f"{name} computed other losses: {losses}; harness: {reference}")
    samples = len(load_splits(load_workload(eager)).train)
    windows_per_epoch = (samples // eager.trial.cell.axes.batch_size) / steps
    epoch_seconds = {}
    for name, seconds in race.seconds.items():
        epoch_seconds[name] = [window * windows_per_epoch for window in seconds]
    return epoch_seconds


def seconds_row(workload: str, seconds: EpochSeconds) -> Row:
    """Return the seconds that an epoch takes in each training."""
    row = {"seconds an epoch": workload}
    for name, of_windows in seconds.items():
        row[name] = format_interval(geometric_mean_interval(of_windows))
    return row


def ratio_row(workload: str, seconds: EpochSeconds) -> Row:
    """Return how many times as fast as the textbook's loop each other training is."""
    row = {f"times as fast as the {TEXTBOOK}": workload}
    for name in (EAGER, COMPILED, JAX):
        row[name] = format_interval(ratio_of(seconds[name], seconds[TEXTBOOK]))
    return row


def main() -> None:
    """Leave the tables."""
    benchmark = Benchmark("tables", __doc__)
    # Before JAX starts, which makes as many threads as it may use cores.
    os.sched_setaffinity(0, {max(usable_cores())})
    torch.set_num_threads(1)
    windows = 2 if benchmark.is_quick else WINDOWS
    seconds_rows, ratio_rows = [], []
    for workload in ("mlp", "cnn"):
        entry = {"data": IMAGES, "options": {"dropout": 0.0}}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            eager, compiled = make_assignments(
                folder, {workload: entry}, PLANNED_STEPS, execution=["eager", "compile"]
            )
            seconds = measure(eager, compiled, folder, windows)
        seconds_rows.append(seconds_row(workload, seconds))
        ratio_rows.append(ratio_row(workload, seconds))
        benchmark.probe()
    explained = (
        f"Geometric means of {windows} windows with 95% intervals; ratios are paired by window."
        " Batch size 64, Adam, no dropout, one core."
    )
    benchmark.write(f"{markdown(seconds_rows)}\n{markdown(ratio_rows)}\n{explained}")


if __name__ == "__main__":
    main()
