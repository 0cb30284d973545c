"""Loading moves neither the order of samples nor the training's random numbers, whatever the workers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from harness.spec.axes import Axes
from harness.training.loader import make_loader
from harness.training.order import BatchOrder
from workloads.base import Batch


class Drawing:
    """Samples whose batches hold what the three generators drew while they were fetched."""

    def __len__(self) -> int:
        return 32

    def batch(self, indices: Sequence[int]) -> Batch:
        drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
        return (torch.tensor(drawn, dtype=torch.float64),)


def fetch(
    workers: int, seed: int, *, epoch: int = 0, skip: int = 0
) -> list[tuple[list[int], int, list[float]]]:
    order = BatchOrder(samples=32, batch_size=8, seed=seed, dp_rank=0, dp_size=1)
    order.epoch, order.skip = epoch, skip
    loader = make_loader(
        Drawing(),
        order,
        Axes(batch_size=8, num_workers=workers),
        seed=seed,
        device=torch.device("cpu"),
    )
    return [(indices, worker, batch[0].tolist()) for indices, worker, batch in loader]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_trainings_generator_is_left_alone(workers: int) -> None:
    order = BatchOrder(samples=32, batch_size=8, seed=0, dp_rank=0, dp_size=1)
    samples = Drawing()
    samples.batch = lambda indices: (torch.tensor(indices),)  # type: ignore[method-assign]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    list(
        make_loader(
            samples,
            order,
            Axes(batch_size=8, num_workers=workers),
            seed=0,
            device=torch.device("cpu"),
        )
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_change_nothing_but_who_fetches() -> None:
    alone, shared = fetch(0, seed=3), fetch(2, seed=3)
    assert [indices for indices, *_ in alone] == [indices for indices, *_ in shared]
    assert [worker for _, worker, _ in alone] == [-1] * 4
    assert {worker for _, worker, _ in shared} == {0, 1}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_workers_draw_depends_on_the_batch_alone(workers: int) -> None:
    """Not on how many they are, nor on how often they were started before that batch."""
    drawn = [values for _, _, values in fetch(2, seed=3)]
    assert [values for _, _, values in fetch(workers, seed=3)] == drawn
    assert [values for _, _, values in fetch(workers, seed=3, skip=3)] == drawn[3:]
    assert not {*drawn[0]} & {*fetch(workers, seed=3, epoch=1)[0][2]}


def test_workers_are_seeded_each_its_own_way_and_the_same_again() -> None:
    first, again, other = fetch(2, seed=3), fetch(2, seed=3), fetch(2, seed=4)
    assert first == again
    drawn = [tuple(values) for _, _, values in first]
    assert len(set(drawn)) == 4
    assert not {value for values in drawn for value in values} & {
        value for *_, values in other for value in values
    }
