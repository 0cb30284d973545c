"""Memory traffic of training, counted rather than timed.

The convention: every operator reads each of its tensors once and writes each of its results once, as eager execution
does where nothing stays in a cache. Views move nothing; an axis of stride 0 is one element; a gather reads the rows it
takes, not the table. So it is an upper bound of what main memory has to move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from workloads.base import Batch, Workload

# Operators that look at a tensor for its shape alone, and those that overwrite their first argument unread.
SHAPE_ONLY = {
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "new_zeros",
    "new_ones",
    "new_full",
}
OVERWRITING = {
    "copy_",
    "zero_",
    "fill_",
    "bernoulli_",
    "normal_",
    "uniform_",
    "random_",
    "exponential_",
}
GATHERING = {"embedding", "gather", "index", "index_select"}
MOVING_NOTHING = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operators read and write while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: int = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.bytes += moved(func, args, kwargs, result)
        return result


def moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """The bytes that one call of an operator reads and writes."""
    name = func.overloadpacket.__name__
    schema = func._schema
    returns = [part.alias_info for part in schema.returns]
    view = bool(returns) and all(alias is not None and not alias.is_write for alias in returns)
    if view or name in MOVING_NOTHING:
        return 0
    named = {
        argument.name: value for argument, value in zip(schema.arguments, args, strict=False)
    } | kwargs
    mutable = {
        argument.name
        for argument in schema.arguments
        if argument.alias_info and argument.alias_info.is_write
    }
    fresh = [
        value for value, alias in zip(_several(result), returns, strict=False) if alias is None
    ]
    written = size_of(fresh) + size_of(value for key, value in named.items() if key in mutable)
    if name in SHAPE_ONLY:
        return written
    first = next(iter(named), None)
    unread = {first} if name in OVERWRITING or name in GATHERING else set()
    unread |= {key for key in mutable if key == "out"}
    read = size_of(value for key, value in named.items() if key not in unread)
    return read + written + (written if name in GATHERING else 0)


def size_of(values: Iterable[Any]) -> int:
    """Bytes of all different tensors among nested values."""
    different = {id(value): value for value in tree_iter(list(values)) if isinstance(value, Tensor)}
    return sum(tensor_bytes(tensor) for tensor in different.values())


def tensor_bytes(tensor: Tensor) -> int:
    """Of its different elements."""
    count = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= 1 if stride == 0 and length else length
    return count * tensor.element_size()


def _several(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def bytes_per_sample(
    workload: Workload,
    module: nn.Module,
    batch: Batch,
    forward: Callable[[], AbstractContextManager[object]],
) -> float | None:
    """Of one forward, in the context `forward()`, and backward of the bare module on a batch; None on lack of memory.

    Leaves parameters, gradients, buffers and random numbers as they were; no hook of a wrapper runs.
    """
    wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    mode, device = module.training, batch[0].device
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), Traffic() as traffic:
            module.train()
            with forward():
                loss = workload.loss(module, batch)
            torch.autograd.grad(loss, wanted, allow_unused=True)
    except torch.OutOfMemoryError:
        return None
    finally:
        module.train(mode)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    return float(traffic.bytes / len(batch[0]))


def optimizer_bytes(optimizer: Optimizer) -> int:
    """Of a step that goes over everything once, as a fused one does: parameters and state read and written, gradients
    read. Implementations that go tensor by tensor move more."""
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = [
                value
                for value in optimizer.state.get(parameter, {}).values()
                if isinstance(value, Tensor)
            ]
            large = [value for value in state if value.shape == parameter.shape]
            total += 3 * parameter.nbytes + 2 * sum(value.nbytes for value in large)
    return total
