from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput
from harness.sweep.axes import DEFAULTS, Axes, find_conflict, need_of
from harness.sweep.cell import Cell
from tests.support.running import LINE
from tests.support.sweeps import DIGITS, load

TWO = {"mlp": {"data": {"source": "digits"}}, "cnn": {"data": {"source": "digits"}}}


def points(folder: Path, *axes: str, workloads: Any = DIGITS, **keys: Any) -> list[tuple[Any, ...]]:
    """The values of the axes in each cell, in order."""
    return [
        tuple(getattr(cell.axes, axis) for axis in axes)
        for cell in load(folder, workloads, **keys).cells
    ]


def test_matrix_is_a_cartesian_product_whose_last_axis_varies_fastest(tmp_path: Path) -> None:
    found = points(
        tmp_path,
        "precision",
        "num_threads",
        "num_workers",
        matrix={"precision": ["fp32", "bf16"], "num_threads": [2, 1], "num_workers": [0]},
    )
    assert found == [("fp32", 2, 0), ("fp32", 1, 0), ("bf16", 2, 0), ("bf16", 1, 0)]


def test_zipped_axes_advance_together_within_the_product(tmp_path: Path) -> None:
    found = points(
        tmp_path,
        "num_threads",
        "strategy",
        "world_size",
        matrix={"num_threads": [1, 2]},
        zip=[{"strategy": ["single", "ddp"], "world_size": [1, 2]}],
    )
    assert found == [(1, "single", 1), (1, "ddp", 2), (2, "single", 1), (2, "ddp", 2)]


def test_axes_hold_for_all_and_a_workload_has_its_own(tmp_path: Path) -> None:
    workloads = {
        "mlp": {"axes": {"batch_size": 16}},
        "cnn": None,
        "big": {"uses": "mlp", "axes": {"num_threads": 4}},
    }
    found = points(
        tmp_path,
        "batch_size",
        "num_threads",
        workloads=workloads,
        matrix={"batch_size": 32, "num_threads": 2},
    )
    assert found == [(16, 2), (32, 2), (32, 4)]


def test_batch_size_is_that_of_the_workload_unless_given(tmp_path: Path) -> None:
    workloads = {"mlp": None, "line": {"uses": LINE}}
    assert points(tmp_path, "batch_size", workloads=workloads) == [(64,), (32,)]
    assert points(tmp_path, "batch_size", workloads=workloads, matrix={"batch_size": [8]}) == [
        (8,),
        (8,),
    ]


def test_rule_excludes_what_matches_all_its_axes(tmp_path: Path) -> None:
    sweep = load(
        tmp_path,
        TWO,
        matrix={"precision": ["fp32", "bf16"], "num_threads": [1, 2]},
        exclude=[
            {"workload": "cnn", "precision": "bf16"},
            {"workload": ["mlp", "cnn"], "num_threads": [2, 3]},
        ],
    )
    found = [
        (cell.workload.label, cell.axes.precision, cell.axes.num_threads) for cell in sweep.cells
    ]
    assert found == [("mlp", "fp32", 1), ("mlp", "bf16", 1), ("cnn", "fp32", 1)]
    assert [
        (out.workload, out.axes["precision"], out.axes["num_threads"], out.rule)
        for out in sweep.excluded
    ] == [
        ("mlp", "fp32", 2, "exclude[1]"),
        ("mlp", "bf16", 2, "exclude[1]"),
        ("cnn", "fp32", 2, "exclude[1]"),
        ("cnn", "bf16", 1, "exclude[0]"),
        ("cnn", "bf16", 2, "exclude[0]"),
    ]


def test_rule_that_matches_nothing_is_told_of(tmp_path: Path) -> None:
    sweep = load(
        tmp_path,
        matrix={"num_threads": [1, 2]},
        exclude=[{"num_threads": 3}, {"num_threads": 2}, {"num_workers": 1}],
    )
    assert sweep.unused_rules == ["exclude[0]", "exclude[2]"]


def test_combination_without_sense_is_left_out_and_named(tmp_path: Path) -> None:
    sweep = load(tmp_path, matrix={"strategy": ["single", "ddp"], "world_size": [1, 2, 3]})
    assert [(cell.axes.strategy, cell.axes.world_size) for cell in sweep.cells] == [
        ("single", 1),
        ("ddp", 1),
        ("ddp", 2),
    ]
    assert [(out.rule, out.reason) for out in sweep.excluded] == [
        ("conflict", "strategy single is one rank, world_size is 2"),
        ("conflict", "strategy single is one rank, world_size is 3"),
        (
            "conflict",
            "batch_size 64 can't be shared out evenly among 3 ranks with 1 micro-steps each",
        ),
    ]


def test_conflict_of_a_workload_is_left_out_and_named(tmp_path: Path) -> None:
    workloads = {"distilbert": {"data": {"source": "tickets"}}}
    sweep = load(tmp_path, workloads, matrix={"execution": ["eager", "compile"]})
    assert [cell.axes.execution for cell in sweep.cells] == ["eager"]
    assert [out.rule for out in sweep.excluded] == ["conflict"]
    assert "set padding to fixed" in sweep.excluded[0].reason


def test_included_cells_come_after_the_matrix(tmp_path: Path) -> None:
    found = points(
        tmp_path,
        "precision",
        "num_threads",
        matrix={"num_threads": [1, 2]},
        include=[{"precision": "bf16", "num_threads": [4, 8]}],
    )
    assert found == [("fp32", 1), ("fp32", 2), ("bf16", 4), ("bf16", 8)]


def test_include_brings_back_what_a_rule_excludes(tmp_path: Path) -> None:
    found = points(
        tmp_path,
        "num_threads",
        matrix={"num_threads": [1, 2]},
        exclude=[{"num_threads": 2}],
        include=[{"num_threads": 2}],
    )
    assert found == [(1,), (2,)]


def test_cell_that_occurs_twice_is_kept_once_in_its_first_place(tmp_path: Path) -> None:
    found = points(
        tmp_path,
        "num_threads",
        matrix={"num_threads": [2, 1, 2]},
        include=[{"num_threads": 2}, {"num_threads": 3}],
    )
    assert found == [(2,), (1,), (3,)]


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ({"batch_size": 64}, None),
        ({"batch_size": 64, "strategy": "ddp", "world_size": 2}, None),
        (
            {"batch_size": 5, "strategy": "ddp", "world_size": 2},
            "batch_size 5 can't be shared out evenly among 2 ranks with 1 micro-steps each",
        ),
        (
            {"batch_size": 64, "compile.fullgraph": True},
            "compile.fullgraph does nothing without execution compile",
        ),
        (
            {"batch_size": 64, "strategy": "ddp", "execution": "compile", "ddp.bucket_cap_mb": 0.5},
            "ddp.bucket_cap_mb 0.5 is too small for execution compile",
        ),
        (
            {"batch_size": 64, "loader.prefetch_factor": 4},
            "loader.prefetch_factor does nothing without num_workers",
        ),
        (
            {
                "batch_size": 64,
                "execution": "compile",
                "compile.fullgraph": True,
                "strategy": "ddp",
            },
            "compile.fullgraph is unavailable with strategy ddp, which breaks the graph",
        ),
        (
            {"batch_size": 64, "strategy": "ddp", "ddp.static_graph": True, "grad_accum_steps": 2},
            "ddp.static_graph needs a backward that shares gradients: no grad_accum_steps",
        ),
        (
            {"batch_size": 64, "execution": "compile:max-autotune", "deterministic": True},
            "deterministic is unavailable with compile:max-autotune, which chooses kernels by time",
        ),
        (
            {"batch_size": 64, "strategy": "hsdp", "world_size": 4, "shard_size": 4},
            "shard_size 4 does not make two or more groups of world_size 4",
        ),
        (
            {"batch_size": 64, "strategy": "fsdp2", "fsdp.reduce_dtype": "fp32"},
            "fsdp.reduce_dtype fp32 does nothing with precision fp32",
        ),
        (
            {
                "batch_size": 64,
                "strategy": "hsdp",
                "world_size": 4,
                "shard_size": 2,
                "precision": "bf16:fsdp2",
                "fsdp.reduce_dtype": "fp32",
            },
            None,
        ),
        (
            {
                "batch_size": 64,
                "strategy": "ddp",
                "world_size": 2,
                "comm_hook": "bf16",
                "reduction": "tree",
            },
            "reduction tree is unavailable with comm_hook bf16: DDP takes one communication hook",
        ),
    ],
)
def test_conflict(axes: dict[str, Any], why: str | None) -> None:
    assert find_conflict(Axes.of(axes)) == why


def test_huge_product_is_refused_before_it_is_made(tmp_path: Path) -> None:
    axes = (
        "num_threads",
        "batch_size",
        "num_workers",
        "world_size",
        "loader.prefetch_factor",
        "lr",
    )
    with pytest.raises(BadInput, match=r"sweep.yaml:6: matrix: found 729,000,000 combinations of"):
        load(tmp_path, matrix={axis: list(range(1, 31)) for axis in axes[:5]} | {"lr": [0.1] * 30})


def test_many_trials_are_refused_before_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"found 300,000 combinations of .* at most 200,000$"):
        load(tmp_path, seeds=list(range(30)), repeats=10_000)


def test_cells_that_share_an_id_by_chance_are_refused_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = Cell.digest
    monkeypatch.setattr(Cell, "digest", lambda cell, code: f"{'0' * 10}{digest(cell, code)}")
    with pytest.raises(BadInput, match=r"found the same id for mlp .* t1 and mlp .* t2; allowed"):
        load(tmp_path, matrix={"num_threads": [1, 2]})
    assert len(load(tmp_path, matrix={"num_threads": [1, 1]}).cells) == 1


# A value other than the default, for axes that are not simply true or false.
OTHER_VALUES: dict[str, Any] = {
    "compile.dynamic": False, "cache": "cold", "fsdp.reshard_after_forward": False,
    "fsdp.reduce_dtype": "bf16", "loader.pin_memory": True, "num_workers": 2,
    "loader.prefetch_factor": 4, "ddp.bucket_cap_mb": 1.0, "comm_hook": "bf16", "shard_size": 2,
}  # fmt: skip


@pytest.mark.parametrize("axis", [axis for axis in DEFAULTS if need_of(axis)])
def test_a_setting_without_what_it_needs_is_refused_before_anything_runs(axis: str) -> None:
    """Such as workers of resident samples, and persistent workers without workers."""
    need = need_of(axis)
    assert need is not None
    settings = {"batch_size": 1, axis: OTHER_VALUES.get(axis, not DEFAULTS[axis])}
    if need[1] == "input loader":
        settings["input"] = "resident"
    assert find_conflict(Axes.of(settings)) == f"{axis} does nothing without {need[1]}"
