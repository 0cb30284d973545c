"""A cause is named only if the cells differ in it and it can show in that phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.records.trace import PHASES
from harness.reproduce.causes import CAUSES, likely_causes
from harness.spec.axes import AXES, RECIPE_AXES
from harness.spec.environment import PREFIX
from tests.factories import make_cell

DDP = {"strategy": "ddp", "world_size": 4}


@pytest.mark.parametrize(
    ("a", "b", "phase", "draws_random", "causes"),
    [
        (DDP, {**DDP, "ddp.bucket_cap_mb": 0.01}, "all-reduce", True, ["bucket layout"]),
        (DDP, {**DDP, "ddp.bucket_cap_mb": 0.01}, "forward", False, []),
        ({}, {"precision": "bf16"}, "forward", False, ["dtype"]),
        ({}, {"num_threads": 2}, "backward", False, ["threads"]),
        ({}, {"execution": "compile", "num_threads": 2}, "optimizer", False, ["threads"]),
        ({}, {"execution": "compile"}, "forward", False, ["compiler"]),
        ({}, {"optimizer_impl": "fused"}, "optimizer", False, ["optimizer implementation"]),
        ({}, DDP, "all-reduce", False, ["reduction order"]),
        ({}, DDP, "all-reduce", True, ["reduction order", "RNG"]),
        # What ranks compute before the all-reduce can't be compared between 1 and 4 of them.
        ({}, {**DDP, "precision": "bf16"}, "all-reduce", False, ["dtype", "reduction order"]),
        ({}, {**DDP, "optimizer_impl": "fused"}, "all-reduce", False, ["reduction order"]),
        ({}, {"grad_accum_steps": 2}, "all-reduce", True, ["reduction order", "RNG"]),
        # Where gradients are the same, as by `reduction: tree`, the sum over the test set may not be.
        (DDP, {**DDP, "world_size": 2}, "evaluation", True, ["reduction order"]),
        ({}, {"loader.persistent_workers": False}, "data", False, ["loader.persistent_workers"]),
        ({}, {}, "random", True, ["RNG"]),
        ({}, {}, "forward", False, []),
    ],
)
def test_causes(
    a: dict[str, Any], b: dict[str, Any], phase: str, draws_random: bool, causes: list[str]
) -> None:
    assert sorted(causes_of(a, b, phase, draws_random=draws_random)) == sorted(causes)


@pytest.mark.parametrize(
    ("a", "b", "phase", "facts", "causes"),
    [
        ({}, DDP, "all-reduce", {}, ["not explained by rounding"]),
        ({}, {"grad_accum_steps": 2}, "all-reduce", {}, ["not explained by rounding"]),
        ({}, {"num_threads": 2}, "forward", {}, ["not explained by rounding"]),
        ({}, {**DDP, "precision": "bf16"}, "all-reduce", {}, ["dtype"]),
        ({}, DDP, "all-reduce", {"draws_random": True}, ["RNG"]),
        ({}, DDP, "all-reduce", {"uses_batch_statistics": True}, ["batch statistics"]),
        (DDP, {**DDP, "comm_hook": "bf16"}, "all-reduce", {}, ["compressed gradients"]),
        # Random numbers of a compiled dropout are others.
        ({}, {"execution": "compile"}, "forward", {}, ["compiler"]),
    ],
)
def test_a_large_difference_has_no_cause_that_only_rounds(
    a: dict[str, Any], b: dict[str, Any], phase: str, facts: dict[str, bool], causes: list[str]
) -> None:
    assert causes_of(a, b, phase, is_beyond_rounding=True, **facts) == causes


def causes_of(a: dict[str, Any], b: dict[str, Any], phase: str, **facts: bool) -> list[str]:
    """Return what is named, with all facts false that are not given."""
    unset = {"draws_random": False, "uses_batch_statistics": False, "is_beyond_rounding": False}
    return likely_causes(make_cell(**a), make_cell(**b), phase, **{**unset, **facts})


@pytest.mark.parametrize("phase", ["parameters", "forward"])
def test_an_instruction_set_draws_other_parameters_too(phase: str) -> None:
    limited = replace(make_cell(), environment={"ATEN_CPU_CAPABILITY": "default"})
    for is_beyond_rounding in (False, True):
        named = likely_causes(
            make_cell(),
            limited,
            phase,
            draws_random=False,
            uses_batch_statistics=False,
            is_beyond_rounding=is_beyond_rounding,
        )
        assert named == ["ISA"]


def test_every_cause_is_of_an_axis_and_of_phases() -> None:
    axes = {axis for axis in CAUSES if not axis.startswith(PREFIX)}
    assert axes <= set(AXES) - set(RECIPE_AXES)
    for cause in CAUSES.values():
        assert set(cause.phases) <= set(PHASES)
