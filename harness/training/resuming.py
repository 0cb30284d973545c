"""Tells whether a trial may resume: under the same conditions, and with nothing that no checkpoint has.

Otherwise it would end with results of neither attempt. What a checkpoint may lack are attributes of
modules, of the optimizer and of the workload that have changed since they were built, and generators of
the data set.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Collection, Iterator, Mapping, Set
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.core.variables import chooses_kernels
from harness.records.environment import describe_environment, training_digest
from harness.training.build import TrialParts
from workloads.base import Workload

LONGEST = 1000  # entries of a container, or elements of a tensor, that are looked at
MOST_VALUES = 10_000  # of an attribute
DEEPEST = 8  # of an object in an object, each of which has entries in between
LIBRARIES = {"torch", "transformers", "builtins"}  # whose modules keep their state in buffers
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
PLAIN = (bool, int, float, complex, str, bytes, np.generic, np.ndarray, Tensor, *GENERATORS)
REMEDY = (
    "buffers of the shape that they are built with, get_extra_state() and set_extra_state() of the"
    " module, param_groups of the optimizer, torch's own generators while fetching, or state_dict() and"
    " load_state_dict() of the workload"
)


def describe_conditions(parts: TrialParts) -> dict[str, str]:
    """Return the conditions of this process by name.

    Of the harness, only the code that trains counts: another version of the report changes no result,
    and a sweep that takes days must not start again for it. Of packages, those count that the workload
    imports, and NumPy, which draws the order of samples.
    """
    packages = parts.assignment.packages
    environment = describe_environment(packages)
    software, hardware = environment.software, environment.hardware
    conditions = {
        "trial": parts.assignment.trial.id,
        "code": training_digest(),
        "cpu": f"{hardware.cpu} {hardware.cpu_version}",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    for name in ("python", "torch", "cuda", "nccl"):
        conditions[name] = str(getattr(software, name))
    for name in {"numpy", *packages}:
        conditions[f"package {name}"] = str(software.packages.get(name))
    if parts.device.type == "cuda":
        conditions["gpu"] = torch.cuda.get_device_name(parts.device)
    for name, value in environment.variables.items():
        if chooses_kernels(name):
            conditions[name] = value
    return conditions


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what differs between two descriptions of a state, and what is needed; None for nothing."""
    names = sorted({*now, *before})
    changed = [name for name in names if now.get(name) != before.get(name)]
    if not changed:
        return None
    return f"training has changed {', '.join(changed)}, which no checkpoint has; needed: {REMEDY}"


def describe_unsaved(parts: TrialParts) -> dict[str, Any]:
    """Return a description of each value that may be a state, and that no checkpoint has, by name."""
    model, optimizer = parts.model, parts.optimizer
    # What checkpoints restore, and others may refer to.
    objects = chain(model.modules(), model.parameters(), model.buffers())
    restored = {id(part) for part in objects}
    restored |= {id(optimizer), id(optimizer.state), id(optimizer.param_groups)}
    described: dict[str, Any] = {}
    for name, owner in _owners(parts):
        for attribute, value in vars(owner).items():
            # Which modules train is in checkpoints.
            if attribute != "training" and not attribute.startswith("_"):
                values = islice(_walk(value, restored), MOST_VALUES)
                described[f"{name}.{attribute}"] = [_describe(part) for part in values]
    for name, buffer in model.named_buffers():
        described[f"the shape of buffer {name}"] = buffer.shape
    generators: list[object] = []
    for value in islice(_walk(parts.splits.train, restored), MOST_VALUES):
        if isinstance(value, GENERATORS):
            generators.append(_describe(value))
    if generators and parts.axes.num_workers:
        generators = [object()]  # those of workers can't be seen: they are never the same as before
    described["generators of the data set"] = generators
    return described


def _owners(parts: TrialParts) -> Iterator[tuple[str, object]]:
    """Yield the objects whose attributes may be a state that no checkpoint has, by name."""
    optimizer, workload = parts.optimizer, parts.workload
    yield type(optimizer).__name__, optimizer
    if type(workload).state_dict is Workload.state_dict:
        yield type(workload).__name__, workload
    for path, module in parts.model.named_modules():
        origins = {base.__module__.partition(".")[0] for base in type(module).__mro__}
        is_saved = type(module).get_extra_state is not nn.Module.get_extra_state
        if origins - LIBRARIES and not is_saved:
            yield path or type(module).__name__, module


def _walk(value: Any, restored: Set[int], depth: int = DEEPEST) -> Iterator[Any]:
    """Yield the plain values that a value is made of, and how many entries its containers have."""
    if id(value) in restored or depth < 0:
        return
    if isinstance(value, PLAIN):
        yield value
        return
    if isinstance(value, nn.Module):  # such as a copy whose weights are an average
        value = value.state_dict()
    elif hasattr(value, "__dict__") and not callable(value):
        value = vars(value)
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, Collection):
        yield len(value)
        for entry in islice(value, LONGEST):
            yield from _walk(entry, restored, depth - 1)


def _describe(value: Any) -> object:
    """Return what a value is like: of a large tensor, how often it was changed."""
    if isinstance(value, torch.Generator):  # which is pickled in other bytes each time
        return value.get_state().tolist()
    if isinstance(value, GENERATORS):
        return pickle.dumps(value)
    if isinstance(value, Tensor):
        if value.numel() > LONGEST:
            return id(value), value.is_inference() or value._version
        value = value.to_dense().tolist()
    elif isinstance(value, np.ndarray):
        value = value.reshape(-1)[:LONGEST].tolist()
    return repr(value)
