"""Counts the memory traffic of training; nothing is timed.

The convention: every operator reads each of its tensors once and writes each of its results once,
as eager execution does if nothing stays in a cache. Views move nothing; an axis of stride 0 is a
single element; a gather reads the rows that it takes, not the whole table. The result is an upper
bound of what main memory has to move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from harness.measure.probe import Loss, probe_gradients
from workloads.base import Batch

# Operators that read only the shape of a tensor.
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
# Operators that overwrite their first argument without reading it.
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
# Operators that read only the rows of their first argument that they return.
GATHERING = {"embedding", "gather", "index", "index_select"}
# Operators that neither read nor write elements.
MOVING_NOTHING = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operators read and write while it is entered, in `bytes`.

    A dispatch mode sees every operator after autograd and autocast, so also those of backward and
    the conversions of mixed precision.
    """

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
        """Run an operator and add the bytes that it moves."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.bytes += bytes_moved(func, args, kwargs, result)
        return result


def bytes_moved(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the bytes that one call of an operator reads and writes.

    The operator's schema says which results are views, and which arguments it writes to.
    """
    name = operator.overloadpacket.__name__
    schema = operator._schema
    if name in MOVING_NOTHING or _returns_views(schema):
        return 0
    positional = zip(schema.arguments, args, strict=False)
    arguments = {argument.name: value for argument, value in positional} | kwargs
    # The names of the arguments that it writes to.
    mutable = {
        part.name for part in schema.arguments if part.alias_info and part.alias_info.is_write
    }
    # The results that have memory of their own: those that are no argument and no view.
    results = tuple(result) if isinstance(result, tuple) else (result,)
    pairs = zip(results, schema.returns, strict=False)
    written = size_of(value for value, declared in pairs if declared.alias_info is None)
    written += size_of(value for key, value in arguments.items() if key in mutable)
    if name in SHAPE_ONLY:
        return written
    unread = {key for key in mutable if key == "out"}
    if name in OVERWRITING or name in GATHERING:
        unread.add(next(iter(arguments), ""))
    read = size_of(value for key, value in arguments.items() if key not in unread)
    if name in GATHERING:
        read += written  # the rows that it takes are as large as its result
    return read + written


def _returns_views(schema: Any) -> bool:
    """Return whether all results of an operator share memory with arguments that it only reads."""
    aliases = [result.alias_info for result in schema.returns]
    if not aliases:
        return False
    return all(alias is not None and not alias.is_write for alias in aliases)


def size_of(values: Iterable[Any]) -> int:
    """Return the bytes of all tensors among nested values, each tensor counted once."""
    tensors = {id(tensor): tensor for tensor in tensors_in(list(values))}
    return sum(tensor_bytes(tensor) for tensor in tensors.values())


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors among nested values."""
    return [value for value in leaves(values) if isinstance(value, Tensor)]


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values in nested lists and tuples, as operators take and return them."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's distinct elements: an expanded axis counts as one element."""
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        is_expanded = stride == 0 and length > 0
        elements *= 1 if is_expanded else length
    return elements * tensor.element_size()


def bytes_per_sample(loss: Loss, module: nn.Module, batch: Batch) -> float | None:
    """Return the traffic of one forward and backward, in bytes per sample of `batch`.

    The training is left as it was (`probe_gradients`). Returns None if memory is insufficient.
    """
    traffic = Traffic()
    if not probe_gradients(loss, module, batch, traffic):
        return None
    return float(traffic.bytes / len(batch[0]))


def optimizer_bytes(optimizer: Optimizer) -> int:
    """Return the traffic in bytes of an optimizer step that visits everything once.

    A fused implementation does: it reads and writes the parameters and their state, and reads the
    gradients. Implementations that go tensor by tensor move more. State of another shape than its
    parameter, such as a step count, is too small to count.
    """
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            total += 3 * parameter.nbytes
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    total += 2 * value.nbytes
    return total
