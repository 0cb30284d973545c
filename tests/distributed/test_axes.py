"""A pairwise-covering set of settings on two ranks: each is applied, and all train the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covertable import make

from harness.core.paths import TrialFolder
from harness.measure.clock import Phase
from harness.records.record import Record
from harness.spec.axes import DEFAULTS, NEEDS, Axes, Requirement, find_conflict
from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed

VALUES: dict[str, list[Any]] = {
    "strategy": ["ddp", "fsdp2"],
    "execution": ["eager", "compile"],
    "precision": ["fp32", "bf16", "fp16", "bf16:fsdp2"],
    "grad_accum_steps": [1, 2],
    "input": ["loader", "resident"],
    "num_workers": [0, 2],
    "persistent_workers": [True, False],
    "prefetch_factor": [2, 1],
    "bucket_cap_mb": [None, 1e-4],  # 104 bytes: the model's gradients have 644
    "gradient_as_bucket_view": [False, True],
    "static_graph": [False, True],
    "fsdp_wrap": ["layers", "root"],
    "reshard_after_forward": ["auto", "always", "never"],
    "dynamic": ["auto", "never"],
    "fullgraph": [False, True],
    "activation_checkpointing": [False, True],
    "max_grad_norm": [None, 1e6],
    "optimizer_impl": ["for-loop", "foreach", "fused"],
}
# Of the loss, against one process in fp32: bf16 has 8 bits of mantissa, fp16 11.
TOLERANCE = {"fp32": 2e-5, "fp16": 1e-2, "bf16": 5e-2, "bf16:fsdp2": 5e-2}


def rule_of(need: Requirement, dependent: str) -> dict[str, Any]:
    """Return the rule that an axis has its default unless what it needs is there."""

    def evaluate(row: dict[str, Any]) -> bool:
        return bool(row[dependent] == DEFAULTS[dependent] or need.met(row[need.axis]))

    return rule(need.axis, dependent, holds=evaluate)


def rule(*axes: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return a constraint over `axes` as covertable takes it."""
    return {"operator": "fn", "requires": list(axes), "evaluate": holds}


# Each over few axes, as covertable needs them. That they are those of `find_conflict` is tested
# below.
CONSTRAINTS = [
    rule_of(need, dependent)
    for need in NEEDS
    for dependent in need.dependents
    if dependent in VALUES
]
CONSTRAINTS += [
    rule(
        "precision",
        "strategy",
        holds=lambda row: row["precision"] != "bf16:fsdp2" or row["strategy"] == "fsdp2",
    ),
    rule(
        "execution",
        "bucket_cap_mb",
        holds=lambda row: row["execution"] == "eager" or row["bucket_cap_mb"] is None,
    ),
    rule(
        "static_graph",
        "grad_accum_steps",
        holds=lambda row: not row["static_graph"] or row["grad_accum_steps"] == 1,
    ),
    rule(
        "strategy",
        "fullgraph",
        "fsdp_wrap",
        holds=lambda row: (
            not row["fullgraph"] or (row["strategy"], row["fsdp_wrap"]) == ("fsdp2", "root")
        ),
    ),
]
# Of ninety that were tried, the one with the fewest rows that compile, as those take several times
# as long.
SALT = "55"
COVERING: list[dict[str, Any]] = [
    {"world_size": 2, **row} for row in make(VALUES, constraints=CONSTRAINTS, salt=SALT)
]


def test_every_pair_that_makes_sense_is_covered() -> None:
    for axis, other_axis in itertools.combinations(VALUES, 2):
        covered = {(row[axis], row[other_axis]) for row in COVERING}
        for value, other_value in itertools.product(VALUES[axis], VALUES[other_axis]):
            pair = {axis: value, other_axis: other_value}
            if is_possible(pair):
                assert (value, other_value) in covered, pair


def test_every_row_makes_sense() -> None:
    assert [find_conflict(Axes(batch_size=32, **row)) for row in COVERING] == [None] * len(COVERING)


def is_possible(pair: dict[str, Any]) -> bool:
    """Return whether a pair of settings goes with some choice of the axes that others need."""
    needed = ("strategy", "fsdp_wrap", "execution", "input", "num_workers", "grad_accum_steps")
    free = [axis for axis in needed if axis not in pair]
    return any(
        find_conflict(
            Axes(batch_size=32, world_size=2, **pair, **dict(zip(free, choice, strict=True)))
        )
        is None
        for choice in itertools.product(*(VALUES[axis] for axis in free))
    )


def train(folder: Path, axes: dict[str, Any]) -> Record:
    """Train twelve steps of the test workload."""
    (record,) = run(
        line_sweep(folder, {"line": {"axes": axes}}, length={"steps": 12}, evaluate={"steps": 12})
    )
    return record


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Train in one process in fp32."""
    return train(tmp_path_factory.mktemp("axes"), {})


@pytest.mark.parametrize("axes", COVERING, ids=json.dumps)
def test_a_combination_of_settings_is_applied_and_trains_the_same(
    reference: Record, tmp_path: Path, axes: dict[str, Any]
) -> None:
    record = train(tmp_path, axes)
    assert record.failure is None, record.failure
    assert record.order_digest == reference.order_digest
    assert record.loss is not None
    assert reference.loss is not None
    losses, expected = record.loss.unpack(), reference.loss.unpack()
    if axes["precision"] == "fp16":
        # All ranks alike skip the first steps, in which the loss scale is too high.
        assert len({rank.loss_scale for rank in record.ranks}) == 1
        losses, expected = losses[:1], expected[:1]
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE[axes["precision"]])
    if axes["precision"] != "fp32":
        is_as_exact = np.allclose(losses, expected, rtol=1e-6)
        assert not is_as_exact, "as exact as fp32: the precision was not applied"
    assert ("compile" in record.phases) == (axes["execution"] == "compile")
    for rank in record.ranks:
        # On the CPU, nothing is moved to a device.
        assert set(rank.step_phases) == {phase.name for phase in Phase} - {"host_to_device"}
        assert (rank.compiled is not None) == (axes["execution"] == "compile")
        assert (rank.loss_scale is not None) == (axes["precision"] == "fp16")
        assert rank.loader_workers == axes["num_workers"]
        if rank.compiled:
            assert rank.compiled.graphs >= 1
            assert rank.compiled.seconds > 0


def test_a_cold_cache_compiles_everything_anew(tmp_path: Path) -> None:
    """Not in the covering set, as it takes long and has nothing to do with what is compiled."""
    train(tmp_path, {"execution": "compile"})
    (rank,) = train(tmp_path, {"execution": "compile", "cache": "cold"}).ranks
    assert rank.compiled is not None
    assert rank.compiled.cache_misses > 0
    assert rank.compiled.cache_hits == 0
    folder = TrialFolder(tmp_path)
    assert folder.compiler_cache(0) != folder.compiler_cache(1), "ranks compile for themselves"
