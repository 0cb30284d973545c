"""Workloads that are edited while the process that plans them lives on, as in a notebook."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import harness
from harness.interface import running
from tests.interface.test_running import UndeliveredRun
from tests.support.running import local_profile
from tests.support.sweeps import write

# A layer of four numbers by default; a batch size in a module of its own.
WORKLOAD = """
from dataclasses import dataclass
import torch
from torch import nn
from sizes import BATCH_SIZE
from workloads import Classifier, Count, Settings, Splits, TensorSamples

@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    hidden: Count = 4

class Small(Classifier):
    Options = Options
    batch_size = BATCH_SIZE

    def splits(self):
        inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        samples = TensorSamples((inputs, (inputs.sum(1) > 0).long()))
        return Splits(samples, samples)

    def build_model(self):
        hidden = self.options.hidden
        return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 2))
"""
# Longer by a line, since Python takes a file of the same size and second for the one it has compiled.
EDITED = WORKLOAD.replace("hidden: Count = 4", "hidden: Count = 6\n    depth: Count = 1")


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a sweep file of a user's workload in two files, below the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(WORKLOAD, encoding="utf-8")
    (tmp_path / "sizes.py").write_text("BATCH_SIZE = 8\n", encoding="utf-8")
    workloads = {"small": {"uses": "small.py:Small"}}
    return write(tmp_path, workloads, length={"steps": 4}, warmup=1, axes={"num_threads": 1})


def test_an_edited_workload_is_trained_with_its_new_settings(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "DeliveredRun", UndeliveredRun)
    before = harness.plan(sweep).sweep.cells[0]
    (tmp_path / "small.py").write_text(EDITED, encoding="utf-8")
    profile = str(local_profile(tmp_path))
    data = harness.run(sweep, settings={"options.depth": 2}, cluster=profile, progress=False)
    (record,) = data.records
    assert record.trial.cell.id != before.id
    assert record.rank0 is not None
    assert record.rank0.parameter_count == 44


@pytest.mark.parametrize("package", ["", "parts"])
def test_an_edited_helper_counts_too(sweep: Path, tmp_path: Path, package: str) -> None:
    helper = tmp_path / package / "sizes.py"
    helper.parent.mkdir(exist_ok=True)
    helper.write_text("BATCH_SIZE = 8\n", encoding="utf-8")
    if package:  # without __init__.py
        text = WORKLOAD.replace("from sizes import BATCH_SIZE", "from parts import sizes")
        text = text.replace("BATCH_SIZE", "sizes.BATCH_SIZE")
        (tmp_path / "small.py").write_text(text, encoding="utf-8")
    assert harness.plan(sweep).cells.batch_size.to_list() == [8]
    helper.write_text("BATCH_SIZE = 16\n", encoding="utf-8")
    assert harness.plan(sweep).cells.batch_size.to_list() == [16]


def test_a_helper_of_a_workload_with_an_error_is_read_again(sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(f"{WORKLOAD}\nmissing\n", encoding="utf-8")
    with pytest.raises(harness.BadInput, match="name 'missing' is not defined"):
        harness.plan(sweep)
    (tmp_path / "small.py").write_text(WORKLOAD, encoding="utf-8")
    (tmp_path / "sizes.py").write_text("BATCH_SIZE = 16\n", encoding="utf-8")
    assert harness.plan(sweep).cells.batch_size.to_list() == [16]


def test_what_a_users_program_has_imported_stays(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its classes would be others than those of the objects that it has made."""
    sizes = ModuleType("sizes")
    vars(sizes).update(__file__=str(tmp_path / "sizes.py"), BATCH_SIZE=8)
    monkeypatch.setitem(sys.modules, "sizes", sizes)
    harness.plan(sweep)
    modules = sys.modules.copy()
    harness.plan(sweep)
    assert sys.modules == modules  # as nothing was edited
    (tmp_path / "small.py").write_text(EDITED, encoding="utf-8")
    harness.plan(sweep, settings={"options.depth": 2})
    replaced = [name for name, module in modules.items() if sys.modules.get(name) is not module]
    assert [name.partition("_")[0] for name in replaced] == ["small"]
