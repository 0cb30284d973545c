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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import torch
import torch.multiprocessing
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from harness.core.errors import NotApplied

# A step pauses where it is without gradients this many times as long as usual: what every step has, as
# a teacher's forward pass or the mean of weights, is part of training.
PAUSE_RATIO = 3.0
Loader = DataLoader[Any]


class Pauses:
    """The time without gradients: under `no_grad`, in evaluation, and while files are saved."""

    def __init__(self, optimizers: Mapping[Optimizer, object]) -> None:
        """Watch models that these optimizers train, which may be added later."""
        self._optimizers = optimizers
        self._thread = threading.get_ident()  # others, as of loaders, do not count
        self._depth = 0  # of the blocks that the script is in
        self._block_began = 0.0
        self._evaluation_began: float | None = None  # as if all pauses of the step were in it
        self._seconds = 0.0  # since the last step
        self._of_steps: list[float] = []  # the seconds of each step

    @property
    def is_paused(self) -> bool:
        """Return whether what happens now is no training."""
        return self._depth > 0 or self._evaluation_began is not None

    def enter(self, *_: Any) -> None:
        """Note that a block without gradients begins."""
        if threading.get_ident() != self._thread:
            return
        if not self._depth:
            self._block_began = time.perf_counter()
        self._depth += 1

    def leave(self, *_: Any) -> None:
        """Note that the block ends."""
        if threading.get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            self._seconds += time.perf_counter() - self._block_began

    def set_mode(self, module: torch.nn.Module, mode: bool = True) -> None:
        """Note that a module that is trained is evaluated from now on, or trained again."""
        began = self._evaluation_began
        if mode == (began is None) or not self._trains(module):
            return
        now = time.perf_counter()
        if began is None:
            self._evaluation_began = now - self._seconds
        else:  # all of it is one pause, blocks within it or not
            self._seconds = now - began
            self._evaluation_began = None

    def _trains(self, module: torch.nn.Module) -> bool:
        """Return whether a module is trained, unlike a normalization that is frozen."""
        trained = {id(first_parameter(optimizer)) for optimizer in self._optimizers}
        return not trained.isdisjoint(map(id, module.parameters()))

    def end(self) -> None:
        """Note that something is trained, though nothing may have called `train`.

        Of an evaluation after which nothing calls it, the pause is its blocks.
        """
        self._depth, self._evaluation_began = 0, None

    def end_step(self) -> None:
        """Note that a step has ended, to which the time since the last one belongs."""
        self._of_steps.append(self._seconds)
        self._seconds = 0.0

    def lengthening(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return by how many seconds the newest steps, which took `steps`, are longer for a pause."""
        pauses = np.asarray(self._of_steps)
        usual = np.median(pauses)
        newest = pauses[-len(steps) :]
        excess: NDArray[np.float64] = newest - usual
        excess[newest <= PAUSE_RATIO * usual] = 0.0
        # The clock of a GPU may see less of a pause than the host.
        return np.minimum(excess, steps)


@dataclass
class LoadedSamples:
    """The samples that torch's loaders yield for training.

    Those of the loader that yielded last before an optimizer steps, and of others that yielded as many
    batches, as in a `zip`: a validation that is not in evaluation mode is not trained with.

    What a batch was for is known once the script asks for the next one, or steps: a loop may call `train`
    in each step, after it got the batch. One that was got in a pause is trained with only where no other
    loader has yielded for the step.
    """

    pauses: Pauses
    reports: Reports
    total: float = 0.0  # NaN after a batch whose size can't be told
    # The sizes of batches that the script has now, and whether it got them in a pause.
    _open: dict[Loader, tuple[float, bool]] = field(default_factory=dict)
    # The sizes of batches by loader, the latest loader last.
    _pending: dict[Loader, list[float]] = field(default_factory=dict)

    def count(self, loader: Loader, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, and count those that are not used in a pause."""
        for batch in batches:
            self._open[loader] = batch_samples(batch), self.pauses.is_paused
            try:
                yield batch
            finally:
                self._close(loader)

    def _close(self, loader: Loader) -> None:
        """Add the batch that the script has of a loader to those of the step, unless it is of a pause."""
        size, is_late = self._open.pop(loader, (None, True))  # none where a step has counted it
        had_backward = self.reports.has_backward and not is_late  # before the pause
        if size is not None and (had_backward or not self.pauses.is_paused):
            self._pending[loader] = [*self._pending.pop(loader, []), size]

    def end_step(self) -> None:
        """Count what the step was made of."""
        for loader, (_, is_late) in list(self._open.items()):
            if not is_late:
                self._close(loader)
        for loader in reversed(list(self._open)):
            if not self._pending or loader in self._pending:
                self._close(loader)
        self._open.clear()
        batches = 0  # that the latest loader has yielded
        for sizes in reversed(self._pending.values()):
            batches = batches or len(sizes)
            if len(sizes) == batches:
                self.total += sum(sizes)
        self._pending.clear()


class Reports:
    """What a script has reported of its steps at this rank, by step, counted from 0."""

    def __init__(self) -> None:
        self.has_backward = False  # since the last step of any optimizer
        self._comes_first = False  # the first report of all: maybe each one before its backward
        self._pending: list[tuple[int, Any]] = []  # losses, which are read in `mean_losses`
        self._losses: dict[int, list[float]] = {}
        self.first_bad_step = math.inf  # whose loss was reported as NaN or infinite
        self._samples: dict[int, int] = {}

    def note_backward(self, *_: Any, **__: Any) -> None:
        """Note a backward of the step under way."""
        self.has_backward = True

    def add(self, steps_done: int, loss: Any, samples: int | None) -> None:
        """Add what was reported of the step under way, or of the one before."""
        if loss is None and samples is None:
            return
        self._comes_first |= not steps_done
        step = steps_done
        if not self.has_backward and not self._comes_first:
            step -= 1
        if loss is not None:
            if isinstance(loss, Tensor):  # CUDA graphs write the next one into the same memory
                loss = loss.detach().clone()
            self._pending.append((step, loss))
        if samples is not None:
            self._samples[step] = self._samples.get(step, 0) + int(samples)

    def mean_losses(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the mean loss of each step from `start` on, NaN where none was reported.

        It waits for the device.
        """
        for step, loss in self._pending:
            value = float(loss)
            self._losses.setdefault(step, []).append(value)
            if not math.isfinite(value):
                self.first_bad_step = min(step, self.first_bad_step)
        self._pending.clear()
        means = []
        for step in range(start, stop):
            losses = self._losses.get(step, [math.nan])
            means.append(sum(losses) / len(losses))
        return np.asarray(means, dtype=np.float32)

    def samples_per_step(self, steps_done: int) -> float | None:
        """Return the mean number of samples of the steps that have reported some, None without any.

        A step that never ended lacks some of its own.
        """
        reported = [samples for step, samples in self._samples.items() if step < steps_done]
        if not reported:
            return None
        return sum(reported) / len(reported)


def batch_samples(batch: Any) -> float:
    """Return the length of the first tensor in a batch, NaN if it has none."""
    if isinstance(batch, Tensor) and batch.ndim:
        return len(batch)
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for part in batch:
            size = batch_samples(part)
            if not math.isnan(size):
                return size
    return math.nan


def first_parameter(optimizer: Optimizer) -> Tensor | None:
    """Return the first parameter of an optimizer, None if it has none."""
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return next(parameters, None)


def watch(pauses: Pauses, samples: LoadedSamples, reports: Reports, stack: ExitStack) -> None:
    """Wrap what scripts call until `stack` is closed."""

    def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
        stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, function)

    def precede(owner: Any, name: str, before: Callable[..., None]) -> None:
        """Have `before` called with a function's arguments, and then, unless it raises, the function."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            before(*arguments, **options)
            return function(*arguments, **options)

        replace(owner, name, call)

    iterate = DataLoader.__iter__
    for block in (torch.no_grad, torch.inference_mode):
        precede(block, "__enter__", pauses.enter)
        precede(block, "__exit__", pauses.leave)
    replace(torch, "save", torch.no_grad()(torch.save))  # a pause as other blocks are
    precede(torch.nn.Module, "train", pauses.set_mode)
    replace(DataLoader, "__iter__", lambda loader: samples.count(loader, iterate(loader)))
    precede(torch.autograd, "backward", reports.note_backward)
    replace(torch.multiprocessing, "spawn", _refuse_ranks)
    replace(torch.multiprocessing, "start_processes", _refuse_ranks)
    precede(os, "_exit", functools.partial(_end_script, os.getpid()))
    precede(argparse.ArgumentParser, "exit", _raise_message)


def _refuse_ranks(*_: Any, **__: Any) -> NoReturn:
    """Say that ranks which a script starts itself are not watched.

    Under torchrun's variables they would wait for a store that nobody serves.
    """
    raise NotApplied(
        "the script starts its own ranks, which are not watched; let it train in its own process,"
        " and the axis world_size start the ranks"
    )


def _end_script(rank: int, status: int) -> None:
    """End the script where it would end its rank by `os._exit`, before that has left its result.

    Processes that it has forked end, and so does the rank where another thread ends it.
    """
    if os.getpid() == rank and threading.current_thread() is threading.main_thread():
        raise SystemExit(status)


def _raise_message(_: object, status: int = 0, message: str | None = None) -> None:
    """Say in the exception what is wrong, which that of `ArgumentParser.exit` does not."""
    if status and message:
        raise SystemExit(message)
