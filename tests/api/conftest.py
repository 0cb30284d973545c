"""A recorded sweep that the interface's tests and examples read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch  # noqa: F401 - processes that import users' workloads are forked from this one

from harness.core.paths import Results
from harness.records.store import write_spec
from harness.sweep.sweep import Sweep
from tests.factories import make_record, write_trial
from tests.support.sweeps import load

SECONDS = {"fp32": 0.01, "bf16": 0.008}  # of a step, by precision


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """Record the sweep `demo` of two cells and three seeds below the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    sweep = load(
        tmp_path,
        matrix={"precision": list(SECONDS)},
        seeds=[0, 1, 2],
        length={"steps": 20},
        evaluate={"steps": 10},
        warmup=2,
    )
    folder = Results(Path("results")).sweep_folder("demo")
    for trial in sweep.trials():
        seconds = SECONDS[trial.cell.axes.precision]
        write_trial(folder, make_record(trial.cell, seed=trial.seed, step_seconds=seconds))
    write_spec(sweep, folder)
    return sweep
