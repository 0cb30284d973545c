"""Notes what a script does besides stepping: batches, time without gradients, reports, its own ends.

Torch has no hooks for these. So methods of torch and Python that scripts call by their public names are
wrapped while a script runs; `watch` lists them.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

import torch
import torch.multiprocessing
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from harness.core.errors import NotApplied, one_line

# A step pauses where it is without gradients this many times as long as usual: what every step has, as
# a teacher's forward pass or the mean of weights, is part of training.
PAUSE_RATIO = 3.0


class Pauses:
    """The time without gradients: under `no_grad`, in evaluation, and while files are saved."""

    def __init__(self, optimizers: Mapping[Optimizer, object]) -> None:
        """Watch models that these optimizers train, which may be added later."""
        self._optimizers = optimizers
        self._thread = threading.get_ident()  # others, as of loaders, do not count
        self._depth = 0  # of the blocks that the script is in
        self._block_began = 0.0
        self._evaluation_began: float | None = None
        self._seconds = 0.0  # since the last step
        self._seconds_before = 0.0  # of them, when the evaluation began

    @property
    def is_paused(self) -> bool:
        """Return whether what happens now is no training."""
        return self._depth > 0 or self._evaluation_began is not None

    def enter(self) -> None:
        """Note that a block without gradients begins."""
        if threading.get_ident() != self._thread:
            return
        if not self._depth:
            self._block_began = time.perf_counter()
        self._depth += 1

    def leave(self) -> None:
        """Note that the block ends."""
        if threading.get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            self._seconds += time.perf_counter() - self._block_began

    def set_mode(self, module: torch.nn.Module, mode: bool = True) -> None:
        """Note that a module that is trained is evaluated from now on, or trained again."""
        if mode == (self._evaluation_began is None):
            return
        trained = {id(first_parameter(optimizer)) for optimizer in self._optimizers}
        if not any(id(parameter) in trained for parameter in module.parameters()):
            return  # such as a normalization that is frozen
        now = time.perf_counter()
        if self._evaluation_began is not None:  # all of it is one pause, blocks within it or not
            self._seconds = self._seconds_before + now - self._evaluation_began
            self._evaluation_began = None
        else:
            self._evaluation_began, self._seconds_before = now, self._seconds

    def end(self) -> None:
        """Note that something is trained, though nothing may have called `train`."""
        self._depth, self._evaluation_began = 0, None

    def end_step(self) -> float:
        """Return the seconds without gradients since the last step.

        Of an evaluation after which nothing calls `train` these are its blocks.
        """
        self.end()
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class LoadedSamples:
    """The samples that torch's loaders yield for training.

    Those of the loader that yielded last before an optimizer steps, and of others that yielded as many
    batches, as in a `zip`: a validation that is not in evaluation mode is not trained with.
    """

    def __init__(self, pauses: Pauses) -> None:
        self.total: float = 0.0  # NaN after a batch whose size can't be told
        self._pauses = pauses
        # Batches and samples by loader, the latest one last. Ids alone may be those of loaders that are gone.
        self._pending: dict[DataLoader[Any], tuple[int, float]] = {}
        # Loaders that are trained with. One of them may yield before `train` ends an evaluation, as
        # Hugging Face's Trainer calls it in each step: its last batch of a pause counts.
        self._trained: WeakSet[DataLoader[Any]] = WeakSet()
        self._late: tuple[DataLoader[Any], float] | None = None

    def add(self, loader: DataLoader[Any], batch: Any) -> None:
        """Add a batch unless it was yielded in a pause."""
        size = batch_samples(batch)
        samples = math.nan if size is None else float(size)
        if self._pauses.is_paused:
            self._late = loader, samples
        else:
            self._add(loader, samples)

    def _add(self, loader: DataLoader[Any], samples: float) -> None:
        """Add the samples of a batch to those of the step."""
        batches, before = self._pending.pop(loader, (0, 0.0))
        self._pending[loader] = batches + 1, before + samples

    def end_epoch(self) -> None:
        """Note that a loader has no more batches: the last one was no late one."""
        self._late = None

    def end_step(self) -> None:
        """Count what the step was made of."""
        if self._late is not None and (self._late[0] in self._trained or not self._pending):
            self._add(*self._late)
        self._late = None
        if not self._pending:
            return
        latest, _ = list(self._pending.values())[-1]
        for batches, samples in self._pending.values():
            if batches == latest:
                self.total += samples
        self._trained.update(self._pending)
        self._pending.clear()


class Reports:
    """What a script has reported of its steps at this rank, by step, counted from 0."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Any]] = []  # losses, which are read in `settle`
        self._losses: dict[int, list[float]] = {}
        self._samples: dict[int, int] = {}

    def add(self, step: int, loss: Any, samples: int | None) -> None:
        """Add what was reported of a step; raises ValueError for negative samples."""
        if samples is not None and samples < 0:
            raise ValueError(f"harness.report: samples: found {samples}; allowed: 0 or more")
        if loss is not None:
            # Not the tensor itself: CUDA graphs write the next loss into the same memory.
            kept = loss.detach().clone() if isinstance(loss, Tensor) else loss
            self._pending.append((step, kept))
        if samples is not None:
            self._samples[step] = self._samples.get(step, 0) + int(samples)

    def settle(self) -> None:
        """Read the losses that were reported since, which waits for the device."""
        for step, loss in self._pending:
            self._losses.setdefault(step, []).append(float(loss))
        self._pending.clear()

    def mean_losses(self, start: int, stop: int) -> list[float]:
        """Return the mean loss of each step from `start` on, NaN where none was reported."""
        means = []
        for step in range(start, stop):
            losses = self._losses.get(step, [math.nan])
            means.append(sum(losses) / len(losses))
        return means

    def first_bad_step(self) -> int | None:
        """Return the first step whose loss was reported as NaN or infinite."""
        bad = [step for step, losses in self._losses.items() if not math.isfinite(sum(losses))]
        return min(bad, default=None)

    def samples_per_step(self, steps_done: int) -> float | None:
        """Return the mean number of samples of the steps that have reported some, None without any.

        A step that never ended lacks some of its own.
        """
        reported = [samples for step, samples in self._samples.items() if step < steps_done]
        return sum(reported) / len(reported) if reported else None


class _CountedBatches:
    """An iterator of a loader, whose batches are counted."""

    def __init__(self, loader: DataLoader[Any], batches: Any, samples: LoadedSamples) -> None:
        self._loader, self._batches, self._samples = loader, batches, samples

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._samples.end_epoch()
            raise
        self._samples.add(self._loader, batch)
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def batch_samples(batch: Any) -> int | None:
    """Return the length of the first tensor in a batch, None if it has none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else None
    if isinstance(batch, Mapping):
        parts: Sequence[Any] = list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = batch
    else:
        return None
    sizes = [batch_samples(part) for part in parts]
    return next((size for size in sizes if size is not None), None)


def first_parameter(optimizer: Optimizer) -> Tensor | None:
    """Return the first parameter of an optimizer, None if it has none."""
    parts: list[Tensor] = [part for group in optimizer.param_groups for part in group["params"]]
    return parts[0] if parts else None


def watch(
    pauses: Pauses, samples: LoadedSamples, on_backward: Callable[[], None], stack: ExitStack
) -> None:
    """Wrap what scripts call until `stack` is closed."""

    def replace(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wrapper(original))
        stack.callback(setattr, owner, name, original)

    def iterating(original: Any) -> Any:
        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            return _CountedBatches(loader, original(loader), samples)

        return iterate

    for block in (torch.no_grad, torch.inference_mode):
        replace(block, "__enter__", _calling(before=lambda block: pauses.enter()))
        replace(block, "__exit__", _calling(after=lambda block, *error: pauses.leave()))
    saving = _calling(lambda *_, **__: pauses.enter(), lambda *_, **__: pauses.leave())
    replace(torch, "save", saving)
    replace(torch.nn.Module, "train", _calling(after=pauses.set_mode))
    replace(DataLoader, "__iter__", iterating)
    replace(torch.autograd, "backward", _calling(before=lambda *_, **__: on_backward()))
    replace(torch.multiprocessing, "spawn", _refusing_ranks)
    replace(torch.multiprocessing, "start_processes", _refusing_ranks)
    replace(os, "_exit", _exiting)
    replace(argparse.ArgumentParser, "exit", _exiting_with_message)


def _nothing(*arguments: Any, **options: Any) -> None:
    """Do nothing before or after a call."""


def _calling(
    before: Callable[..., None] = _nothing, after: Callable[..., None] = _nothing
) -> Callable[[Any], Any]:
    """Return what wraps a function in calls with the same arguments."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            before(*arguments, **options)
            try:
                return original(*arguments, **options)
            finally:
                after(*arguments, **options)

        return call

    return wrap


def _refusing_ranks(original: Any) -> Any:
    """Return what says that ranks which a script starts itself are not watched.

    Under torchrun's variables they would wait for a store that nobody serves.
    """

    def spawn(*arguments: Any, **options: Any) -> Any:
        raise NotApplied(
            "the script starts its own ranks, which are not watched; let it train in its own process,"
            " and the axis world_size start the ranks"
        )

    return spawn


def _exiting(original: Any) -> Any:
    """Return an `os._exit` that ends the script, and not the rank before it has left its result."""
    rank = os.getpid()

    def leave(status: int) -> None:
        if os.getpid() != rank or threading.current_thread() is not threading.main_thread():
            original(status)
        raise SystemExit(status)

    return leave


def _exiting_with_message(original: Any) -> Any:
    """Return an `ArgumentParser.exit` whose SystemExit says what is wrong with the arguments."""

    def leave(parser: argparse.ArgumentParser, status: int = 0, message: str | None = None) -> None:
        try:
            original(parser, status, message)
        except SystemExit:
            if status and message:
                raise SystemExit(one_line(message)) from None
            raise

    return leave
