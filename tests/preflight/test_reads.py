"""What code reads by itself is named, and what a cell's id has is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.preflight.data_checks import check_reads
from harness.spec.cell import Cell, WorkloadCode
from tests.factories import make_cell
from tests.support.commands import harness
from tests.support.sweeps import load
from workloads.catalog import load_class
from workloads.options import DistilBertOptions, MLPOptions
from workloads.sources import Csv, Tickets

WORKLOAD = """
import importlib, json, os
from dataclasses import dataclass
from pathlib import Path
import torch
from torch import nn
from workloads import Classifier, Settings, Splits, TensorSamples

HERE = Path(__file__).parent
CONFIG = json.loads((HERE / "config.json").read_text())

@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    start: Path

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, points):
        return self.layer(points)

class W(Classifier):
    Options = Options
    batch_size = 8

    def splits(self):
        self.options.start.read_text()
        (HERE / "kept.txt").write_text("1")
        (HERE / "kept.txt").read_text()
        importlib.import_module("la" + "te")
        points = torch.randn(100, 2) * float(os.environ.get("MY_SCALE", "1"))
        labels = (points[:, 0] > 0).long()
        return Splits(TensorSamples((points, labels)), TensorSamples((points, labels)))

    def build_model(self):
        return Net()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1e-2)

    def flops_per_sample(self):
        return 1.0
"""


@pytest.mark.distributed
def test_files_variables_and_modules_that_code_reads_are_named(
    tmp_path: Path, results: Results
) -> None:
    texts = {"w.py": WORKLOAD, "late.py": "", "config.json": "{}", "start.json": "{}"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    sweep = {
        "name": "w",
        "workloads": {"w": {"uses": "w.py:W", "options": {"start": "start.json"}}},
    }
    (tmp_path / "w.yaml").write_text(json.dumps(sweep), encoding="utf-8")
    options = ["--results", str(results.path)]
    ended = harness("check", str(tmp_path / "w.yaml"), *options)
    expected = f"the file {tmp_path / 'config.json'}, the variable MY_SCALE, the module late.py\n"
    assert f"! reads           no cell's id has {expected}" in ended.out


def built_in(variables: list[str]) -> Cell:
    cell = make_cell()
    code = WorkloadCode(variables=variables)
    return replace(cell, workload=replace(cell.workload, code=code))


@pytest.fixture
def _nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests in this process have imported of users' files."""
    monkeypatch.setattr("harness.spec.files.user_files", dict)


@pytest.mark.usefixtures("_nothing_imported")
def test_what_settings_name_is_no_remark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n", encoding="utf-8")
    workload = load_class("mlp")(MLPOptions(), Csv(path=path))
    public = ["OMP_NUM_THREADS", "HARNESS_WHATEVER"]  # which records have, and comparisons name
    assert check_reads(built_in(public), workload, [path, Path(json.__file__)]).status == "passed"
    named = check_reads(built_in([*public, "MINE"]), workload, [path])
    assert (named.status, named.measured) == ("noted", "no cell's id has the variable MINE")
    on_axis = replace(built_in(["MINE"]), environment={"MINE": "1"})
    assert check_reads(on_axis, workload, [path]).status == "passed"


@pytest.mark.usefixtures("_nothing_imported")
@pytest.mark.parametrize(("hub", "status"), [("owner/name", "noted"), ("owner/name@1", "passed")])
def test_a_model_of_the_hub_without_a_revision_is_named(hub: str, status: str) -> None:
    workload = load_class("mlp")(DistilBertOptions(hub=hub), Tickets())
    assert check_reads(built_in([]), workload, []).status == status


def test_variables_that_code_reads_are_part_of_what_is_known_of_it(tmp_path: Path) -> None:
    for name, text in {"w.py": WORKLOAD, "config.json": "{}", "a.json": ""}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    entry = {"uses": "w.py:W", "options": {"start": "a.json"}}
    (cell,) = load(tmp_path, {"w": entry}).cells
    assert cell.workload.code is not None
    assert list(cell.workload.code.variables) == ["MY_SCALE"]
