"""A run is recorded in one checkout and reproduced from a clone, and what was changed is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import CommandResult, harness
from tests.support.repository import Repository
from tests.support.running import line_sweep, local_profile

pytestmark = pytest.mark.distributed


def reproduce(run: Path, bundle: Path, *options: str) -> tuple[CommandResult, dict[str, Any]]:
    result = harness("reproduce", str(run), "--output", str(bundle), "--json", *options)
    assert result.out, result.err
    return result, json.loads(result.out)


@pytest.mark.nightly
def test_a_run_is_reproduced_from_a_clone_and_its_changes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = {"strategy": ["ddp"], "world_size": [2], "batch_size": [32]}
    origin = Repository(tmp_path / "origin", length={"steps": 12}, warmup=2, matrix=matrix)
    monkeypatch.chdir(origin.path)
    results = tmp_path / "results"
    profile = local_profile(tmp_path)
    arguments = [str(origin.sweep), "--cluster", str(profile), "--results", str(results)]
    assert harness("run", *arguments).code == 0
    (path,) = results.glob("runs/own/*/attempt-*/record.json")
    run = tmp_path / "record.json"  # with its columns, and without the sweep's folder
    shutil.copyfile(path, run)
    (columns,) = path.parent.glob("record-*.npz")
    shutil.copy(columns, tmp_path)
    clone = tmp_path / "clone"
    origin.git("clone", "--quiet", str(origin.path), str(clone))
    shutil.rmtree(origin.path)
    monkeypatch.chdir(clone)

    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")  # as scikit-learn does in who imports it
    same, verdict = reproduce(run, tmp_path / "same", "--at-least", "bitwise")
    assert same.code == 0, same.err
    assert (verdict["outcome"], verdict["rung"]) == ("repeated", "bitwise")

    source = clone / "own.py"
    edited = source.read_text(encoding="utf-8") + "\n\nclass More(Slowed):\n    pass\n"
    edited = edited.replace("class Slowed(MLP):", "class Slowed(MLP):\n    batch_size = 16\n")
    source.write_text(edited, encoding="utf-8")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    recorded, verdict = reproduce(run, tmp_path / "recorded", "--code", "recorded")
    assert verdict["trials"][0]["code"].startswith("recorded: ")
    fields = [entry["field"] for entry in verdict["trials"][0]["differences"]]
    assert fields == ["settings.cpu_capability", "variables.ATEN_CPU_CAPABILITY"]
    assert recorded.code == 0, recorded.err  # rounding errors: within rounding errors
    assert verdict["outcome"] == "reproduced"
    assert source.read_text(encoding="utf-8") == edited


HIDDEN = """
import os
import time

import torch

from tests.support.line import LineFit


def read(name, default=""):
    return os.environ.get("HIDDEN_" + name, default)  # a name that nobody finds in the code


class Hidden(LineFit):
    def loss(self, model, batch):
        if read("NOISE"):
            source = torch.Generator().manual_seed(time.time_ns())
            batch = (batch[0] + 0.1 * torch.randn(batch[0].shape, generator=source), batch[1])
        return super().loss(model, batch)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=float(read("LR", "0.01")))
"""


@pytest.mark.nightly
def test_what_a_workload_reads_by_itself_does_not_pass_for_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hidden.py").write_text(HIDDEN, encoding="utf-8")
    workloads = {"hidden": {"uses": "hidden.py:Hidden", "axes": {"batch_size": 32}}}
    path = line_sweep(tmp_path, workloads, length={"steps": 12}, evaluate={"steps": 6})
    results, profile = tmp_path / "results", local_profile(tmp_path)
    arguments = [str(path), "--cluster", str(profile), "--results", str(results)]
    assert harness("run", *arguments).code == 0
    (run,) = results.glob("runs/line/*/attempt-*/record.json")

    monkeypatch.setenv("HIDDEN_LR", "0.02")
    doubled, verdict = reproduce(run, tmp_path / "doubled")
    assert doubled.code == 1, doubled.err
    (trial,) = verdict["trials"]
    assert (trial["rung"], trial["agreement"]["fp64_problem"]) == (None, None)
    assert trial["agreement"]["max_relative"] > 0.01

    monkeypatch.setenv("HIDDEN_NOISE", "1")
    noisy, verdict = reproduce(run, tmp_path / "noisy")
    assert noisy.code == 1, noisy.err
    assert verdict["trials"][0]["rung"] in (None, "different")
