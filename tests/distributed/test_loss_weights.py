"""Ranks and micro-batches of different numbers of tokens have the gradients of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.records.record import Record
from harness.records.trace import Recording, values_path
from harness.reproduce.tracing import TracedTrial, Tracer
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
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


def write_sweep(folder: Path, workload: str, cells: list[dict[str, Any]], **options: Any) -> Path:
    """Write a sweep of these cells in fp64, in their order, and return its path."""
    entries = {}
    for number, axes in enumerate(cells):
        entries[str(number)] = {
            "uses": f"{tokens.__file__}:{workload}",
            "options": options,
            "axes": {"precision": "fp64", **axes},
        }
    return line_sweep(folder, entries, length={"steps": 6})


def first_gradients(folder: Path, workload: str, cells: list[dict[str, Any]]) -> list[Tensor]:
    """Return the gradients that all ranks have summed up in the first step, one tensor a cell."""
    tracer = Tracer(folder, Profile(), 120)
    gradients = []
    for cell in load_sweep(write_sweep(folder, workload, cells)).cells:
        traced = TracedTrial(trial=Trial(cell=cell, seed=0), base_folder=folder)
        run = tracer.trace("cell", traced, Recording(last_step=1, values=True))
        values = load_file(values_path(run.folder, 0))
        names = sorted(name for name in values if "all-reduce" in name)
        assert len(names) == 5
        gradients.append(torch.cat([values[name].flatten() for name in names]))
    return gradients


def test_gradients_in_fp64_are_those_of_one_process(tmp_path: Path) -> None:
    expected, *gradients = first_gradients(tmp_path, "Weighted", [SINGLE, *CUT])
    for gradient in gradients:
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-14)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Trials whose weights are fractions, the last ones with `reduction: tree`."""
    folder = tmp_path_factory.mktemp("tokens")
    cells = [SINGLE, *CUT[:3], *TREES]
    finished = run(write_sweep(folder, "Weighted", cells, weight="fraction"), slots=4)
    assert [record.failure for record in finished] == [None] * len(cells)
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
