"""Scripts as workloads: what planning makes of them, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.analysis.compare import matching_key
from harness.core.errors import BadInput
from harness.records.differences import differences, trial_fields
from harness.reproduce.rebuild import rebuild_cell
from harness.sweep.cell import Trial
from harness.sweep.sweep import Sweep, load_sweep
from harness.view.names import cell_name

PLAIN = "import torch\n\nprint('not run by planning')\nraise SystemExit(1)\n"
OWN_CLASS = "from workloads import Classifier\n\nclass Mine(Classifier):\n    pass\n"


def plan(folder: Path, entry: dict[str, Any], sets: tuple[str, ...] = (), **keys: Any) -> Sweep:
    """Plan a sweep with one workload, `mine`."""
    if not (folder / "train.py").exists():
        (folder / "train.py").write_text(PLAIN)
    content = {"name": "s", "workloads": {"mine": {"uses": "train.py", **entry}}, **keys}
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_sweep(path, sets)


def test_a_file_without_a_workload_is_a_script(tmp_path: Path) -> None:
    (cell,) = plan(tmp_path, {}).cells
    assert cell.workload.arguments == []
    assert cell.workload.code is not None
    assert set(cell.workload.code) == {"train.py"}
    assert cell.id.startswith("train-")
    assert cell.label == "mine script×1 t1"
    assert set(cell.levels) == {"world_size", "num_threads", "stack"}
    assert cell.level("precision") is None, "what the script computes in is not known"
    assert cell.throughput_unit == "steps/s"


def test_a_file_whose_module_has_the_workload_is_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import mine_of_it\n")
    (tmp_path / "mine_of_it.py").write_text(OWN_CLASS)
    with pytest.raises(BadInput, match="found 0 workloads; allowed: a class that derives"):
        plan(tmp_path, {})


def test_options_and_axes_reach_the_arguments(tmp_path: Path) -> None:
    sweep = plan(
        tmp_path,
        {"arguments": "--lr={lr} --batch {rank_batch_size} --out '{folder}'", "options": {"lr": 1}},
        matrix={"world_size": 2, "batch_size": [32, 64]},
    )
    first, second = sweep.cells
    assert first.workload.arguments == [
        "--lr={lr}",
        "--batch",
        "{rank_batch_size}",
        "--out",
        "{folder}",
    ]
    assert first.id != second.id
    assert first.label == "mine script×2 b32 t1"
    assert cell_name(first, ["world_size", "batch_size"]) == "script×2 b32"
    assert (first.level("batch_size"), first.level("lr")) == (32, None)
    assert first.throughput_unit == "steps/s", "what it does with {batch_size} is not known"
    assert first.workload.options == {"lr": 1}


def test_steps_are_those_of_a_length_or_of_an_option(tmp_path: Path) -> None:
    arguments = {"arguments": "--steps {steps}"}
    (cell,) = plan(tmp_path, arguments, length="300 steps").cells
    assert cell.length.steps == 300
    (cell,) = plan(tmp_path, arguments | {"options": {"steps": 20}}).cells
    assert cell.workload.options == {"steps": 20}


def test_an_option_may_be_an_axis(tmp_path: Path) -> None:
    sweep = plan(tmp_path, {"arguments": ["--dim", "{dim}"]}, matrix={"options.dim": [8, 16]})
    assert [cell.workload.options for cell in sweep.cells] == [{"dim": 8}, {"dim": 16}]
    (cell,) = plan(tmp_path, {"arguments": ["{dim}"]}, ("options.dim=4",)).cells
    assert cell.label == "mine script×1 t1 dim=4"


def test_only_what_changes_a_run_changes_its_cell(tmp_path: Path) -> None:
    entry = {"arguments": ["{lr}"], "options": {"lr": 0.1}}
    (cell,) = plan(tmp_path, entry).cells
    (tmp_path / "train.py").write_text(PLAIN + "x = 1\n")
    assert plan(tmp_path, entry).cells[0].id != cell.id
    assert plan(tmp_path, entry).cells[0].settings_id == cell.settings_id
    changed = plan(tmp_path, entry | {"target": "accuracy"}).cells[0]
    assert changed.settings_id != cell.settings_id


def test_a_record_alone_plans_the_same_cell(tmp_path: Path) -> None:
    entry = {
        "arguments": "{lr} {dim}",
        "options": {"dim": 3},
        "axes": {"lr": 0.1, "world_size": 2},
        "target": {"name": "fid", "higher_is_better": False},
    }
    (cell,) = plan(tmp_path, entry).cells
    assert rebuild_cell(cell, tmp_path, ()).id == cell.id


@pytest.mark.parametrize(
    ("entry", "keys", "message"),
    [
        (
            {},
            {"matrix": {"precision": "bf16"}},
            "precision bf16: train.py is a script, which does what",
        ),
        (
            {"arguments": "--hf-token {seed}"},
            {},
            "mine: found --hf-token, which says secret, .* environment variable",
        ),
        (
            {"arguments": "{api_key}", "options": {"api_key": "x"}},
            {},
            "mine: found options.api_key, which says secret, and settings are recorded",
        ),
        (
            {},
            {"matrix": {"execution": ["eager", "compile"]}},
            r"matrix.execution: found an axis that no argument names; write {execution} in",
        ),
        ({"arguments": "{lr}"}, {}, r"{lr} has no value; set the axis lr or `options: {lr: …}`"),
        (
            {"arguments": "{dim}"},
            {},
            "mine.options.dim: missing; it has no default",
        ),
        ({"options": {"lr": 1}}, {}, r"mine.options.lr: found an option that no argument names"),
        (
            {"arguments": ["--lr", 1.1]},
            {},
            r"arguments\[1\]: found 1.1; allowed: text or a whole number",
        ),
        (
            {"arguments": "--steps {steps}"},
            {},
            r"mine.arguments: found {steps} without a length in steps; allowed with `length: 300",
        ),
        ({"arguments": "'"}, {}, 'mine.arguments: found "\'": No closing quotation; allowed: '),
        (
            {"arguments": "{lr}", "options": {"lr": 1}},
            {"matrix": {"lr": 2}},
            "lr 2.*: train.py is a script, .* say; set options.lr",
        ),
        (
            {"data": {"path": "x"}},
            {},
            "mine.data: found it with a script, which does this itself; allowed: arguments",
        ),
        ({}, {"stop": {"patience": 2}}, r"yaml:\d+: stop: found it with a script"),
        ({}, {"checkpoint": "best"}, r"yaml:\d+: checkpoint: found it with a script"),
        (
            {},
            {"length": "5 epochs"},
            "length: found 5 epochs of a script, which counts its epochs itself",
        ),
        ({}, {"warmup": 0}, "warmup: found 0; allowed with a script: 1 or more"),
        (
            {"uses": "mlp", "arguments": "x"},
            {},
            "mine: found arguments or target with a workload class; ",
        ),
        (
            {"arguments": "{rank_batch_size}"},
            {"matrix": {"batch_size": 5, "world_size": 2}},
            "batch_size 5 can't be shared out evenly among 2",
        ),
    ],
)
def test_what_a_script_cannot_do_is_refused(
    tmp_path: Path, entry: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        plan(tmp_path, entry, **keys)
    assert "\n" not in str(caught.value)


def test_cells_with_other_arguments_are_not_compared_as_equal(tmp_path: Path) -> None:
    (wide,) = plan(tmp_path, {"arguments": "--width 1024"}).cells
    (narrow,) = plan(tmp_path, {"arguments": "--width 128"}).cells
    assert wide.label == narrow.label
    assert matching_key(wide, ()) != matching_key(narrow, ())
    assert matching_key(wide, ("arguments",)) == matching_key(narrow, ("arguments",))
    found = differences(
        trial_fields(Trial(cell=wide, seed=0)), trial_fields(Trial(cell=narrow, seed=0))
    )
    assert [entry.field for entry in found] == ["arguments"]


def test_configuration_files_among_the_arguments_belong_to_the_identity(tmp_path: Path) -> None:
    entry = {"arguments": "small.cfg --more={more} --save model.pt", "options": {"more": "b.json"}}
    ids: set[str] = set()
    for name in ("small.cfg", "small.cfg", "b.json", "model.pt"):
        path = tmp_path / name
        path.write_text(f"{name} {len(ids)}")
        (cell,) = plan(tmp_path, entry).cells
        ids.add(cell.id)
    assert len(ids) == 3, "a file of data, or that it writes, does not count"
    assert set(cell.workload.file_digests) == {"arguments.small.cfg", "arguments.b.json"}
    assert rebuild_cell(cell, tmp_path, ()).id == cell.id


def test_a_module_is_the_file_that_python_would_run(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").touch()
    (tmp_path / "pkg/train.py").write_text(PLAIN)
    entry = {"uses": None, "module": "pkg.train", "launch": "python"}
    (cell,) = plan(tmp_path, entry).cells
    assert (cell.workload.uses, cell.workload.module) == ("pkg/train.py", "pkg.train")
    assert rebuild_cell(cell, tmp_path, ()).id == cell.id
    with pytest.raises(BadInput, match="world_size 2: launch: python starts one process"):
        plan(tmp_path, entry | {"axes": {"world_size": 2}})


def test_a_script_s_learning_rate_may_be_any(tmp_path: Path) -> None:
    (cell,) = plan(tmp_path, {"arguments": "--lr {lr}"}, matrix={"lr": [20]}).cells
    assert cell.axes.lr == 20
