"""Seconds an epoch of the MLP and the CNN in four trainings: `python -m tests.programs.perf.tables`.

They are a textbook's loop, the harness, the harness with torch.compile, and JAX with `jax.jit`, which
needs the extra `jax`. All of them train the same model without dropout, from the same parameters,
with the same optimizer, schedule and batch size; all but the textbook's loop, which shuffles by
itself, have the same batches in the same order, and must compute the same losses.

They take turns, in windows of at least half a second, forth and back (ABCD DCBA), on one core with
one thread each, so that drift of the machine affects all alike. JAX has a process of its own, which
rests while it is not its turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from harness.core.cores import usable_cores
from harness.records.assignment import Assignment
from harness.records.environment import describe_hardware
from harness.training.entry import load_workload
from harness.training.ranks import Ranks
from tests.programs.perf.jax_loop import JaxLoop, largest_difference
from tests.programs.perf.loops import Harness, Textbook
from tests.programs.perf.overhead import DATA
from tests.programs.perf.race import Race, estimate_ratio
from tests.support.sweeps import load
from workloads.base import load_splits

PLANNED_STEPS = 50_000  # for which learning-rate schedules are made; more than are ever trained
# The steps whose losses must agree, and by how much they may differ, as a share. In fp32 the
# difference doubles every few steps, as each begins with the rounded parameters of the last; in
# double precision it does not show (`tests/training/test_jax.py`).
COMPARED_STEPS = 20
LOSS_TOLERANCE = 1e-3
INSTALL = "pip install 'distributed-training-harness[jax]'"
TEXTBOOK, EAGER, COMPILED, JAX = "textbook loop", "harness", "harness, compiled", "JAX, jit"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one workload."""

    workload: str
    samples: int  # in an epoch
    window_steps: int
    epoch_seconds: dict[str, list[float]]  # of each window, by the name of the training
    jax_versions: dict[str, str]


def estimate_mean(values: Sequence[float]) -> str:
    """Return the geometric mean with a 95% interval by BCa bootstrap over the windows."""
    logs = np.log(values)
    bootstrap = stats.bootstrap((logs,), np.mean, rng=np.random.default_rng(0))
    low, high = np.exp(bootstrap.confidence_interval)
    return f"{math.exp(logs.mean()):.3f} [{low:.3f}, {high:.3f}]"


def make_assignments(folder: Path, data: Path | None) -> list[dict[str, Assignment]]:
    """Return the eager and the compiled trial of each workload, by the name of the training.

    Images are those in the folder `data`, or the embedded digits.
    """
    images = {"source": "idx", "path": str(data)} if data else {"source": "digits"}
    entry = {"data": images, "options": {"dropout": 0.0}}
    workloads: dict[str, Any] = {"mlp": entry, "cnn": entry}
    sweep = load(
        folder,
        workloads,
        matrix={"execution": ["eager", "compile"]},
        length={"steps": PLANNED_STEPS},
        evaluate={"steps": PLANNED_STEPS},
    )
    by_workload: dict[str, dict[str, Assignment]] = {}
    for trial in sweep.trials():
        name = EAGER if trial.cell.axes.execution == "eager" else COMPILED
        assignment = Assignment(trial=trial, base_folder=str(folder), device="cpu")
        by_workload.setdefault(trial.cell.workload.label, {})[name] = assignment
    return list(by_workload.values())


def measure(assignments: dict[str, Assignment], folder: Path, windows: int) -> Row:
    """Return a workload's row; raises RuntimeError if trainings computed other losses."""
    ranks = Ranks.from_environment()
    eager, compiled = assignments[EAGER], assignments[COMPILED]
    cell = eager.trial.cell
    label = cell.workload.label
    with ExitStack() as stack:
        jax_loop = stack.enter_context(JaxLoop(eager, folder / f"jax-{label}"))
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
                raise RuntimeError(f"{label}: {name} computed other losses, by {difference:.1e}")
        samples = len(load_splits(load_workload(eager)).train)
        windows_per_epoch = (samples // cell.axes.batch_size) / steps
        epoch_seconds = {}
        for name, seconds in race.seconds.items():
            epoch_seconds[name] = [window * windows_per_epoch for window in seconds]
        return Row(
            workload=label,
            samples=samples,
            window_steps=steps,
            epoch_seconds=epoch_seconds,
            jax_versions=jax_loop.versions,
        )


def print_tables(rows: Sequence[Row]) -> None:
    """Print seconds an epoch, and the speed beside the textbook's loop, as Markdown."""
    names = list(rows[0].epoch_seconds)
    print(f"| seconds an epoch | steps per window | {' | '.join(names)} |")
    print("| --- " * (len(names) + 2) + "|")
    for row in rows:
        means = [estimate_mean(row.epoch_seconds[name]) for name in names]
        title = f"{row.workload}, {row.samples:,} samples"
        print(f"| {title} | {row.window_steps} | {' | '.join(means)} |")
    others = names[1:]
    print(f"\n| times as fast as the {TEXTBOOK} | {' | '.join(others)} |")
    print("| --- " * (len(others) + 1) + "|")
    for row in rows:
        textbook = row.epoch_seconds[TEXTBOOK]
        ratios = [str(estimate_ratio(row.epoch_seconds[name], textbook)) for name in others]
        print(f"| {row.workload} | {' | '.join(ratios)} |")


def describe_conditions(rows: Sequence[Row], windows: int, data: Path | None) -> str:
    """Return what the figures depend on, for those who read them later."""
    jax_versions = ", ".join(f"{name} {value}" for name, value in rows[0].jax_versions.items())
    return (
        f"Geometric means of {windows} windows with 95% intervals; ratios are paired by window."
        f" Images of {data.name if data else 'digits'}, batch size 64, Adam, no dropout."
        f" torch {torch.__version__}, {jax_versions}, on one of {os.cpu_count()} cores of"
        f" {describe_hardware().cpu}, load {os.getloadavg()[0]:.1f}."
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.tables", description=__doc__
    )
    parser.add_argument(
        "--data", type=Path, default=DATA if DATA.is_dir() else None, help="a folder of IDX files"
    )
    parser.add_argument(
        "--windows", type=int, default=20, help="of each training of each workload (default 20)"
    )
    options = parser.parse_args()
    for package in ("jax", "optax"):
        if importlib.util.find_spec(package) is None:
            parser.error(f"found no package {package}; needed: {INSTALL}")
    # Before JAX starts, which makes as many threads as it may use cores.
    os.sched_setaffinity(0, {max(usable_cores())})
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for assignments in make_assignments(folder, options.data):
            rows.append(measure(assignments, folder, options.windows))
    print_tables(rows)
    print(f"\n{describe_conditions(rows, options.windows, options.data)}")


if __name__ == "__main__":
    main()
