"""Counts the collectives of a rank in a step, and what it sends to one other; nothing is timed.

All collectives of torch, those of DDP's C++ and of DTensor included, are operators of two
namespaces, which a dispatch mode sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from harness.measure.traffic import leaves, tensors_in
from harness.records.record import Collective

NAMESPACES = ("c10d", "_c10d_functional")
# Torch has several operators for each, which differ in how they take their tensors.
OPERATIONS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "send": "send",
    "recv_": "recv",
}
BETWEEN_TWO = ("send", "recv")
DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}


class CollectiveCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the collectives that this rank takes part in while the counter is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # The bytes of each call, by operation, type and number of ranks.
        self._sizes: dict[tuple[str, str, int], list[int]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and count it if it is a collective."""
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it comes again, as operators of plain tensors
        result = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES:
            operation = OPERATIONS.get(func.overloadpacket.__name__)
            if operation is not None:
                self._count(operation, args, result)
        return result

    def _count(self, operation: str, args: tuple[Any, ...], result: Any) -> None:
        """Add one collective with its tensors."""
        tensors = tensors_in(args)
        if not tensors:
            return
        # The largest is the whole: the result of a gather, the input of a scatter.
        size = max(_total_bytes(part) for part in (*args, result))
        dtype = DTYPES.get(tensors[0].dtype, str(tensors[0].dtype).removeprefix("torch."))
        ranks = 2 if operation in BETWEEN_TWO else _group_size(args)
        self._sizes.setdefault((operation, dtype, ranks), []).append(size)
        if operation in BETWEEN_TWO:  # whose other rank may have something to send first
            return
        # What a communication hook does after the collective then runs in this thread, where the
        # counter is entered.
        for value in leaves(result):
            if isinstance(value, torch.ScriptObject) and "Work" in str(value):
                dist.Work.unbox(value).wait()

    def collectives(self) -> list[Collective]:
        """Return the counts, the kinds with the most bytes first."""
        counted = []
        for (operation, dtype, ranks), sizes in self._sizes.items():
            counted.append(
                Collective(
                    operation=operation,
                    dtype=dtype,
                    ranks=ranks,
                    calls=len(sizes),
                    bytes=sum(sizes),
                )
            )
        return sorted(counted, key=lambda collective: -collective.bytes)


def _total_bytes(part: Any) -> int:
    """Return the bytes of all tensors of an argument or a result, which may be lists of some."""
    return sum(tensor.nbytes for tensor in tensors_in(part))


def _group_size(args: tuple[Any, ...]) -> int:
    """Return the ranks of the group that an operator was given, as an object or by its name."""
    for value in args:
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value):
            return dist.ProcessGroup.unbox(value).size()
    c10d: Any = distributed_c10d  # what resolves a group's name is not public
    for value in reversed(args):
        if isinstance(value, str) and value not in ("sum", "avg", "min", "max"):
            size: int = c10d._resolve_process_group(value).size()
            return size
    return dist.get_world_size()


def count_collectives(step: Callable[[], object]) -> list[Collective]:
    """Return the collectives of this rank in `step`; every rank must call this."""
    counter = CollectiveCounter()
    with counter:
        step()
    return counter.collectives()
