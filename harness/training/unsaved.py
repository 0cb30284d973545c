"""Finds what training changes and no checkpoint has, so that no trial resumes with less than it had.

Of modules, optimizers and the workload these are attributes that changed since they were built: numbers,
texts, tensors, generators, and containers of them. Of a data set they are generators of its own.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.base import Samples, Workload

LONGEST = 1000  # entries of a container, or elements of a tensor, that are looked at
DEEPEST = 4  # of an object in an object
SETTINGS = ("options", "data")  # attributes of every workload, which are frozen
OPTIMIZER_STATE = ("state", "param_groups", "defaults")  # which state_dict() has
LIBRARIES = ("torch", "transformers", "builtins")  # whose modules keep their state in buffers
PLAIN_TYPES = (bool, int, float, complex, str, bytes)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


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
        self._restored = {id(part) for part in (*model.modules(), optimizer)}
        self._restored |= {id(part) for part in (*model.parameters(), *model.buffers())}
        self._at_start = dict(self._attributes())

    def find(self) -> str | None:
        """Return what has changed that no checkpoint has, and what is needed; None for nothing."""
        now = dict(self._attributes())
        names = sorted({*now, *self._at_start})
        changed = [name for name in names if now.get(name) != self._at_start.get(name)]
        if self._uses_workers and self._generators_of_samples():
            changed.append("the data set's generator in loader workers")
        unloadable = list(self._unloadable())
        if not changed and not unloadable:
            return None
        return (
            f"training has changed {', '.join([*changed, *unloadable])}, which no checkpoint has;"
            " needed: a buffer, get_extra_state() and set_extra_state() of the module, param_groups of"
            " the optimizer, torch's own generators while fetching, or state_dict() and"
            " load_state_dict() of the workload"
        )

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the name of each attribute that may be a state, and what it is like now."""
        if type(self._workload).state_dict is Workload.state_dict:
            name = type(self._workload).__name__
            yield from self._attributes_of(self._workload, name, SETTINGS)
        for path, module in self._model.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                continue
            origins = {base.__module__.partition(".")[0] for base in type(module).__mro__}
            if origins - {*LIBRARIES}:
                name = path or type(module).__name__
                yield from self._attributes_of(module, name, ("training",))
        name = type(self._optimizer).__name__
        yield from self._attributes_of(self._optimizer, name, OPTIMIZER_STATE)
        for number, generator in enumerate(self._generators_of_samples()):
            yield f"generator {number + 1} of the data set", _state_of(generator)

    def _attributes_of(
        self, owner: object, name: str, left_out: Iterable[str]
    ) -> Iterator[tuple[str, Any]]:
        """Yield the public attributes of an object, which its libraries' own are not."""
        for attribute, value in vars(owner).items():
            if attribute in left_out or attribute.startswith("_"):
                continue
            yield f"{name}.{attribute}", self._describe(value, DEEPEST)

    def _describe(self, value: Any, depth: int) -> Any:
        """Return what a value is like, which says nothing for a kind of object that is no state."""
        if id(value) in self._restored or depth == 0:
            return None
        if isinstance(value, PLAIN_TYPES):
            return repr(value)
        if isinstance(value, Tensor):
            return _describe_tensor(value)
        if isinstance(value, np.ndarray):
            return value.shape, zlib.crc32(repr(value.reshape(-1)[:LONGEST].tolist()).encode())
        if isinstance(value, GENERATORS):
            return _state_of(value)
        if isinstance(value, list | tuple | set | frozenset):
            entries = list(value)[:LONGEST]
            return len(value), [self._describe(entry, depth - 1) for entry in entries]
        items = list(_items_of(value))[:LONGEST]
        return [(repr(key), self._describe(item, depth - 1)) for key, item in items]

    def _generators_of_samples(self) -> list[Any]:
        """Return the generators that a data set has for itself, in any object that it is made of."""
        found: list[Any] = []
        seen: set[int] = set()
        pending = [(self._samples, DEEPEST)]
        while pending:
            owner, depth = pending.pop()
            if depth == 0 or id(owner) in seen or not hasattr(owner, "__dict__"):
                continue
            seen.add(id(owner))
            for value in vars(owner).values():
                if isinstance(value, GENERATORS):
                    found.append(value)
                elif isinstance(value, list | tuple):
                    pending += [(entry, depth - 1) for entry in value[:LONGEST]]
                else:
                    pending.append((value, depth - 1))
        return found

    def _unloadable(self) -> Iterator[str]:
        """Yield the name of each entry of the model's state that no checkpoint can hold."""
        for name, value in self._model.state_dict().items():
            if not isinstance(value, Tensor) and not is_plain(value):
                yield f"{name} (a {type(value).__name__})"


def is_plain(value: Any) -> bool:
    """Return whether a value is of tensors, numbers, texts, and containers of them."""
    if isinstance(value, Mapping):
        return all(is_plain(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(
        value, bool | int | float | str | bytes | Tensor | np.generic
    )


def _items_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the named values of which an object is made, none of a function."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, nn.Module):  # such as a copy whose weights are an average
        yield from value.state_dict().items()
    elif hasattr(value, "__dict__") and not callable(value):
        yield from vars(value).items()


def _describe_tensor(tensor: Tensor) -> Any:
    """Return what a tensor is like: its values where they are few, else how often it was changed."""
    if tensor.numel() <= LONGEST and tensor.layout is torch.strided:
        return tensor.shape, repr(tensor.detach().cpu().tolist())
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.shape, id(tensor), version


def _state_of(generator: Any) -> str:
    """Return the state of a generator."""
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    if isinstance(generator, random.Random):
        return repr(hash(generator.getstate()))
    return repr(zlib.crc32(generator.get_state().numpy().tobytes()))
