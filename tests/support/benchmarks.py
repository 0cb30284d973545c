"""A sweep with records and baselines that nobody trained, for pytest as a gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import mlflow  # noqa: F401 - bends sys.meta_path; pytester half undoes that, and then finds no plugin
import numpy as np
import pytest
import scipy.special  # noqa: F401 - pytester forgets what a run has loaded, and this can't be loaded twice
import yaml

import harness.cli.pytest_cells  # noqa: F401 - the same
from harness.analysis import baseline
from harness.analysis.result import aggregate
from harness.core.paths import Results, write_atomically
from harness.measure.summary import summarize
from harness.records.environment import Environment
from harness.records.record import Evaluation, Record, write_record
from harness.records.series import Series
from harness.spec.cell import Cell
from harness.spec.sweep import load_sweep
from tests.factories import ENVIRONMENT, make_record

INSTALLED = bool(metadata.entry_points(group="pytest11", name="harness"))
PLUGIN = [] if INSTALLED else ["-p", "harness.cli.pytest_plugin"]
SEEDS = [0, 1, 2, 3, 4]
OTHER_MACHINE = replace(ENVIRONMENT, hardware=replace(ENVIRONMENT.hardware, cpu="Other CPU"))


class Place:
    """A folder with a sweep of two cells, its records and their baselines; nothing in it was ever trained."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(
            "PYTEST_XDIST_WORKER", raising=False
        )  # it would turn the inner benchmarks off
        self.pytester = pytester
        self.path = pytester.path
        self.spec(["fp32", "bf16"])
        self.fp32, self.bf16 = load_sweep(self.path / "sweep.yaml").cells
        self.results = Results(self.path / "results")

    def spec(self, precisions: Sequence[str]) -> None:
        content = {
            "name": "demo",
            "workloads": {"mlp": {"data": {"source": "digits"}}},
            "seeds": SEEDS,
            "length": {"steps": 60},
            "warmup": 5,
            "matrix": {"precision": list(precisions)},
        }
        (self.path / "sweep.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")

    def save(self) -> None:
        """The baselines, of cells as they are without a change."""
        baseline.save(
            self.results,
            aggregate([one for cell in (self.fp32, self.bf16) for one in records(cell)]),
        )

    def record(self, cell: Cell, **changes: Any) -> None:
        """What a run leaves of a cell; the changes are those of `records`."""
        for one in records(cell, **changes):
            write_record(
                self.results.sweep_folder("demo").trial_folder(one.trial.id).record_path, one
            )

    def both(self, **of_bf16: Any) -> None:
        """Baselines, and a run in which the second cell has changed."""
        self.save()
        self.record(self.fp32)
        self.record(self.bf16, **of_bf16)

    def gate(self, **content: Any) -> None:
        write_atomically(self.results.baselines / "gate.yaml", yaml.safe_dump(content))

    def pytest(
        self,
        *arguments: str,
        trials: Sequence[str] = ("--harness-trials=recorded",),
        apart: bool = False,
    ) -> pytest.RunResult:
        """pytest with this sweep; `apart` in a process of its own."""
        run = self.pytester.runpytest_subprocess if apart else self.pytester.runpytest_inprocess
        return run(
            *PLUGIN, "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "default", "--harness-sweep=sweep.yaml",
            "--harness-baseline=results/baselines", *trials, *arguments,
        )  # fmt: skip


def records(
    cell: Cell,
    *,
    slower: float | Sequence[float] = 0.0,
    accuracy: float = 0.9,
    environment: Environment = ENVIRONMENT,
    bits: str = "",
) -> list[Record]:
    """Of each seed one, whose speed is known to a few thousandths; `slower` is of all or of each."""
    shares = np.broadcast_to(slower, len(SEEDS))
    return [
        _record(cell, seed, share, accuracy, environment, bits)
        for seed, share in zip(SEEDS, shares, strict=True)
    ]


def _record(
    cell: Cell, seed: int, slower: float, accuracy: float, environment: Environment, bits: str
) -> Record:
    made = make_record(cell, seed=seed)
    assert made.rank0 is not None
    seconds = 0.01 * (1 + slower) * np.random.default_rng(seed).normal(1, 0.002, 60)
    ranks = [
        replace(rank, step_seconds=Series.pack(seconds), step_phases={}) for rank in made.ranks
    ]
    ends = Evaluation(step=60, epoch=6, metrics={"accuracy": accuracy + 0.001 * seed}, seconds=0.1)
    digest = made.rank0.parameter_digest + bits
    learned = replace(
        made.rank0, evaluations=[ends], environment=environment, parameter_digest=digest
    )
    ranks[0] = replace(ranks[0], rank0=learned)
    summary = summarize(ranks, learned, cell.axes.batch_size, cell.warmup)
    return replace(made, ranks=ranks, rank0=learned, summary=summary)
