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

from harness.training.build import TrialParts
from workloads.base import Workload

LONGEST = 1000  # entries of a container, or elements of a tensor, that are looked at
MOST_LEAVES = 10_000  # of an object
DEEPEST = 8  # of an object in an object, each of which has entries in between
LIBRARIES = {"torch", "transformers", "builtins"}  # whose modules keep their state in buffers
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
LEAVES = (bool, int, float, complex, str, bytes, np.generic, np.ndarray, Tensor, *GENERATORS)
REMEDY = (
    "buffers of the shape that they are built with, get_extra_state() and set_extra_state() of the"
    " module, param_groups of the optimizer, torch's own generators while fetching, or state_dict() and"
    " load_state_dict() of the workload"
)


def describe_unsaved(parts: TrialParts) -> dict[str, Any]:
    """Return what each attribute that may be a state, and that no checkpoint has, is like now, by name."""
    # What checkpoints restore, and a workload may refer to.
    model = parts.model
    objects = chain(model.modules(), model.parameters(), model.buffers(), [parts.optimizer])
    restored = {id(part) for part in objects}
    described: dict[str, Any] = {}
    for name, owner, saved in _owners(parts):
        for attribute, value in vars(owner).items():
            if attribute not in saved and not attribute.startswith("_"):
                leaves = islice(_leaves(value, restored), MOST_LEAVES)
                described[f"{name}.{attribute}"] = [_describe(leaf) for leaf in leaves]
    for name, buffer in model.named_buffers():
        described[f"the shape of buffer {name}"] = buffer.shape
    leaves = islice(_leaves(parts.splits.train, restored), MOST_LEAVES)
    generators = [leaf for leaf in leaves if isinstance(leaf, GENERATORS)]
    if generators:
        states: Any = [_describe(generator) for generator in generators]
        # Those of loader workers can't be seen: they are never the same as before.
        described["generators of the data set"] = object() if parts.axes.num_workers else states
    return described


def _owners(parts: TrialParts) -> list[tuple[str, object, tuple[str, ...]]]:
    """Return the objects that may have a state of their own, by name, with attributes that are none."""
    workload, optimizer = parts.workload, parts.optimizer
    owners: list[tuple[str, object, tuple[str, ...]]] = [
        (type(optimizer).__name__, optimizer, ("state", "param_groups", "defaults"))
    ]
    if type(workload).state_dict is Workload.state_dict:
        owners.append((type(workload).__name__, workload, ("options", "data")))
    for path, module in parts.model.named_modules():
        origins = {base.__module__.partition(".")[0] for base in type(module).__mro__}
        is_saved = type(module).get_extra_state is not nn.Module.get_extra_state
        if origins - LIBRARIES and not is_saved:
            owners.append((path or type(module).__name__, module, ("training",)))
    return owners


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what differs between two descriptions, and what is needed; None for nothing."""
    names = sorted({*now, *before})
    changed = [name for name in names if now.get(name) != before.get(name)]
    if not changed:
        return None
    return f"training has changed {', '.join(changed)}, which no checkpoint has; needed: {REMEDY}"


def _leaves(value: Any, restored: set[int], depth: int = DEEPEST) -> Iterator[Any]:
    """Yield the values that an object is made of, and how many entries its containers have."""
    if id(value) in restored or depth < 0:
        return
    if isinstance(value, LEAVES):
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
        yield from _leaves(entry, restored, depth - 1)


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
