"""A pairwise-covering set of settings on two ranks: each is applied, and all train the same."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.paths import TrialFolder
from harness.measure.clock import Phase
from harness.records.record import Record
from harness.sweep.axes import Axes, find_conflict
from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed

Row = dict[str, Any]
Pair = tuple[str, str]  # two axes with their values, each as JSON, so that True is not 1

# Of the loss, against one process in fp32: bf16 has 8 bits of mantissa, fp16 11.
TOLERANCE = {"fp32": 2e-5, "fp16": 1e-2, "bf16": 5e-2, "bf16:fsdp2": 5e-2}
VALUES: dict[str, list[Any]] = {
    "strategy": ["ddp", "fsdp2"],
    "execution": ["eager", "compile"],
    "precision": ["fp32", "bf16", "fp16", "bf16:fsdp2"],
    "grad_accum_steps": [1, 2],
    "input": ["loader", "resident"],
    "num_workers": [0, 2],
    "loader.persistent_workers": [True, False],
    "loader.prefetch_factor": [2, 1],
    "ddp.bucket_cap_mb": [None, 1e-4],  # 104 bytes: the model's gradients have 644
    "ddp.gradient_as_bucket_view": [False, True],
    "ddp.static_graph": [False, True],
    "fsdp.reshard_after_forward": [None, True, False],
    "compile.dynamic": [None, False],
    "activation_checkpointing": [False, True],
    "max_grad_norm": [None, 1e6],
    "optimizer_impl": ["for-loop", "foreach", "fused"],
}
# Few rows that cover every pair of values that makes sense.
COVERING: list[Row] = [
    {"world_size": 2, **row}
    for row in json.loads(Path(__file__).with_name("covering.json").read_text())
]
# To compile takes far longer than to train.
COMBINATIONS = [
    pytest.param(row, marks=pytest.mark.nightly if row["execution"] == "compile" else ())
    for row in COVERING
]


def fits(row: Row) -> bool:
    """Return whether settings go together, on two ranks."""
    return find_conflict(Axes.of({"batch_size": 32, "world_size": 2, **row})) is None


def pairs_of(row: Row) -> set[Pair]:
    """Return every pair of settings in a row."""
    settings = [json.dumps([axis, row[axis]]) for axis in VALUES]
    return set(itertools.combinations(settings, 2))


def possible_pairs() -> set[Pair]:
    """Return the pairs that go with some choice of the axes that others need."""
    needed = ("strategy", "execution", "input", "num_workers", "grad_accum_steps")
    pairs: set[Pair] = set()
    for axis, other_axis in itertools.combinations(VALUES, 2):
        free = [name for name in needed if name not in (axis, other_axis)]
        choices = list(itertools.product(*(VALUES[name] for name in free)))
        for value, other_value in itertools.product(VALUES[axis], VALUES[other_axis]):
            settings = {axis: value, other_axis: other_value}
            if any(fits(settings | dict(zip(free, choice, strict=True))) for choice in choices):
                pairs.add((json.dumps([axis, value]), json.dumps([other_axis, other_value])))
    return pairs


def test_every_pair_that_makes_sense_is_covered() -> None:
    """After a new axis or value, or a new rule of what goes with what, this names what the rows lack."""
    assert [row for row in COVERING if not fits(row)] == []
    assert possible_pairs().difference(*map(pairs_of, COVERING)) == set()


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


@pytest.mark.parametrize("axes", COMBINATIONS, ids=json.dumps)
def test_a_combination_of_settings_is_applied_and_trains_the_same(
    reference: Record, tmp_path: Path, axes: dict[str, Any]
) -> None:
    record = train(tmp_path, axes)
    assert record.failure is None, record.failure
    assert record.order_digest == reference.order_digest
    assert record.loss is not None
    assert reference.loss is not None
    losses, expected = record.loss, reference.loss
    if axes["precision"] == "fp16":
        # All ranks alike skip the first steps, in which the loss scale is too high.
        assert len({rank.numbers["loss_scale"] for rank in record.ranks}) == 1
        losses, expected = losses[:1], expected[:1]
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE[axes["precision"]])
    if axes["precision"] != "fp32":
        is_as_exact = np.allclose(losses, expected, rtol=1e-6)
        assert not is_as_exact, "as exact as fp32: the precision was not applied"
    assert ("compile" in record.phases) == (axes["execution"] == "compile")
    for rank in record.ranks:
        # On the CPU, nothing is moved to a device.
        assert set(rank.step_phases) == {phase.name for phase in Phase} - {"host_to_device"}
        graphs = rank.numbers.get("compile_graphs", 0)
        assert (graphs > 0) == (axes["execution"] == "compile")
        assert ("loss_scale" in rank.numbers) == (axes["precision"] == "fp16")


@pytest.mark.nightly
def test_a_cold_cache_compiles_everything_anew_to_the_same_bits(tmp_path: Path) -> None:
    """Not in the covering set, as it takes long and has nothing to do with what is compiled."""
    shared = train(tmp_path, {"execution": "compile"})
    cold = train(tmp_path, {"execution": "compile", "cache": "cold"})
    assert cold.rank0 is not None
    assert shared.rank0 is not None
    assert cold.rank0.parameter_digest == shared.rank0.parameter_digest
    assert cold.numbers["compile_graphs"] > 0, "it fails where one comes from a cache"
    folder = TrialFolder(tmp_path)
    assert folder.compiler_cache(0) != folder.compiler_cache(1), "ranks compile for themselves"
