"""Loading changes neither the order of samples nor training's random numbers, with any workers."""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from harness.sweep.axes import Axes
from harness.training.loader import make_loader
from harness.training.order import BatchOrder
from tests.support.training import CPU
from workloads.base import Batch, DatasetSamples, StreamSamples


class RandomSamples:
    """Samples whose batches have what the three generators drew meanwhile, and who fetched them."""

    def __len__(self) -> int:
        return 32

    def batch(self, indices: Sequence[int]) -> Batch:
        drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
        return torch.tensor(drawn, dtype=torch.float64), torch.tensor(os.getpid())


def fetch(
    workers: int, seed: int, *, epoch: int = 0, skip: int = 0
) -> list[tuple[list[int], int, list[float]]]:
    """Return, for each batch, its indices, who fetched it, and what was drawn meanwhile."""
    order = BatchOrder(samples=32, batch_size=8, seed=seed, dp_rank=0, dp_size=1)
    order.next_step = epoch * order.steps + skip
    loader = make_loader(
        RandomSamples(),
        order,
        Axes(batch_size=8, num_workers=workers),
        seed=seed,
        device=CPU,
    )
    fetched = []
    for indices, (drawn, process) in loader:
        fetched.append((indices.tolist(), int(process), drawn.tolist()))
    return fetched


def test_workers_change_nothing_but_who_fetches() -> None:
    """Neither the order nor what is drawn; and the generators of training stay as they are."""
    before = generators()
    without_workers, with_workers = fetch(0, seed=3), fetch(2, seed=3)
    for alone, by_worker in zip(without_workers, with_workers, strict=True):
        assert (alone[0], alone[2]) == (by_worker[0], by_worker[2])
    assert {process for _, process, _ in without_workers} == {os.getpid()}
    assert len({process for _, process, _ in with_workers} - {os.getpid()}) == 2
    assert generators() == before
    # Nor does what is drawn depend on how often workers were started before.
    assert [drawn for _, _, drawn in fetch(1, seed=3, skip=3)] == [with_workers[3][2]]
    assert fetch(1, seed=3, epoch=1)[0][2] != with_workers[0][2]


class NoisyDataset(Dataset[Tensor]):
    """A Dataset that draws for each sample, from all three generators."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Tensor:
        drawn = [index, random.random(), float(np.random.random()), float(torch.rand(()))]
        return torch.tensor(drawn, dtype=torch.float64)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_dataset_draws_for_a_sample_depends_on_seed_epoch_and_sample(workers: int) -> None:
    """Not on how many ranks share the batches out."""

    def drawn_by_sample(ranks: int, epoch: int) -> dict[float, list[float]]:
        drawn = {}
        for rank in range(ranks):
            order = BatchOrder(samples=32, batch_size=8, seed=3, dp_rank=rank, dp_size=ranks)
            order.next_step = epoch * order.steps
            axes = Axes(batch_size=8, num_workers=workers)
            samples = DatasetSamples(
                NoisyDataset(), lambda rows: default_collate(list(rows)), range(32)
            )
            for _, (rows,) in make_loader(samples, order, axes, seed=3, device=CPU):
                drawn.update({row[0]: row[1:] for row in rows.tolist()})
        return drawn

    alone = drawn_by_sample(1, 0)
    assert len({tuple(values) for values in alone.values()}) == 32
    assert drawn_by_sample(2, 0) == alone
    later = drawn_by_sample(1, 1)
    assert all(later[sample] != alone[sample] for sample in alone)


def generators() -> tuple[Any, ...]:
    """Return the states of torch's, Python's and NumPy's generators."""
    torch_state: list[int] = torch.get_rng_state().tolist()
    return torch_state, random.getstate(), str(np.random.get_state())


class PaddedSamples(RandomSamples):
    """Random samples whose batches are as wide as their last sample's number is large."""

    def batch(self, indices: Sequence[int]) -> Batch:
        drawn, _ = super().batch(indices)
        shape = (len(indices), 1 + max(indices))
        return torch.tensor(indices), drawn.new_full(shape, float(drawn.sum()))

    def to(self, device: torch.device) -> PaddedSamples:
        return self


def fetch_micro_batches(dp_size: int, **axes: Any) -> list[list[Tensor]]:
    """Return the tensors of all micro-batches of an epoch under `reduction: tree`, in their order."""
    micro_steps = 4 // dp_size
    epoch: list[list[Tensor]] = [[] for _ in range(4 * 4)]  # of four steps
    for dp_rank in range(dp_size):
        order = BatchOrder(
            samples=32,
            batch_size=8,
            seed=3,
            dp_rank=dp_rank,
            dp_size=dp_size,
            micro_steps=micro_steps,
        )
        tree = Axes(batch_size=8, reduction="tree", grad_accum_steps=micro_steps, **axes)
        loader = make_loader(PaddedSamples(), order, tree, seed=3, device=CPU)
        for step, (_, batch) in enumerate(loader):
            for number in range(micro_steps):
                micro_batch = batch[2 * number : 2 * number + 2]
                epoch[4 * step + number * dp_size + dp_rank] = list(micro_batch)
    return epoch


@pytest.mark.parametrize(
    "axes",
    [{}, {"num_workers": 2}, {"input": "resident"}],
    ids=["no worker", "workers", "resident"],
)
def test_a_micro_batch_of_a_tree_does_not_depend_on_ranks_or_workers(axes: dict[str, Any]) -> None:
    """Neither what is drawn while it is fetched nor the width that it is padded to."""
    expected = fetch_micro_batches(1)
    assert len({float(drawn[0, 0]) for _, drawn in expected}) == 16
    for dp_size in (1, 2, 4):
        fetched = fetch_micro_batches(dp_size, **axes)
        for tensors, expected_tensors in zip(fetched, expected, strict=True):
            assert all(map(torch.equal, tensors, expected_tensors))


@pytest.mark.parametrize("reduction", ["backend", "tree"])
def test_a_stream_is_shuffled_anew_in_each_epoch(reduction: Any) -> None:
    seeds = []

    def read(seed: int) -> Iterator[int]:
        seeds.append(seed)
        yield from range(8)

    samples = StreamSamples(read, 8, lambda values: (torch.tensor(values),))
    order = BatchOrder(samples=8, batch_size=8, seed=3, dp_rank=0, dp_size=1, in_order=True)
    axes = Axes(batch_size=8, reduction=reduction, grad_accum_steps=2)
    loader = make_loader(samples, order, axes, seed=3, device=CPU)
    for epoch in range(2):
        order.next_step = epoch
        list(loader)
    assert len(set(seeds)) == len(seeds) == 2


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_worker_that_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.training.loader.WORKER_TIMEOUT", 0.2)
    monkeypatch.setattr(RandomSamples, "batch", lambda *_: time.sleep(1))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        fetch(1, 0)


# torch's handler of SIGCHLD raises wherever Python is just then, in a finalizer too.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_worker_that_is_killed_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # forked workers inherit it
    # Where a batch breaks off, torch opens ten of these to see whether it may open files. Its handler
    # of SIGCHLD may raise in the middle of that, and one of them would stay. Others have no name.
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", tempfile.TemporaryFile)
    order = BatchOrder(samples=32, batch_size=8, seed=0, dp_rank=0, dp_size=1)
    axes = Axes(batch_size=8, num_workers=1)
    loader = make_loader(RandomSamples(), order, axes, seed=0, device=torch.device("cpu"))
    batches = iter(loader)
    next(batches)
    (worker,) = multiprocessing.active_children()
    worker.kill()
    with pytest.raises((RuntimeError, EOFError, ConnectionError)):
        for _ in batches:
            pass
    assert list(tmp_path.iterdir()) == []
