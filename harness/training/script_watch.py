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

    def __init__(self, trained: Mapping[Tensor | None, Optimizer]) -> None:
        """Watch models with a parameter that is the first of an optimizer; more may be added later."""
        self._trained = trained
        self._depth = 0  # of the blocks that the script is in
        self._block_began = 0.0
        # Of an evaluation after which nothing calls `train`, the pause is its blocks.
        self.is_evaluated = False
        self._evaluation_began = 0.0  # as if all pauses of the step were in it
        self._seconds = 0.0  # since the last step
        self._of_steps: list[float] = []  # the seconds of each step

    @property
    def is_paused(self) -> bool:
        """Return whether what happens now is no training."""
        return self._depth > 0 or self.is_evaluated

    def enter(self, *_: Any) -> None:
        """Note that a block without gradients begins."""
        if not self._depth:
            self._block_began = time.perf_counter()
        self._depth += 1

    def leave(self, *_: Any) -> None:
        """Note that the block ends."""
        self._depth -= 1
        if not self._depth:
            self._seconds += time.perf_counter() - self._block_began

    def set_mode(self, module: torch.nn.Module, mode: bool = True) -> None:
        """Note that a module that is trained is evaluated from now on, or trained again."""
        if mode != self.is_evaluated or self._trained.keys().isdisjoint(module.parameters()):
            return  # as of a normalization that is frozen
        now = time.perf_counter()
        if mode:  # all of it is one pause, blocks within it or not
            self._seconds = now - self._evaluation_began
        else:
            self._evaluation_began = now - self._seconds
        self.is_evaluated = not mode

    def end_step(self) -> None:
        """Note that a step has ended, to which the time since the last one belongs."""
        self._of_steps.append(self._seconds)
        self._seconds = 0.0

    def lengthening(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return by how many seconds the newest steps, which took `steps`, are longer for a pause."""
        usual = np.median(self._of_steps)
        newest = np.asarray(self._of_steps[-len(steps) :])
        excess = np.where(newest > PAUSE_RATIO * usual, newest - usual, 0.0)
        # The clock of a GPU may see less of a pause than the host.
        return np.minimum(excess, steps)


@dataclass
class LoadedSamples:
    """The samples that torch's loaders yield for training.

    Those of the loader that yielded last before an optimizer steps, and of others that yielded as many
    batches, as in a `zip`: a validation that is not in evaluation mode is not trained with.

    What a loader yielded last in a pause counts only where no other has yielded for the step: a loop may
    call `train` in each step, after it got the batch, and an evaluation may keep its loader for the next one.
    """

    pauses: Pauses
    total: float = 0.0  # NaN after a batch whose size can't be told
    # The sizes of batches since the last step by loader, the latest loader last, and whether the newest one
    # was got in a pause.
    _pending: dict[Loader, tuple[list[float], bool]] = field(default_factory=dict)

    def count(self, loader: Loader, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, and count them unless they end in a pause, as an evaluation does."""
        try:
            for batch in batches:
                sizes, _ = self._pending.pop(loader, ([], False))
                self._pending[loader] = [*sizes, batch_samples(batch)], self.pauses.is_paused
                yield batch
        finally:
            if self.pauses.is_paused:
                self._pending.pop(loader, None)

    def end_step(self) -> None:
        """Count what the step was made of."""
        all_are_late = all(is_late for _, is_late in self._pending.values())
        batches = 0  # that the latest loader has yielded
        for sizes, is_late in reversed(self._pending.values()):
            if is_late == all_are_late:
                batches = batches or len(sizes)
                if len(sizes) == batches:
                    self.total += sum(sizes)
        self._pending.clear()


class Reports:
    """What a script has reported of its steps at this rank, by step, counted from 0."""

    def __init__(self) -> None:
        self.has_backward = False  # since the last step of any optimizer
        self._comes_first = False  # the first report of all before its backward, so maybe each one
        self._losses: dict[int, list[Any]] = {}  # tensors until `mean_losses` has read them
        self.latest_loss: float | None = None  # of a step, as far as it is finite
        self.first_bad_step = math.inf  # whose loss was reported as NaN or infinite
        self.samples: dict[int, int] = {}

    def note_backward(self, *_: Any, **__: Any) -> None:
        """Note a backward of the step under way."""
        self.has_backward = True

    def add(self, step: int, loss: Any, samples: int | None) -> None:
        """Add what was reported in a step, of itself or of the one before."""
        if loss is None and samples is None:
            return
        self._comes_first |= not step and not self.has_backward
        if not self.has_backward and not self._comes_first:
            step -= 1
        if loss is not None:
            if isinstance(loss, Tensor):  # CUDA graphs write the next one into the same memory
                loss = loss.detach().clone()
            self._losses.setdefault(step, []).append(loss)
        if samples is not None:
            self.samples[step] = self.samples.get(step, 0) + int(samples)

    def mean_losses(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the mean loss of each step from `start` on, NaN where none was reported.

        It waits for the device.
        """
        means = np.full(stop - start, math.nan, dtype=np.float32)
        for step in range(start, stop):
            losses = self._losses.get(step)
            if losses:
                losses[:] = map(float, losses)
                mean = sum(losses) / len(losses)
                means[step - start] = mean
                if math.isfinite(mean):
                    self.latest_loss = mean
                else:
                    self.first_bad_step = min(step, self.first_bad_step)
        return means


def batch_samples(batch: Any) -> float:
    """Return the length of the first tensor in a batch, NaN if it has none."""
    if isinstance(batch, Tensor) and batch.ndim:
        return len(batch)
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        sizes = map(batch_samples, batch)
        return next(filter(math.isfinite, sizes), math.nan)
    return math.nan


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Return the parameters of an optimizer."""
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def watch(pauses: Pauses, samples: LoadedSamples, reports: Reports, stack: ExitStack) -> None:
    """Wrap what scripts call until `stack` is closed."""

    def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
        stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, function)

    def precede(owner: Any, name: str, before: Callable[..., None]) -> None:
        """Have `before` called with a function's arguments, and then, unless it raises, the function.

        Other threads, as of loaders, call the function alone.
        """
        function = getattr(owner, name)

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() == thread:
                before(*arguments, **options)
            return function(*arguments, **options)

        replace(owner, name, call)

    thread = threading.get_ident()
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
    if os.getpid() == rank:
        raise SystemExit(status)


def _raise_message(_: object, status: int = 0, message: str | None = None) -> None:
    """Say in the exception what is wrong, which that of `ArgumentParser.exit` does not."""
    if status and message:
        raise SystemExit(message)
