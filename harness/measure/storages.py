"""Counts the memory of the tensors that are in use at a time, by what they are for.

Meant for fake tensors (torch's `FakeTensorMode`), which have shapes and no memory: a step of any
model then takes no more than its operators' shapes to compute.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode

from harness.measure.collectives import NAMESPACES, OPERATIONS
from harness.measure.traffic import tensors_in

PARAMETERS = "parameters"  # and buffers
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"  # its state
BATCH = "batch"
COMMUNICATION = "communication"  # buckets of gradients, gathered parameters
ACTIVATIONS = "activations"  # and everything else that a forward or a backward holds
PARTS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, COMMUNICATION, BATCH)
# Collectives for which gloo takes as much memory again as the whole tensor has; NCCL does not.
COPIED_BY_GLOO = ("all_gather", "reduce_scatter")
# What keeps its part whatever collective it takes part in.
FIXED_PARTS = (PARAMETERS, BATCH)


@dataclass(eq=False)
class Allocation:
    """The memory of one storage; tensors that are views of each other share it."""

    bytes: int = 0
    part: str = ACTIVATIONS  # until somebody knows better


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that operators use while it is entered, and keeps their peak.

    A storage counts from its first use until the last tensor of it is gone. FSDP2 frees and
    allocates parameters by resizing their storages, which is no operator: sizes are read again
    before the sum of them is taken for a peak.

    DTensor works out the shape of a result by calling the operator on tensors of the full shape, once.
    So an operator that is called on DTensors is counted rightly from its second call on: set
    `is_watching` to False until then.
    """

    def __init__(self, copying: Container[str] = ()) -> None:
        """Watch operators; `copying` are the collectives whose backend makes a copy of the whole."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_watching = True  # for a peak
        self._copying = copying
        self._live: weakref.WeakKeyDictionary[Any, Allocation] = weakref.WeakKeyDictionary()
        self._bytes = 0
        self._peak_bytes = 0
        # At the peak. Parts are looked up when all is over: a gradient is only known for one when
        # the backward has ended.
        self._at_peak: Sequence[tuple[Allocation, int]] = ()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and count the storages of its arguments and results."""
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it comes again, as operators of plain tensors
        kwargs = kwargs or {}
        taken = tensors_in([*args, *kwargs.values()])
        result = _run(func, args, kwargs, taken)
        returned = tensors_in(result)
        if func.namespace == "c10d":
            self.claim(COMMUNICATION, [*taken, *returned])
        elif func.namespace == "fsdp":
            self.claim(COMMUNICATION, [*returned, *tensors_in(kwargs.get("out"))])
        for tensor in [*taken, *returned]:
            self._observe(tensor)
        if func.namespace in NAMESPACES and OPERATIONS.get(_name(func)) in self._copying:
            largest = max([*taken, *returned], key=lambda tensor: tensor.nbytes)
            copy = torch.empty_like(largest)  # gone when this returns
            self.claim(COMMUNICATION, [copy])
        if self.is_watching and self._bytes > self._peak_bytes:
            self._note_peak()
        return result

    def claim(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Say what the storages of some tensors are for."""
        for tensor in tensors:
            allocation = self._observe(tensor)
            if allocation.part not in FIXED_PARTS:
                allocation.part = part

    def claim_rest(self, part: str) -> None:
        """Say what all those storages are for of which nobody has said it yet."""
        for allocation in self._live.values():
            if allocation.part == ACTIVATIONS:
                allocation.part = part

    def peak(self) -> Mapping[str, int]:
        """Return the bytes of each part at the moment when there were most of them together."""
        parts = Counter(dict.fromkeys(PARTS, 0))
        for allocation, size in self._at_peak:
            parts[allocation.part] += size
        return dict(parts)

    def _observe(self, tensor: Tensor) -> Allocation:
        """Return the allocation of a tensor, with its present size."""
        storage = tensor.untyped_storage()
        allocation = self._live.get(storage)
        if allocation is None:
            allocation = self._live[storage] = Allocation()
            weakref.finalize(storage, self._resize, allocation, 0).atexit = False
        self._resize(allocation, storage.nbytes())
        return allocation

    def _resize(self, allocation: Allocation, size: int) -> None:
        """Set the size of an allocation, 0 for one that is gone."""
        self._bytes += size - allocation.bytes
        allocation.bytes = size

    def _note_peak(self) -> None:
        """Keep what is in use if that is more than ever before."""
        for storage, allocation in self._live.items():
            self._resize(allocation, storage.nbytes())
        if self._bytes > self._peak_bytes:
            self._peak_bytes = self._bytes
            self._at_peak = [(allocation, allocation.bytes) for allocation in self._live.values()]


def _name(operator: Any) -> str:
    """Return the name of an operator, without its namespace and its overload."""
    name: str = operator.overloadpacket.__name__
    return name


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
    """Return an operator's result: real of real tensors alone, such as those of a device mesh.

    A number that is read from a tensor without values is 1.
    """
    if tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
        with unset_fake_temporarily():
            return func(*args, **kwargs)
    name = _name(func)
    if name == "new_empty" and 0 in args[1]:
        # FSDP2 makes one for each rank without a shard, thousands of times; to fake it takes long.
        with unset_fake_temporarily():
            return torch.empty(args[1], dtype=kwargs.get("dtype") or args[0].dtype)
    if name != "_local_scalar_dense":
        return func(*args, **kwargs)
    try:
        return func(*args, **kwargs)
    except DataDependentOutputException:
        return 1.0 if args[0].is_floating_point() else 1
