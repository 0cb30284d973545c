"""How samples reach the loop: from worker processes of a DataLoader, or fetched by the rank itself.

Either way, batches come in the order of a `BatchOrder`, together with the indices of their samples,
from which the digest of the order is computed. What the loop trained on is digested, rather than
what it was meant to train on.
"""

from __future__ import annotations

import multiprocessing
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import connection
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from harness.core.errors import NotApplied
from harness.core.processes import die_with_parent, wait_for_idle_threads
from harness.sweep.axes import Axes
from harness.training.order import BatchOrder, Indices
from harness.training.ranks import CPU, derive_seed, generators_kept, seed_generators
from workloads.base import Batch, DatasetSamples, Samples, StreamSamples, TensorSamples

Fetched = tuple[Indices, Batch]  # a batch as a loader yields it, with the indices of its samples
WORKER_TIMEOUT = 600.0  # seconds that a batch of a worker is waited for
FETCH_STREAM = 1  # of random numbers, which sets fetching apart from training on what was fetched


def make_loader(
    samples: Samples, order: BatchOrder, axes: Axes, *, seed: int, device: torch.device
) -> Iterable[Fetched]:
    """Return an iterable over the batches of `order`; each iteration starts where `order` is then.

    What is drawn while samples are fetched follows from `seed` and the samples, whoever fetches them,
    and leaves the generators of training as they are. Raises NotApplied for resident samples that
    can't be moved to `device`.
    """
    stream = BatchStream(
        samples=samples,
        device=CPU,
        seed=seed,
        order=order,
        micro_batches=axes.grad_accum_steps if axes.reduction == "tree" else None,
        pin_memory=device.type == "cuda" and axes.loader_pin_memory is not False,
    )
    if axes.input == "resident":
        move = getattr(samples, "to", None)
        if move is None:
            name = type(samples).__name__
            raise NotApplied(f"input=resident is unavailable: {name} has no method to(device)")
        stream.samples = move(device)  # all at once
        stream.device, stream.pin_memory = device, False
    if not axes.num_workers:
        return stream
    return _ForkSafeLoader(
        stream,
        batch_size=None,  # they are complete already
        collate_fn=tuple,  # as it is: torch would make a tensor of the indices
        num_workers=axes.num_workers,
        prefetch_factor=axes.loader_prefetch_factor,
        persistent_workers=axes.loader_persistent_workers,
        timeout=WORKER_TIMEOUT,
        worker_init_fn=_prepare_worker,
        pin_memory=stream.pin_memory,
        generator=torch.Generator().manual_seed(derive_seed(seed, order.dp_rank)),
    )


def as_sequence(indices: Indices) -> Sequence[int]:
    """Return an array as workloads get it: a sequence of integers in all but its type."""
    return cast(Sequence[int], indices)


@dataclass(kw_only=True, eq=False)
class BatchStream(IterableDataset[Fetched]):
    """The batches of an order from where it is to the end of its epoch, fetched as they are asked for.

    In a worker process these are every n-th of n workers: a DataLoader takes them in turns, and so has all
    in their order.

    What a Dataset draws for a sample depends on the seed, the epoch and the sample. What is drawn for
    a whole batch, as in a collate function, depends on the seed, the step and the rank's share.

    Under `reduction: tree`, micro-batches are fetched one by one. Random numbers, and the width that
    samples are padded to, then depend on the micro-batch alone, and not on which others its rank has.
    """

    samples: Samples
    device: torch.device  # where the samples are
    seed: int  # of the trial
    order: BatchOrder
    micro_batches: int | None  # of a share that are fetched one by one; None: the whole share
    pin_memory: bool  # for copies to the GPU next to the host's own work

    def __iter__(self) -> Iterator[Fetched]:
        order, worker = self.order, get_worker_info()
        numbered = enumerate(order, start=order.next_step)
        if worker is None:
            for step, indices in numbered:
                # No name here holds a batch, so that the next one gets its memory.
                yield indices, self._fetch_here(step, indices)
            return
        for step, indices in islice(numbered, worker.id, None, worker.num_workers):
            batch = self._fetch(step, indices)
            # Torch would do so in another thread, whose error, such as a full /dev/shm, nobody hears of.
            for tensor in batch:
                tensor.share_memory_()  # type: ignore[no-untyped-call]
            yield indices, batch
        order.seek_next_epoch()  # of a worker that persists

    def _fetch_here(self, step: int, indices: Indices) -> Batch:
        """Return the batch of a step, and leave the generators of training as they are."""
        if type(self.samples) is TensorSamples and self.micro_batches is None:
            # It draws nothing, and to keep the generators would take longer than to fetch.
            batch = self.samples.batch(as_sequence(indices))
        else:
            with generators_kept(self.device):
                batch = self._fetch(step, indices)
        return tuple(tensor.pin_memory() for tensor in batch) if self.pin_memory else batch

    def _fetch(self, step: int, indices: Indices) -> Batch:
        """Return the batch of a step; the generators are left where it takes them.

        Of micro-batches it has all tensors, one micro-batch after the other.
        """
        rank, ranks = self.order.dp_rank, self.order.dp_size
        if self.micro_batches is None:
            return self._fetch_share(step, indices, rank, step)
        tensors: list[torch.Tensor] = []
        for number, share in enumerate(np.split(indices, self.micro_batches)):
            tensors += self._fetch_share(step, share, FETCH_STREAM, step, number * ranks + rank)
        return tuple(tensors)

    def _fetch_share(self, step: int, indices: Indices, *stream: int) -> Batch:
        """Return some samples of a step, with what is drawn for all of them from a stream."""
        seed_generators(derive_seed(self.seed, *stream), self.device)
        epoch = step // self.order.steps
        if isinstance(self.samples, StreamSamples):
            self.samples.begin_epoch(derive_seed(self.seed, FETCH_STREAM, epoch))
        if isinstance(self.samples, DatasetSamples):
            return self.samples.batch(as_sequence(indices), partial(self._seed_sample, epoch))
        return self.samples.batch(as_sequence(indices))

    def _seed_sample(self, epoch: int, index: int) -> None:
        """Seed what is drawn for a sample of an epoch."""
        seed_generators(derive_seed(self.seed, FETCH_STREAM, epoch, index), self.device)


def _prepare_worker(worker: int) -> None:
    """Have a worker process end with its rank at once, and leave nothing behind.

    Torch's own workers notice the end of their rank in 5 s. Torch passes batches on by a socket,
    for which multiprocessing makes a folder `pymp-*` that would stay if the worker is killed.
    """
    parent = multiprocessing.parent_process()
    die_with_parent(parent=parent.pid if parent else None)
    # multiprocessing has no setting for it. Linux's abstract sockets are no files (man 7 unix); whoever
    # connects must know multiprocessing's key of the worker all the same.
    connection.arbitrary_address = lambda _: f"\0harness-{secrets.token_hex(16)}"  # type: ignore[attr-defined]


class _ForkSafeLoader(DataLoader[Any]):
    """A DataLoader that can fork its workers from a process in which other threads are at work.

    Before CPython 3.12, a worker that is forked while a thread registers itself hangs.
    """

    def __iter__(self) -> Any:
        if sys.version_info < (3, 12):
            wait_for_idle_threads()
        return super().__iter__()
