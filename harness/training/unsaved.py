"""Finds what training changes and no checkpoint has, so that no trial resumes with less than it had.

Of modules, optimizers and the workload these are attributes that changed since they were built: numbers,
texts, tensors, generators, and containers of them. Of a data set they are generators of its own.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.base import Samples, Workload

LONGEST = 1000  # entries of a container, or elements of a tensor, that are looked at
MOST_LEAVES = 10_000  # of an object
DEEPEST = 8  # of an object in an object, each of which has entries in between
LIBRARIES = {"torch", "transformers", "builtins"}  # whose modules keep their state in buffers
PLAIN_TYPES = (bool, int, float, complex, str, bytes, np.generic)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
REMEDY = (
    "a buffer, get_extra_state() and set_extra_state() of the module, param_groups of the optimizer,"
    " torch's own generators while fetching, or state_dict() and load_state_dict() of the workload"
)


class UnsavedState:
    """What the parts of a trial were like before training."""

    def __init__(
        self,
        workload: Workload,
        samples: Samples,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        uses_workers: bool,
    ) -> None:
        self._workload, self._samples = workload, samples
        self._model, self._optimizer = model, optimizer
        self._uses_workers = uses_workers
        # What checkpoints restore, and a workload may refer to.
        parts = chain(model.modules(), model.parameters(), model.buffers(), [optimizer])
        self._restored = {id(part) for part in parts}
        self._at_start = dict(self._attributes())

    def find(self) -> str | None:
        """Return what has changed that no checkpoint has, and what is needed; None for nothing."""
        now = dict(self._attributes())
        names = sorted({*now, *self._at_start})
        changed = [name for name in names if now.get(name) != self._at_start.get(name)]
        if self._uses_workers and any(self._generators()):
            changed.append("the data set's generator in loader workers")
        for name, value in self._model.state_dict().items():
            if not is_plain(value):
                changed.append(f"{name} (a {type(value).__name__})")
        if not changed:
            return None
        return (
            f"training has changed {', '.join(changed)}, which no checkpoint has; needed: {REMEDY}"
        )

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the name of each public attribute that may be a state, and what it is like now."""
        for number, generator in enumerate(self._generators(), start=1):
            yield f"generator {number} of the data set", _describe(generator)
        for name, owner, left_out in self._owners():
            for attribute, value in vars(owner).items():
                if attribute not in left_out and not attribute.startswith("_"):
                    leaves = islice(self._leaves(value), MOST_LEAVES)
                    yield f"{name}.{attribute}", [_describe(leaf) for leaf in leaves]

    def _owners(self) -> Iterator[tuple[str, object, tuple[str, ...]]]:
        """Yield the objects that may have a state of their own, by name, with attributes that are none."""
        if type(self._workload).state_dict is Workload.state_dict:
            yield type(self._workload).__name__, self._workload, ("options", "data")
        # state_dict() has these.
        saved = ("state", "param_groups", "defaults")
        yield type(self._optimizer).__name__, self._optimizer, saved
        for path, module in self._model.named_modules():
            origins = {base.__module__.partition(".")[0] for base in type(module).__mro__}
            is_saved = type(module).get_extra_state is not nn.Module.get_extra_state
            if origins - LIBRARIES and not is_saved:
                yield path or type(module).__name__, module, ("training",)

    def _generators(self) -> Iterator[Any]:
        """Yield the generators that a data set has for itself, in any object that it is made of."""
        for leaf in islice(self._leaves(self._samples), MOST_LEAVES):
            if isinstance(leaf, GENERATORS):
                yield leaf

    def _leaves(self, value: Any, depth: int = DEEPEST) -> Iterator[Any]:
        """Yield the values that an object is made of, and how many entries its containers have."""
        if id(value) in self._restored or depth < 0:
            return
        if isinstance(value, (*PLAIN_TYPES, *GENERATORS, Tensor, np.ndarray)):
            yield value
            return
        if isinstance(value, nn.Module):  # such as a copy whose weights are an average
            value = value.state_dict()
        entries: Any = ()
        if isinstance(value, list | tuple | set | frozenset):
            entries = value
        elif isinstance(value, Mapping):
            entries = value.items()
        elif hasattr(value, "__dict__") and not callable(value):
            entries = vars(value).items()
        yield len(entries)
        for entry in islice(entries, LONGEST):
            yield from self._leaves(entry, depth - 1)


def is_plain(value: Any) -> bool:
    """Return whether a value is of tensors, numbers, texts, and containers of them."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (*PLAIN_TYPES, Tensor))


def _describe(leaf: Any) -> Any:
    """Return what a value is like: of a large tensor, how often it was changed."""
    if isinstance(leaf, torch.Generator):
        return leaf.get_state().tolist()
    if isinstance(leaf, GENERATORS):
        return pickle.dumps(leaf)
    if isinstance(leaf, np.ndarray):
        return leaf.shape, repr(leaf.reshape(-1)[:LONGEST].tolist())
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    if leaf.numel() <= LONGEST and leaf.layout is torch.strided:
        return leaf.shape, repr(leaf.tolist())
    return leaf.shape, id(leaf), 0 if leaf.is_inference() else leaf._version
