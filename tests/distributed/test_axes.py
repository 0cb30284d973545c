"""A pairwise-covering set of settings on two ranks: each is applied, and all train the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.paths import TrialFolder
from harness.measure.clock import Phase
from harness.records.record import Record
from harness.sweep.axes import Axes, find_conflict
from tests.distributed import covering
from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed

# Of the loss, against one process in fp32: bf16 has 8 bits of mantissa, fp16 11.
TOLERANCE = {"fp32": 2e-5, "fp16": 1e-2, "bf16": 5e-2, "bf16:fsdp2": 5e-2}


COVERING = [{"world_size": 2, **row} for row in covering.read()]
# To compile takes far longer than to train.
COMBINATIONS = [
    pytest.param(row, marks=pytest.mark.nightly if row["execution"] == "compile" else ())
    for row in COVERING
]


def test_every_pair_that_makes_sense_is_covered() -> None:
    assert covering.missing_pairs(COVERING) == set()


def test_every_row_makes_sense() -> None:
    assert [find_conflict(Axes.of({"batch_size": 32, **row})) for row in COVERING] == [None] * len(
        COVERING
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


@pytest.mark.nightly
def test_a_cold_cache_compiles_everything_anew_to_the_same_bits(tmp_path: Path) -> None:
    """Not in the covering set, as it takes long and has nothing to do with what is compiled."""
    shared = train(tmp_path, {"execution": "compile"})
    cold = train(tmp_path, {"execution": "compile", "cache": "cold"})
    assert cold.rank0 is not None
    assert shared.rank0 is not None
    assert cold.rank0.parameter_digest == shared.rank0.parameter_digest
    (rank,) = cold.ranks
    assert rank.compiled is not None
    assert rank.compiled.graphs > 0, "it fails where one comes from a cache"
    folder = TrialFolder(tmp_path)
    assert folder.compiler_cache(0) != folder.compiler_cache(1), "ranks compile for themselves"
