from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput
from harness.sweep.axes import Axes, find_conflict, setting_that_needs_gpu
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


def test_without_a_matrix_there_is_one_cell_of_defaults(tmp_path: Path) -> None:
    (cell,) = load(tmp_path).cells
    assert cell.axes == Axes(batch_size=64)


def test_matrix_is_a_cartesian_product_whose_last_axis_varies_fastest(tmp_path: Path) -> None:
    found = points(
        tmp_path,
        "precision",
        "num_threads",
        "num_workers",
        matrix={"precision": ["fp32", "bf16"], "num_threads": [2, 1], "num_workers": [0]},
    )
    assert found == [("fp32", 2, 0), ("fp32", 1, 0), ("bf16", 2, 0), ("bf16", 1, 0)]


def test_workloads_follow_one_another_in_the_order_of_the_file(tmp_path: Path) -> None:
    sweep = load(tmp_path, TWO, matrix={"num_threads": [1, 2]})
    found = [(cell.workload.label, cell.axes.num_threads) for cell in sweep.cells]
    assert found == [("mlp", 1), ("mlp", 2), ("cnn", 1), ("cnn", 2)]


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


def test_two_zips_are_multiplied(tmp_path: Path) -> None:
    zips = [
        {"strategy": ["single", "ddp"], "world_size": [1, 2]},
        {"batch_size": [32, 64], "num_workers": [1, 2]},
    ]
    found = points(tmp_path, "strategy", "world_size", "batch_size", "num_workers", zip=zips)
    assert found == [
        ("single", 1, 32, 1),
        ("single", 1, 64, 2),
        ("ddp", 2, 32, 1),
        ("ddp", 2, 64, 2),
    ]


def test_zip_without_axes_changes_nothing(tmp_path: Path) -> None:
    assert points(tmp_path, "num_threads", zip=[{}]) == [(1,)]


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


def test_rule_matches_defaults_too(tmp_path: Path) -> None:
    sweep = load(
        tmp_path, matrix={"num_threads": [1, 2]}, exclude=[{"strategy": "single", "num_threads": 1}]
    )
    assert [cell.axes.num_threads for cell in sweep.cells] == [2]


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


def test_included_cells_can_be_of_one_workload(tmp_path: Path) -> None:
    sweep = load(tmp_path, TWO, include=[{"workload": "cnn", "num_threads": 4}])
    assert [(cell.workload.label, cell.axes.num_threads) for cell in sweep.cells] == [
        ("mlp", 1),
        ("cnn", 1),
        ("cnn", 4),
    ]


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
        ({"batch_size": 64, "strategy": "ddp"}, None),
        ({"batch_size": 64, "world_size": 2}, "strategy single is one rank, world_size is 2"),
        (
            {"batch_size": 5, "strategy": "ddp", "world_size": 2},
            "batch_size 5 can't be shared out evenly among 2 ranks with 1 micro-steps each",
        ),
        (
            {"batch_size": 6, "grad_accum_steps": 4},
            "batch_size 6 can't be shared out evenly among 1 ranks with 4 micro-steps each",
        ),
        (
            {"batch_size": 64, "compile.fullgraph": True},
            "compile.fullgraph does nothing without execution compile",
        ),
        (
            {"batch_size": 64, "execution": "compile", "cache": "cold", "compile.dynamic": False},
            None,
        ),
        (
            {"batch_size": 64, "ddp.bucket_cap_mb": 1},
            "ddp.bucket_cap_mb does nothing without strategy ddp",
        ),
        (
            {"batch_size": 64, "strategy": "ddp", "execution": "compile", "ddp.bucket_cap_mb": 0.5},
            "ddp.bucket_cap_mb 0.5 is unavailable with execution compile: there torch takes 1 or more",
        ),
        (
            {"batch_size": 64, "loader.prefetch_factor": 4},
            "loader.prefetch_factor does nothing without num_workers",
        ),
        (
            {"batch_size": 64, "input": "resident", "num_workers": 2},
            "num_workers does nothing without input loader",
        ),
        (
            {"batch_size": 64, "precision": "bf16:fsdp2", "strategy": "ddp"},
            "precision bf16:fsdp2 is FSDP2's own, strategy is ddp",
        ),
        (
            {
                "batch_size": 64,
                "execution": "compile",
                "compile.fullgraph": True,
                "strategy": "ddp",
            },
            "compile.fullgraph is unavailable with strategy ddp: DDP's own forward breaks the graph, and"
            " FSDP2 breaks it between layers",
        ),
        (
            {"batch_size": 64, "strategy": "ddp", "ddp.static_graph": True, "grad_accum_steps": 2},
            "ddp.static_graph is unavailable with grad_accum_steps:"
            " DDP learns the graph from a backward that shares gradients",
        ),
        ({"batch_size": 64, "execution": "compile", "deterministic": True}, None),
        (
            {"batch_size": 64, "execution": "compile:max-autotune", "deterministic": True},
            "deterministic is unavailable with execution compile:max-autotune, which chooses kernels"
            " by their time",
        ),
        (
            {"batch_size": 64, "strategy": "hsdp", "world_size": 4},
            "strategy hsdp needs shard_size: the ranks that hold one copy of the model",
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
                "strategy": "fsdp2",
                "precision": "fp64",
                "fsdp.reduce_dtype": "fp32",
            },
            None,
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


def test_what_only_a_gpu_can_do() -> None:
    assert setting_that_needs_gpu(Axes(batch_size=1, precision="tf32")) == "precision: found tf32"
    assert (
        setting_that_needs_gpu(Axes.of({"batch_size": 1, "loader.pin_memory": True}))
        == "loader.pin_memory: found true"
    )
    assert (
        setting_that_needs_gpu(Axes(batch_size=1, execution="compile:reduce-overhead")) is not None
    )
    assert setting_that_needs_gpu(Axes(batch_size=1, execution="compile:max-autotune")) is None


@pytest.mark.parametrize(
    "keys",
    [
        {"matrix": {"num_threads": [1]}, "zip": [{"num_threads": [1]}]},
        {"zip": [{"num_threads": [1]}, {"num_threads": [1]}]},
    ],
)
def test_axis_stands_in_one_place(tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(
        BadInput, match="num_threads: found a second time; allowed: an axis in one place"
    ):
        load(tmp_path, **keys)


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


def test_combinations_of_all_workloads_and_inclusions_count(tmp_path: Path) -> None:
    many = list(range(1, 401))
    rule = {"num_threads": many, "num_workers": many[:260]}  # 104,000, for one workload
    with pytest.raises(BadInput, match=r"found 208,002 combinations .* allowed: at most 200,000$"):
        load(tmp_path, TWO, include=[rule])


def test_many_trials_are_refused_before_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"found 200,000 trials over all .* at most 100,000$"):
        load(tmp_path, seeds=list(range(20)), repeats=10_000)


def test_cells_that_share_an_id_by_chance_are_refused_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = Cell.digest
    monkeypatch.setattr(Cell, "digest", lambda cell, code: f"{'0' * 10}{digest(cell, code)}")
    with pytest.raises(BadInput, match=r"found the same id for mlp .* t1 and mlp .* t2; allowed"):
        load(tmp_path, matrix={"num_threads": [1, 2]})
    assert len(load(tmp_path, matrix={"num_threads": [1, 1]}).cells) == 1
