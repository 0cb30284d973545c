from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.core.validation import decode_value, members_of
from harness.sweep import sweep as spec
from harness.sweep.axes import AXES, AXIS_TYPES, DEFAULTS, Axes
from harness.sweep.cell import (
    Cell,
    Length,
    StopRule,
    Trial,
    WorkloadRef,
    short_name,
)
from tests.support.images import NAMES, idx, write_images
from tests.support.sweeps import load, write
from workloads.mlp_settings import MLPOptions

# Baselines and comparisons match by these ids of settings: an id that changes orphans all that was
# ever measured under it.
GOLDEN = [
    ("mlp-678dcaf4a0", "mlp: {data: {source: digits}}", ""),
    ("cnn-9ae1772f71", "cnn: {data: {source: digits}}", "length: {steps: 60}"),
    (
        "cnn-de3dbcc0f2",
        "small: {uses: cnn, options: {width: 8, lr: 1e-3}, data: {split_seed: 5}}",
        "",
    ),
    (
        "distilbert-7bf560a031",
        "distilbert: {data: {source: tickets}, options: {padding: fixed}}",
        "matrix: {execution: compile}",
    ),
    (
        "mlp-ed451ef4bd",
        "mlp: ",
        "matrix: {strategy: fsdp2, world_size: 2, precision: bf16, num_workers: 2, num_threads: 4}",
    ),
    (
        "mlp-a1d39c0380",
        "mlp: ",
        "matrix: {batch_size: 32}\nlength: {steps: 90}\nevaluate: {steps: 30}\nwarmup: 20",
    ),
]


def only_cell(path: Path) -> Cell:
    (cell,) = spec.load_sweep(path).cells
    return cell


def only_id(path: Path) -> str:
    return only_cell(path).id


@pytest.mark.parametrize(("golden", "workloads", "keys"), GOLDEN)
def test_golden_ids(tmp_path: Path, golden: str, workloads: str, keys: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"name: demo\nworkloads: {{{workloads}}}\n{keys}\n", encoding="utf-8")
    assert only_cell(path).settings_id == golden


def test_id_is_the_same_in_any_process_and_folder(tmp_path: Path) -> None:
    path = write(
        tmp_path, {"mlp": {"options": {"hidden": [64], "dropout": 0.1}}}, matrix={"num_threads": 2}
    )
    program = (
        "import sys, pathlib; from harness.sweep import sweep\n"
        "print(sweep.load_sweep(pathlib.Path(sys.argv[1])).cells[0].id)"
    )
    ids = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed, folder in (("1", tmp_path), ("2", "/"))
    }
    assert ids == {only_id(path)}


def make(**changes: Any) -> Cell:
    choice = WorkloadRef(
        label="mlp",
        uses="mlp",
        settings={},
        identity={"uses": "mlp", "settings": {}, "files": None},
    )
    cell = Cell(
        workload=choice,
        axes=Axes(batch_size=64),
        length=Length(epochs=1),
        evaluate=Length(epochs=1),
        warmup=10,
    )
    return replace(cell, **changes)


@pytest.mark.parametrize("axis", AXES)
def test_each_axis_decides_the_id_and_shows_in_the_label(axis: str) -> None:
    standard = make()
    members = members_of(AXIS_TYPES[axis])
    words = [word for member in members for word in get_args(member)]
    others: dict[Any, list[Any]] = {bool: [True, False], int: [3], float: [0.5], str: ["named"]}
    for value in words or others[members[0]]:
        if value != DEFAULTS.get(axis):
            other = make(axes=Axes.of({"batch_size": 64, axis: value}))
            assert other.id != standard.id
            # The world size shows beside a strategy.
            assert other.label != standard.label or axis == "world_size"


@pytest.mark.parametrize(
    "change",
    [
        {"length": Length(epochs=2)},
        {"length": Length(steps=1)},
        {"evaluate": Length(epochs=2)},
        {"evaluate": Length(steps=1)},
        {"warmup": 11},
        {"stop": StopRule(patience=2)},
    ],
)
def test_length_evaluation_and_warmup_decide_the_id(change: dict[str, Any]) -> None:
    assert make(**change).id != make().id


def entry(
    workload: str, *, options: dict[str, Any] | None = None, data: dict[str, Any] | None = None
) -> Any:
    source = "tickets" if workload == "distilbert" else "digits"
    return {workload: {"options": options or {}, "data": {"source": source, **(data or {})}}}


def test_each_option_and_data_setting_decides_the_id(tmp_path: Path) -> None:
    options = {"hidden": [256], "batch_norm": True, "dropout": 0.1, "lr": 0.01}
    ids = [load(tmp_path, entry("mlp")).cells[0].id]
    for name, value in options.items():
        ids.append(load(tmp_path, entry("mlp", options={name: value})).cells[0].id)
    for name, value in {"split_seed": 1, "validation": 0.1}.items():
        ids.append(load(tmp_path, entry("mlp", data={name: value})).cells[0].id)
    assert len(set(ids)) == len(ids)
    assert {field.name for field in fields(MLPOptions)} == set(options), "each is tried"


def images(folder: Path, path: str, **data: Any) -> str:
    return load(folder, {"mlp": {"data": {"source": "idx", "path": path, **data}}}).cells[0].id


def test_content_of_the_data_decides_the_id_and_its_place_does_not(tmp_path: Path) -> None:
    here, there = write_images(tmp_path / "here"), write_images(tmp_path / "there")
    before = images(tmp_path, "here")
    assert images(tmp_path, str(there)) == before
    assert images(tmp_path, "here", classes=11) != before
    (here / NAMES[2]).write_bytes(idx((2, 2, 2), bytes([0] * 7 + [1])))
    assert images(tmp_path, "here") != before


def test_a_seed_of_draws_that_nobody_makes_is_no_second_cell(tmp_path: Path) -> None:
    write_images(tmp_path / "here")
    data = {"source": "idx", "path": "here", "validation": 0}
    axes = {"data.split_seed": [0, 1], "batch_size": 2}
    sweep = load(tmp_path, {"mlp": {"data": data}}, matrix=axes)
    assert len(sweep.cells) == 1
    data["validation"] = 0.5
    sweep = load(tmp_path, {"mlp": {"data": data}}, matrix=axes)
    assert len(sweep.cells) == 2


def test_what_decides_nothing_leaves_the_id_alone(tmp_path: Path) -> None:
    plain = load(
        tmp_path,
        {"mlp": {"options": {"dropout": 0.1, "hidden": [8]}}},
        matrix={"num_threads": 2, "num_workers": 1},
    )
    other = load(
        tmp_path,
        {"another label": {"options": {"hidden": [8], "dropout": 0.1}, "uses": "mlp"}},
        timeout=9,
        checkpoint="best",
        profile=5,
        seeds=[7, 8],
        repeats=3,
        matrix={"num_workers": 1, "num_threads": 2},
        sets=["name=other"],
    )
    assert [cell.id for cell in other.cells] == [cell.id for cell in plain.cells]


def test_default_that_is_written_out_leaves_the_id_alone(tmp_path: Path) -> None:
    plain = load(tmp_path, {"mlp": None}).cells[0]
    options = {"hidden": [256, 128], "batch_norm": False, "dropout": 0.2, "lr": 0.001}
    axes = {
        "execution": "eager",
        "precision": "fp32",
        "strategy": "single",
        "world_size": 1,
        "num_workers": 0,
        "num_threads": 1,
    }
    written_out = load(
        tmp_path,
        {"mlp": {"options": options, "data": {"source": "digits", "split_seed": 0}}},
        matrix={"batch_size": 64, **axes},
        length={"epochs": 1},
        evaluate={"epochs": 1},
        warmup=10,
    ).cells[0]
    assert written_out.id == plain.id


def test_id_survives_the_way_to_a_worker_and_back(tmp_path: Path) -> None:
    for trial in load(tmp_path, entry("distilbert")).trials():
        back = decode_value(Trial, json.loads(json.dumps(asdict(trial), sort_keys=True)))
        assert back.id == trial.id
        assert back.cell.label == trial.cell.label


def test_trial_ids_and_labels() -> None:
    cell = make()
    assert Trial(cell=cell, seed=3, repeat=1).id == f"{cell.id}-s3-r1"
    assert cell.label == "mlp eager fp32 single w0 b64 t1"
    axes = Axes(
        batch_size=64,
        strategy="ddp",
        world_size=2,
        execution="compile",
        precision="bf16",
        num_workers=3,
    )
    assert make(axes=axes).label == "mlp compile bf16 ddp×2 w3 b64 t1"


@pytest.mark.parametrize(
    ("uses", "name"),
    [
        ("mlp", "mlp"),
        ("examples/spiral.py:Spiral", "spiral"),
        ("x:…", "workload"),
    ],
)
def test_short_name_is_safe_in_a_path(uses: str, name: str) -> None:
    assert short_name(uses) == name


def test_length() -> None:
    assert Length(steps=7).in_steps(100) == 7
    assert Length(epochs=3).in_steps(100) == 300
    for both_or_neither in ({}, {"steps": 1, "epochs": 1}):
        with pytest.raises(ValueError, match="allowed: one of them"):
            Length(**both_or_neither)


def test_a_cell_for_any_code_has_what_the_sweep_sets_and_no_default(tmp_path: Path) -> None:
    workload = {"uses": "mlp", "data": {"source": "digits"}, "options": {"hidden": [8], "lr": 1e-3}}
    path = write(tmp_path, {"own": workload}, matrix={"options.dropout": 0.2})
    cell = only_cell(path)
    written = cell.with_any_code().workload
    # 1e-3 and 0.2 are defaults too, and may be none of another revision.
    assert {**written.options} == {"hidden": (8,), "lr": 1e-3, "dropout": 0.2}
    assert written.settings["data.source"] == "digits"
    assert "data.split_seed" not in written.settings
    assert "batch_size" in written.unset
    assert cell.with_any_code().settings_id == cell.settings_id
    assert decode_value(MLPOptions, written.options) == decode_value(
        MLPOptions, cell.workload.options
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"matrix": {"batch_size": 64}},
        {"matrix": {"batch_size": [64, 128]}},
        {"include": [{"batch_size": 64}]},
    ],
)
def test_a_batch_size_that_the_sweep_sets_is_that_of_any_code(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    path = write(tmp_path, {"mlp": {"data": {"source": "digits"}}}, **keys)
    assert "batch_size" not in spec.load_sweep(path).cells[0].workload.unset
