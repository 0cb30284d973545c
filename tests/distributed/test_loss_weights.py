"""Ranks and micro-batches of different numbers of tokens have the gradients of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.records.record import Record
from tests.support import tokens
from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed

SINGLE: dict[str, Any] = {"strategy": "single"}
CUT: list[dict[str, Any]] = [
    {"strategy": "single", "grad_accum_steps": 4},
    {"strategy": "ddp", "world_size": 2},
    {"strategy": "fsdp2", "world_size": 2, "grad_accum_steps": 2},
    {"strategy": "hsdp", "world_size": 4, "shard_size": 2},
]
TREES: list[dict[str, Any]] = [
    {"strategy": "single", "grad_accum_steps": 4, "reduction": "tree"},
    {"strategy": "ddp", "world_size": 2, "grad_accum_steps": 2, "reduction": "tree"},
    {"strategy": "fsdp2", "world_size": 4, "reduction": "tree"},
]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Trials in fp64 whose weights are fractions, the last ones with `reduction: tree`."""
    entries = {}
    for number, axes in enumerate([SINGLE, *CUT, *TREES]):
        entries[str(number)] = {
            "uses": f"{tokens.__file__}:Weighted",
            "options": {"weight": "fraction"},
            "axes": {"precision": "fp64", **axes},
        }
    folder = tmp_path_factory.mktemp("tokens")
    finished = run(line_sweep(folder, entries, length={"steps": 6}), slots=4)
    assert [record.failure for record in finished] == [None] * len(entries)
    return sorted(finished, key=lambda record: int(record.trial.cell.workload.label))


def test_recorded_and_evaluated_losses_are_those_of_one_process(records: list[Record]) -> None:
    losses, evaluated = [], []
    for record in records:
        assert record.loss is not None
        assert record.rank0 is not None
        losses.append(record.loss)
        evaluated.append([done.metrics["loss"] for done in record.rank0.evaluations])
    for index in range(1, len(records)):
        np.testing.assert_allclose(losses[index], losses[0], rtol=1e-6)
        np.testing.assert_allclose(evaluated[index], evaluated[0], rtol=1e-10)


def test_a_tree_of_weighted_gradients_has_the_same_bits_at_any_number_of_ranks(
    records: list[Record],
) -> None:
    digests = set()
    for record in records[-len(TREES) :]:
        assert record.rank0 is not None
        digests.add(record.rank0.parameter_digest)
    assert len(digests) == 1
