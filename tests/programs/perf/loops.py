"""One training in three ways: the harness's, the same loop written bare, and the loop of textbooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from harness.records.assignment import Assignment
from harness.sweep.cell import Trial
from harness.training.entry import load_workload
from harness.training.loader import as_sequence
from harness.training.order import BatchOrder
from harness.training.ranks import Ranks, derive_seed, seed_everything
from tests.support.training import CPU, NoEvaluation, make_trainer
from workloads.base import Batch, Samples, Workload, load_splits


class Loop(Protocol):
    """A training that goes on where it stopped."""

    @property
    def losses(self) -> list[float]:
        """Return the loss of every step so far."""
        ...

    def train(self, steps: int) -> None:
        """Train so many more steps."""


class Harness:
    """The harness's own loop with all that it does besides training.

    That is clocks, digests, checks of the losses, telemetry's calls and progress.
    """

    def __init__(
        self, assignment: Assignment, folder: Path, ranks: Ranks, device: torch.device = CPU
    ) -> None:
        workload = load_workload(assignment)
        hooks = NoEvaluation()
        self.trainer = make_trainer(
            assignment, workload, folder, ranks=ranks, hooks=hooks, device=device
        )

    def train(self, steps: int) -> None:
        self.trainer.run(until=self.trainer.state.step + steps)

    @property
    def losses(self) -> list[float]:
        return self.trainer.state.series["loss"]


class Bare:
    """What a careful engineer writes by hand for one case.

    Whole batches are fetched at once, and nothing is read from the device in a step.
    """

    def __init__(
        self, trial: Trial, workload: Workload, ranks: Ranks, device: torch.device = CPU
    ) -> None:
        cell = trial.cell
        samples = load_splits(workload).train
        order = BatchOrder(
            samples=len(samples),
            batch_size=cell.axes.batch_size,
            seed=derive_seed(trial.seed),
            dp_rank=ranks.rank,
            dp_size=ranks.world_size,
        )
        seed_everything(trial.seed)
        self.workload = workload
        self.device = device
        self.model = workload.build_model().to(device)
        if cell.axes.strategy == "ddp":
            self.model = DistributedDataParallel(self.model)
        self.optimizer = workload.optimizer(self.model)
        self.schedule = workload.schedule(self.optimizer, cell.length.in_steps(order.steps))
        seed_everything(trial.seed, ranks.rank)
        self.batches = _whole_batches(samples, order, pin_memory=device.type == "cuda")
        self._losses: list[Tensor] = []

    @property
    def losses(self) -> list[float]:
        if not self._losses:
            return []
        losses: list[float] = torch.stack(self._losses).tolist()
        return losses

    def train(self, steps: int) -> None:
        for _ in range(steps):
            loss = self.workload.loss(self.model, _on_device(next(self.batches), self.device))
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            self.optimizer.zero_grad(set_to_none=True)
            self._losses.append(loss.detach())


class Textbook:
    """What textbooks show.

    Samples are fetched one at a time and put together by the default collate function, the
    optimizer has its default implementation, and each step calls `.item()`.
    """

    def __init__(self, trial: Trial, workload: Workload, device: torch.device = CPU) -> None:
        samples = load_splits(workload).train
        seed_everything(trial.seed)
        self.workload = workload
        self.device = device
        self.model = workload.build_model().to(device)
        self.optimizer = workload.optimizer(self.model)
        for group in self.optimizer.param_groups:
            group["fused"] = None
        data_set = TensorDataset(*samples.batch(range(len(samples))))
        size = trial.cell.axes.batch_size
        self.schedule = workload.schedule(
            self.optimizer, trial.cell.length.in_steps(len(samples) // size)
        )
        loader: DataLoader[Any] = DataLoader(
            data_set, batch_size=size, shuffle=True, drop_last=True
        )
        self.batches = chain.from_iterable(repeat(loader))  # one epoch after the other
        self.losses: list[float] = []

    def train(self, steps: int) -> None:
        for _ in range(steps):
            batch = _on_device(tuple(next(self.batches)), self.device)
            self.optimizer.zero_grad()
            loss = self.workload.loss(self.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            self.losses.append(loss.item())


@contextmanager
def isolated_random(state: list[Tensor]) -> Iterator[None]:
    """Let a loop draw the numbers that it would draw by itself, whoever has drawn some meanwhile.

    `state` is empty for a loop that has not drawn yet; where the generators of the CPU and of a GPU
    that is in use stop is left there.
    """
    if state:
        torch.set_rng_state(state.pop(0))
    if state:
        torch.cuda.set_rng_state(state.pop())
    yield
    state.append(torch.get_rng_state())
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state.append(torch.cuda.get_rng_state())


def _on_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on a device, copied beside the host where its memory is page-locked."""
    if device.type == "cpu":
        return batch
    return tuple(tensor.to(device, non_blocking=True) for tensor in batch)


def _whole_batches(samples: Samples, order: BatchOrder, *, pin_memory: bool) -> Iterator[Batch]:
    """Yield the batches of one epoch after the other, each fetched at once."""
    while True:
        for indices in order:
            batch = samples.batch(as_sequence(indices))
            yield tuple(tensor.pin_memory() for tensor in batch) if pin_memory else batch
        order.next_step += order.steps
