"""Notes what a script does between its steps: batches that its loaders yield, and time without gradients.

Torch has no hooks for either. So methods of torch that scripts call by their public names are wrapped
while a script runs: of `DataLoader`, `no_grad`, `inference_mode` and `Module.train`, and `torch.save`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

# A step pauses where it is without gradients this many times as long as usual: what every step has, as
# a teacher's forward pass or the mean of weights, is part of training.
PAUSE_RATIO = 3.0


class Pauses:
    """The time without gradients: under `no_grad`, in evaluation, and while files are saved."""

    def __init__(self) -> None:
        self.first_parameters: list[Tensor] = []  # one of each optimizer
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

    def set_mode(self, module: torch.nn.Module, *, is_training: bool) -> None:
        """Note that a module that is trained is evaluated from now on, or trained again."""
        if is_training == (self._evaluation_began is None):
            return
        ids = {id(parameter) for parameter in self.first_parameters}
        if not any(id(parameter) in ids for parameter in module.parameters()):
            return  # such as a normalization that is frozen
        now = time.perf_counter()
        if self._evaluation_began is not None:  # all of it is one pause, blocks within it or not
            self._seconds = self._seconds_before + now - self._evaluation_began
            self._evaluation_began = None
        else:
            self._evaluation_began, self._seconds_before = now, self._seconds

    def end_step(self) -> float:
        """Return the seconds without gradients since the last step.

        Of an evaluation after which nothing calls `train` these are its blocks.
        """
        self._depth, self._evaluation_began = 0, None
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class LoadedSamples:
    """The samples that torch's loaders yield for training.

    Those of the loader that yielded last before an optimizer steps: others, as one for a validation
    that is not in evaluation mode, are not trained with.
    """

    def __init__(self, pauses: Pauses) -> None:
        self.total: int | None = 0  # None: of a batch whose size can't be told
        self._pauses = pauses
        # By loader, the latest one last; their ids alone may be those of loaders that are gone.
        self._pending: dict[DataLoader[Any], int | None] = {}

    def add(self, loader: DataLoader[Any], batch: Any) -> None:
        """Add a batch unless it was yielded in a pause."""
        if self._pauses.is_paused:
            return
        before, size = self._pending.pop(loader, 0), batch_samples(batch)
        self._pending[loader] = None if size is None or before is None else before + size

    def end_step(self) -> None:
        """Count what the step was made of."""
        if self._pending:
            latest = list(self._pending.values())[-1]
            known = self.total is not None and latest is not None
            self.total = self.total + latest if known else None  # type: ignore[operator]
            self._pending.clear()


class _CountedBatches:
    """An iterator of a loader, whose batches are counted."""

    def __init__(self, loader: DataLoader[Any], batches: Any, samples: LoadedSamples) -> None:
        self._loader, self._batches, self._samples = loader, batches, samples

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
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


def watch(pauses: Pauses, samples: LoadedSamples, stack: ExitStack) -> None:
    """Wrap torch's methods until `stack` is closed."""

    def replace(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wrapper(original))
        stack.callback(setattr, owner, name, original)

    def entering(original: Any) -> Any:
        def enter(block: Any) -> Any:
            pauses.enter()
            return original(block)

        return enter

    def leaving(original: Any) -> Any:
        def leave(block: Any, *error: Any) -> Any:
            result = original(block, *error)
            pauses.leave()
            return result

        return leave

    def saving(original: Any) -> Any:
        def save(*arguments: Any, **options: Any) -> Any:
            pauses.enter()
            try:
                return original(*arguments, **options)
            finally:
                pauses.leave()

        return save

    def setting_mode(original: Any) -> Any:
        def train(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
            result: torch.nn.Module = original(module, mode)
            pauses.set_mode(module, is_training=mode)
            return result

        return train

    def iterating(original: Any) -> Any:
        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            return _CountedBatches(loader, original(loader), samples)

        return iterate

    for block in (torch.no_grad, torch.inference_mode):
        replace(block, "__enter__", entering)
        replace(block, "__exit__", leaving)
    replace(torch, "save", saving)
    replace(torch.nn.Module, "train", setting_mode)
    replace(DataLoader, "__iter__", iterating)
