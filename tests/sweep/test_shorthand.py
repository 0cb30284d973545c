"""Short forms in sweep files and after flags, and keys in a wrong place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.sweep.sweep import load_sweep
from tests.support.sweeps import DIGITS, load


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ({"seeds": 3}, {"seeds": [0, 1, 2]}),
        ({"length": "5 epochs"}, {"length": {"epochs": 5}}),
        ({"evaluate": "30steps"}, {"evaluate": {"steps": 30}}),
        ({"matrix": {"execution": "compile"}}, {"matrix": {"execution": ["compile"]}}),
        ({"matrix": {"options.dropout": 0.3}}, {"matrix": {"options.dropout": [0.3]}}),
        (
            {"zip": [{"strategy": "ddp", "world_size": 2}]},
            {"zip": [{"strategy": ["ddp"], "world_size": [2]}]},
        ),
        (
            {"workloads": {"mlp": {"seeds": 2, "length": "9 steps"}}, "warmup": 2},
            {"workloads": {"mlp": {"seeds": [0, 1], "length": {"steps": 9}}}, "warmup": 2},
        ),
    ],
)
def test_short_form_is_the_same_sweep(
    tmp_path: Path, short: dict[str, Any], whole: dict[str, Any]
) -> None:
    trials = []
    for keys in (short, whole):
        sweep = load(tmp_path, **{"workloads": DIGITS, **keys})
        trials.append([(trial.id, str(trial.cell.length)) for trial in sweep.trials()])
    assert trials[0] == trials[1]
    assert trials[0]


def test_a_sweep_has_the_name_of_its_file_and_a_workload_that_of_its_class(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workloads: {small: mlp}\n", encoding="utf-8")
    sweep = load_sweep(path)
    assert (sweep.name, sweep.cells[0].workload.uses) == ("mine", "mlp")


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("seeds=3", [0, 1, 2]), ("seeds=[3]", [3]), ("seeds=3,", [3]), ("seeds = [5, 3]", [5, 3])],
)
def test_set_takes_a_number_of_seeds_or_a_list(tmp_path: Path, text: str, seeds: list[int]) -> None:
    assert load(tmp_path, sets=[text]).seeds == seeds


def test_file_with_one_workload_needs_no_class(tmp_path: Path) -> None:
    module = "from tests.support.line import LineFit\n\n\nclass Mine(LineFit): ...\n"
    (tmp_path / "mine.py").write_text(module, encoding="utf-8")
    sweeps = []
    for uses in ("mine.py", "mine.py:Mine"):
        sweeps.append(load(tmp_path, {"mine": {"uses": uses}}))
    assert sweeps[0].cells == sweeps[1].cells
    assert sweeps[0].cells[0].workload.uses == "mine.py:Mine"
