"""Workload options and data settings as axes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.cells import varying_axes
from harness.analysis.compare import Rules, Side, compare_by, setting_differences
from harness.core.errors import BadInput
from harness.sweep.sweep import load_sweep
from tests.support.results import make_result
from tests.support.sweeps import load, write

DIGITS = {"source": "digits"}
BOTH = {"mlp": {"data": DIGITS}, "cnn": {"data": DIGITS}}
HIDDEN = "options.hidden"


def written_out(folder: Path, **options: Any) -> str:
    """Return the id of the MLP with options that its entry in the sweep file has."""
    (cell,) = load(folder, {"wide": {"uses": "mlp", "data": DIGITS, "options": options}}).cells
    return cell.id


def test_options_combine_as_other_axes_and_have_the_ids_of_options_written_out(
    tmp_path: Path,
) -> None:
    sweep = load(
        tmp_path,
        matrix={HIDDEN: [[256, 128], [1024, 512]], "num_threads": [1, 2]},
        zip=[{"options.dropout": [0, 0.5], "data.split_seed": [0, 1]}],
        exclude=[{HIDDEN: [1024, 512], "num_threads": 2}, {"options.dropout": 0.5}],
        include=[{"workload": "mlp", "options.lr": 0.01}],
    )
    assert [cell.id for cell in sweep.cells if cell.axes.num_threads == 1] == [
        written_out(tmp_path, dropout=0.0),
        written_out(tmp_path, dropout=0.0, hidden=[1024, 512]),
        written_out(tmp_path, lr=0.01),
    ]
    assert [cell.level(HIDDEN) for cell in sweep.cells] == [
        (256, 128),
        (256, 128),
        (1024, 512),
        (256, 128),
    ]
    assert "hidden=[1024, 512] dropout=0.0 split_seed=0" in sweep.cells[2].label
    assert sweep.cells[3].label.endswith(" options.lr=0.01")  # `lr` is an axis of its own
    assert varying_axes(sweep.cells) == ["num_threads", HIDDEN, "options.dropout", "options.lr"]
    assert json.dumps(sweep.cells[2].workload.options["hidden"]) == "[1024, 512]"


def test_a_workload_without_the_option_is_left_out_with_a_word(tmp_path: Path) -> None:
    sweep = load(tmp_path, BOTH, matrix={HIDDEN: [[8], [9]]}, include=[{"options.lr": 0.1}])
    assert [cell.workload.label for cell in sweep.cells] == ["mlp", "mlp", "mlp", "cnn"]
    assert [point.reason for point in sweep.excluded] == ["cnn has no options.hidden"] * 2
    with pytest.raises(BadInput, match=r"include\[0\]: cnn has no options.hidden"):
        load(tmp_path, BOTH, include=[{HIDDEN: [8]}])


def test_a_rule_for_null_matches_only_workloads_with_the_option(tmp_path: Path) -> None:
    workloads = {"mlp": {"data": DIGITS}, "distilbert": {"data": {"source": "tickets"}}}
    sweep = load(tmp_path, workloads, exclude=[{"options.size": None}])
    assert [cell.workload.label for cell in sweep.cells] == ["mlp"]
    assert [(point.workload, point.rule) for point in sweep.excluded] == [
        ("distilbert", "exclude[0]")
    ]


def test_set_decides_an_option_whatever_decided_it_in_the_file(tmp_path: Path) -> None:
    workloads = {"mlp": {"options": {"hidden": [4]}}, "cnn": {}}
    for text, layers in (("[64]", [(64,)]), ("[64],[32,16]", [(64,), (32, 16)])):
        cells = load(tmp_path, workloads, sets=[f"{HIDDEN}={text}"]).cells
        assert [cell.level(HIDDEN) for cell in cells] == layers
    cells = load(tmp_path, {**workloads, "other": {"uses": "mlp"}}, matrix={HIDDEN: [3]}).cells
    assert [cell.level(HIDDEN) for cell in cells] == [(4,), (3,)]  # a workload's own goes first


def test_a_folder_of_data_is_an_axis(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = [f"{name} is number {row},{row % 2}\n" for row in range(40)]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    data = {"source": "csv"}
    paths = {"data.path": ["a.csv", "b.csv"]}
    a, b = load(tmp_path, {"distilbert": {"data": data}}, matrix={**paths, "batch_size": 8}).cells
    assert a.id != b.id
    assert [a.level("data.path"), b.level("data.path")] == [
        str(tmp_path / "a.csv"),
        str(tmp_path / "b.csv"),
    ]
    assert set(setting_differences(a, b)) == {"data.path"}
    assert setting_differences(a, b, ["data.path"]) == {}


@pytest.mark.parametrize(
    ("axes", "problem"),
    [
        (
            "options.hidden: [[64], [0]]",
            ":4: workloads.mlp.options.hidden[0]: found 0; allowed: at least 1",
        ),
        (
            "options.hiden: [[64]]",
            ":4: matrix.options.hiden[0]: found no workload with it; did you mean"
            " 'options.hidden'? allowed: data.classes, ",
        ),
        ("options.hidden: []", ":4: matrix.options.hidden: found an empty list; allowed: at least"),
        ("options.hidden: 64", ":4: workloads.mlp.options.hidden: found 64; allowed: a list"),
        ("data.source: [csv]", ":4: workloads.mlp.data.source: found 'csv'; allowed: digits, idx"),
    ],
)
def test_settings_are_checked_by_the_workloads_own_types(
    tmp_path: Path, axes: str, problem: str
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "name: demo\nworkloads: {mlp: {}, cnn: {data: {split_seed: 3}}}\nmatrix:\n"
        f"  {axes}\n",
        encoding="utf-8",
    )
    with pytest.raises(BadInput) as refusal:
        load_sweep(path)
    assert str(refusal.value).startswith(f"{path}{problem}")


def test_cells_are_compared_by_an_option_and_by_a_variable(tmp_path: Path) -> None:
    axes = {HIDDEN: [[64], [32]], "env.NCCL_ALGO": [None, "Ring"]}
    results = []
    for cell in load_sweep(write(tmp_path, matrix=axes)).cells:
        results.append(make_result([1000.0, 1001.0], cell=cell))
    side = Side(name="demo", cells=results)
    for by in (HIDDEN, "env.NCCL_ALGO"):
        comparison = compare_by(side, [by], Rules())
        pairs = [(match.a.cell, match.b.cell) for match in comparison.matches]
        assert [list(setting_differences(a, b)) for a, b in pairs] == [[by], [by]]
