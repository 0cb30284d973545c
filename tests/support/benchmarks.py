"""A sweep with records and baselines that nobody trained, to try pytest as a gate on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import mlflow  # noqa: F401 - changes sys.meta_path; pytester undoes half of it, and then finds no plugin
import numpy as np
import pytest
import scipy.special  # noqa: F401 - pytester unloads what a run has loaded, and this can't be loaded twice
import yaml

import harness.cli.pytest_cells  # noqa: F401 - for the same reason
from harness.analysis import baseline
from harness.analysis.result import aggregate
from harness.core.paths import Results, write_atomically
from harness.records.environment import Environment
from harness.records.files import write_record
from harness.records.record import Evaluation, Record
from harness.sweep.cell import Cell
from harness.sweep.sweep import load_sweep
from tests.factories import BEGUN, ENVIRONMENT, make_record, with_ranks
from tests.support.sweeps import write

INSTALLED = bool(metadata.entry_points(group="pytest11", name="harness"))
PLUGIN = [] if INSTALLED else ["-p", "harness.cli.pytest_plugin"]
SEEDS = [0, 1, 2, 3, 4]
TRIAL_INTERVAL = 20.0  # seconds from one trial of a cell to the next
OTHER_MACHINE = replace(ENVIRONMENT, hardware=replace(ENVIRONMENT.hardware, cpu="Other CPU"))


class BenchmarkProject:
    """A folder with a sweep of two cells, their records and their baselines, none of them trained."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        # Workers of xdist have it, and it would turn the benchmarks of the inner pytest off.
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
        self.pytester = pytester
        self.path = pytester.path
        self.write_sweep(["fp32", "bf16"])
        self.fp32, self.bf16 = load_sweep(self.path / "sweep.yaml").cells
        self.results = Results(self.path / "results")

    def write_sweep(self, precisions: Sequence[str]) -> None:
        """Write the sweep, one cell for each precision."""
        matrix = {"precision": list(precisions)}
        write(self.path, seeds=SEEDS, length={"steps": 60}, warmup=5, matrix=matrix)

    def save_baselines(self) -> None:
        """Save baselines of both cells as they are without any change, of three days."""
        for day in (2, 1, 0):
            earlier = 86_400.0 * day + TRIAL_INTERVAL / 2
            slower = 0.0005 * (day - 1)
            unchanged = []
            for record in (*records(self.fp32, slower=slower), *records(self.bf16, slower=slower)):
                started, ended = record.started - earlier, record.ended - earlier
                unchanged.append(replace(record, started=started, ended=ended))
            baseline.save(self.results, aggregate(unchanged))

    def record(self, cell: Cell, **changes: Any) -> None:
        """Write the records of a cell's trials; the changes are those of `records`."""
        sweep_folder = self.results.sweep_folder("demo")
        for record in records(cell, **changes):
            path = sweep_folder.trial_folder(record.trial.id).record_path
            write_record(path, record)

    def save_and_record(self, **changes_of_bf16: Any) -> None:
        """Save baselines, and write the records of a run in which the second cell has changed."""
        self.save_baselines()
        self.record(self.fp32)
        self.record(self.bf16, **changes_of_bf16)

    def write_gate(self, **content: Any) -> None:
        """Write the limits beside the baselines."""
        write_atomically(self.results.baselines / "gate.yaml", yaml.safe_dump(content))

    def pytest(
        self,
        *arguments: str,
        trials: Sequence[str] = ("--harness-trials=recorded",),
        in_subprocess: bool = False,
    ) -> pytest.RunResult:
        """Run pytest with this sweep and its baselines, in this process or in one of its own."""
        isolation = ["-p", "no:xdist", "-p", "no:cacheprovider", "-W", "default"]
        sweep = ["--harness-sweep=sweep.yaml", "--harness-baseline=results/baselines"]
        command = [*PLUGIN, *isolation, *sweep, *trials, *arguments]
        if in_subprocess:
            return self.pytester.runpytest_subprocess(*command)
        return self.pytester.runpytest_inprocess(*command)


def records(
    cell: Cell,
    *,
    slower: float | Sequence[float] = 0.0,
    accuracy: float = 0.9,
    environment: Environment = ENVIRONMENT,
    bits: str = "",
) -> list[Record]:
    """Return a cell's records, a trial for each of SEEDS, whose steps vary by a few thousandths.

    `slower` is by which fraction steps take longer, of all trials or of each. `bits` go into the
    digest of the final parameters.
    """
    made: list[Record] = []
    for seed, slowdown in zip(SEEDS, np.broadcast_to(slower, len(SEEDS)).tolist(), strict=True):
        record = make_record(cell, seed=seed, started=BEGUN + TRIAL_INTERVAL * seed)
        assert record.rank0 is not None
        noise = np.random.default_rng(seed).normal(1, 0.002, 60)
        step_seconds = 0.01 * (1 + slowdown) * noise
        ranks = [replace(rank, step_seconds=step_seconds, step_phases={}) for rank in record.ranks]
        # Accuracy differs from seed to seed, as it does in training.
        metrics = {"accuracy": accuracy + 0.001 * seed}
        evaluation = Evaluation(
            step=60, metrics=metrics, seconds=0.1, started_at=record.started + 4
        )
        digest = record.rank0.parameter_digest + bits
        rank0 = replace(record.rank0, evaluations=(evaluation,), parameter_digest=digest)
        ranks[0] = replace(ranks[0], rank0=rank0, environment=environment)
        made.append(with_ranks(record, ranks, rank0=rank0, environment=environment))
    return made
