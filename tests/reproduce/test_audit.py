"""The audit turns one setting at a time, and says what that did."""

from __future__ import annotations

import pytest

from harness.analysis.compare import setting_differences
from harness.analysis.parity import CellParity, FirstDifference, Reference
from harness.core.errors import BadInput
from harness.gate import tax
from harness.gate.paired import PairedResult
from harness.gate.tax import Tax, ranks_side_by_side, with_ranks
from harness.render.audit import (
    answer_of,
    describe_turn,
    relaunch_row,
    row,
    tax_line,
)
from harness.reproduce.audit import choose_workloads, plan_audit, taxed_pairs
from harness.spec.axes import find_conflict
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep, load_sweep, ready_sweeps
from tests.factories import make_cell


@pytest.fixture(scope="module")
def mlp() -> Sweep:
    """The ready sweep, for the MLP only."""
    return choose_workloads(load_sweep(ready_sweeps()["audit"]), ["mlp"])


def test_the_ready_sweep_turns_one_setting_at_a_time(mlp: Sweep) -> None:
    turns = set()
    for group in plan_audit(mlp).groups:
        for cell in group.cells:
            settings = setting_differences(group.reference, cell)
            turns.add(" ".join(settings))
            # Fewer ranks need more micro-steps to have the same tree.
            assert len(settings) == 1 or set(settings) == {"world_size", "grad_accum_steps"}
    assert turns == {
        "num_workers",
        "world_size",
        "world_size grad_accum_steps",
        "num_threads",
        "bucket_cap_mb",
        "static_graph",
        "gradient_as_bucket_view",
        "optimizer_impl",
        "activation_checkpointing",
        "env.ATEN_CPU_CAPABILITY",
        "deterministic",
        "reduction",
        "strategy",
        "fsdp_wrap",
        "execution",
        "cache",
    }


def test_most_cells_are_held_against_four_ranks(mlp: Sweep) -> None:
    """Two would prove nothing about the order of sums."""
    first = plan_audit(mlp).groups[0]
    assert (first.reference.axes.strategy, first.reference.axes.world_size) == ("ddp", 4)
    assert len(first.cells) == 17


def test_a_cell_like_several_is_held_against_the_first(mlp: Sweep) -> None:
    reference = mlp.cells[0]
    (group,) = plan_audit(
        Sweep(
            **{
                **vars(mlp),
                "cells": [reference, with_ranks(reference, 2), with_ranks(reference, 1)],
            }
        )
    ).groups
    assert group.reference is reference


def test_a_sweep_without_a_pair_is_refused(mlp: Sweep) -> None:
    with pytest.raises(BadInput, match="found no two cells of a workload; allowed: at least two"):
        plan_audit(Sweep(**{**vars(mlp), "cells": mlp.cells[:1]}))
    with pytest.raises(BadInput, match="--workload: found 'mpl'; did you mean 'mlp'"):
        choose_workloads(mlp, ["mpl"])


def test_costs_are_those_of_deterministic_mode_and_of_the_tree(mlp: Sweep) -> None:
    pairs = taxed_pairs(plan_audit(mlp))
    assert [pair.setting for pair in pairs] == ["reduction", "deterministic"]
    assert {pair.reference.id for pair in pairs} == {mlp.cells[0].id}


@pytest.mark.parametrize(
    ("cores", "threads", "ranks"), [(1, 1, 1), (2, 1, 2), (3, 1, 2), (16, 1, 4), (4, 2, 2)]
)
def test_costs_are_measured_by_ranks_that_run_at_once(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, ranks: int
) -> None:
    monkeypatch.setattr(tax, "usable_cores", lambda: list(range(cores)))
    cell = make_cell(strategy="ddp", world_size=4, num_threads=threads)
    assert ranks_side_by_side(cell, Profile(device="cpu")) == ranks


def test_a_mesh_of_groups_keeps_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.gate.tax.usable_cores", lambda: [0, 1])
    hybrid = make_cell(strategy="hsdp", world_size=8, shard_size=2)
    groups = make_cell(strategy="fsdp2", world_size=8, tensor_parallel=4)
    for cell in (hybrid, groups):
        fewer = with_ranks(cell, ranks_side_by_side(cell, Profile(device="cpu")))
        assert fewer.axes.world_size == 4
        assert find_conflict(fewer.axes) is None


REFERENCE = make_cell(strategy="ddp", world_size=4)
THREADS = make_cell(strategy="ddp", world_size=4, num_threads=2)


def test_a_turn_is_described_by_both_values() -> None:
    small = make_cell(strategy="ddp", world_size=4, bucket_cap_mb=0.05, static_graph=True)
    assert (
        describe_turn(REFERENCE, small) == "bucket_cap_mb unset → 0.05, static_graph false → true"
    )


@pytest.mark.parametrize(
    ("cell", "answer"),
    [
        (CellParity(cell=THREADS, reference="", tensor_rung="bitwise"), "bitwise"),
        (
            CellParity(cell=THREADS, reference="", tensor_rung="ulp", largest_ulp=2),
            "within tolerance",
        ),
        (CellParity(cell=THREADS, reference="", tensor_rung="fp64"), "within tolerance"),
        (CellParity(cell=THREADS, reference=""), "neither"),
        (CellParity(cell=THREADS, reference="", failure="rank 0: no"), "failed"),
    ],
)
def test_a_rung_answers_whether_the_bits_are_the_same(cell: CellParity, answer: str) -> None:
    assert answer_of(cell) == answer


def test_a_row_names_what_was_turned_and_where_the_two_part() -> None:
    first = FirstDifference(step=1, phase="forward", ranks=[0, 1])
    cell = CellParity(
        cell=THREADS, reference="", first_difference=first, causes=["threads"], tensor_rung="fp64"
    )
    assert [str(text) for text in row(REFERENCE, cell)] == [
        "num_threads 1 → 2",
        "within tolerance",
        "fp64 rule",
        "step 1, forward",
        "threads",
        "–",
    ]


@pytest.mark.parametrize(
    ("control", "columns"),
    [
        (None, ["bitwise", "bitwise", "–", "–"]),
        (
            FirstDifference(step=3, phase="data", ranks=[0]),
            ["neither", "can't tell", "step 3, data", "not deterministic"],
        ),
    ],
)
def test_a_second_run_is_a_row_too(control: FirstDifference | None, columns: list[str]) -> None:
    reference = Reference(
        cell=REFERENCE, control=control, steps=[1], draws_random=False, fp64_problem=None
    )
    assert [str(text) for text in relaunch_row(reference)[1:5]] == columns


def test_a_cost_has_its_interval() -> None:
    with_mode = make_cell(strategy="ddp", world_size=2, deterministic=True)
    reference = make_cell(strategy="ddp", world_size=2)
    measured = PairedResult(ratio=0.95, low=0.93, high=0.97, pairs=12, seconds=20.4)
    line = tax_line(
        Tax(setting="deterministic", reference=reference, cell=with_mode, measured=measured)
    )
    assert line == (
        "deterministic false → true: throughput -5.0% [-7.0%, -3.0%]"
        " (mlp eager fp32 ddp×2 w0 b64 t1, 12 pairs, 20 s)"
    )
