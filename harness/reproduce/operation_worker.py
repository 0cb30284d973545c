"""Measures the operations that a training step runs: whether each repeats to the last bit.

Each operation is run again on copies of its inputs, just before the step runs it for the first
time, so that inputs have the values of a real training step. Much depends on them: whether an index
occurs twice, for one, decides whether the order of additions matters.

This is the task `operations` of `harness.training.worker`, of one rank. It leaves the catalogue of
operations in FOLDER.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from harness.core.paths import TrialFolder
from harness.records.record import RankResult
from harness.records.trace import combine, digest_bytes
from harness.reproduce.catalog import (
    REPEATS,
    THREADS,
    OperationResult,
    ThreadResult,
    write_operations,
)
from harness.training.build import build_trial
from harness.training.entry import joined, load_workload
from harness.training.model import place_batch
from harness.training.ranks import Ranks
from harness.training.state import TrainingState

Operation = Callable[..., Any]  # torch._ops.OpOverload, which has no types
# Operations that compute nothing: they allocate memory without content, or note a time.
ALLOCATIONS = ("aten.empty", "aten.new_empty", "aten._unsafe_view", "aten.lift_fresh")
NOTES = ("profiler", "prim")  # namespaces
CACHE_LINE = 64  # bytes; torch aligns memory of the CPU to this
LONGEST_SHIFT = 15  # elements by which an input is moved off an aligned address
LISTED_SIZES = 4  # of tensors, before their number is enough


def measure_rank(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Train one step, and measure all operations of a second one, which finds optimizer state."""
    with joined(folder, ranks) as (assignment, mesh):
        workload = load_workload(assignment)
        parts = build_trial(assignment, workload, folder, mesh, state)
        batch = next(iter(parts.loader))[2]
        batch = place_batch(batch, parts.axes, mesh.device)
        parts.clock.start()
        parts.train_step.run(batch)
        meter = OperationMeter(THREADS if mesh.device.type == "cpu" else THREADS[:1])
        with meter:
            parts.train_step.run(batch)
        parts.determinism.check_effect()
        write_operations(folder.path, meter.results())
        del parts
    return entered


class OperationMeter(TorchDispatchMode):
    """Measures every operation that runs while it is entered, once for each kind of inputs.

    `threads` are the numbers of intra-op threads to try. On a GPU they decide nothing, and one of
    them is enough.
    """

    def __init__(self, threads: Sequence[int] = THREADS, repeats: int = REPEATS) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._threads = threads
        self._repeats = repeats
        self._results: dict[str, OperationResult] = {}  # by the kind of call
        self._calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Operation,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, after measuring it if it is new."""
        kwargs = dict(kwargs or {})
        if _computes(func):
            signature = _signature(func, args, kwargs)
            if signature not in self._results:
                self._results[signature] = self._measure(func, args, kwargs)
            self._calls[signature] += 1
        return func(*args, **kwargs)

    def results(self) -> list[OperationResult]:
        """Return the measurements, in the order in which the step ran the operations first."""
        return [
            replace(result, calls=self._calls[signature])
            for signature, result in self._results.items()
        ]

    def _measure(
        self, func: Operation, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> OperationResult:
        """Run an operation on copies of its inputs, with each number of threads."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        threads_before = torch.get_num_threads()
        random_state = _random_state()
        runs = []
        for threads in self._threads:
            torch.set_num_threads(threads)
            in_place = self._digests(func, args, kwargs, random_state, shifted=False)
            shifted = self._digests(func, args, kwargs, random_state, shifted=True)
            runs.append(
                ThreadResult(
                    threads=threads,
                    digest=in_place[0],
                    distinct=len(set(in_place)),
                    distinct_shifted=len({*in_place, *shifted}),
                )
            )
        torch.set_num_threads(threads_before)
        _restore_random_state(random_state)
        return OperationResult(
            operation=str(func),
            dtype=_dtype(tensors),
            sizes=_sizes(tensors),
            elements=sum(tensor.numel() for tensor in tensors),
            calls=0,
            runs=runs,
        )

    def _digests(
        self,
        func: Operation,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        random_state: Sequence[Tensor],
        *,
        shifted: bool,
    ) -> list[str]:
        """Return the digests of the results of all runs, each with the same random numbers."""
        digests = []
        for run in range(self._repeats):
            copied_args, copied_kwargs = _copy_inputs(args, kwargs, run if shifted else None)
            _restore_random_state(random_state)
            result = func(*copied_args, **copied_kwargs)
            digests.append(_digest(func, result, copied_args, copied_kwargs))
        return digests


def _computes(func: Operation) -> bool:
    """Return whether an operation makes numbers, rather than a view or memory for some."""
    overload: Any = func
    if overload.is_view or overload.namespace in NOTES:
        return False
    return not str(func).startswith(ALLOCATIONS)


def _signature(func: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return what tells kinds of calls apart: types, shapes and strides, and all other arguments."""

    def describe(leaf: Any) -> object:
        """Return what of an argument decides how an operation goes about it."""
        if isinstance(leaf, Tensor):
            return leaf.dtype, tuple(leaf.shape), leaf.stride()
        if isinstance(leaf, torch.Generator):
            return "generator"
        if isinstance(leaf, float):
            return "float"  # such as a learning rate, which changes from step to step
        return leaf

    return f"{func} {tree_map(describe, (args, kwargs))}"


def _copy_inputs(
    args: Sequence[Any], kwargs: Mapping[str, Any], shift: int | None
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return copies of all arguments; `shift` moves tensors off aligned addresses.

    Each tensor is moved by another number of elements, from 1 to LONGEST_SHIFT. None leaves them
    where torch allocates memory.
    """
    position = 0

    def copy(leaf: Any) -> Any:
        """Return a copy of a tensor, and anything else as it is."""
        nonlocal position
        if not isinstance(leaf, Tensor):
            return leaf
        position += 1
        elements = 0 if shift is None else 1 + (shift + 3 * position) % LONGEST_SHIFT
        return _copy_at(leaf, elements)

    copied_args: Sequence[Any] = tree_map(copy, args)
    copied_kwargs: dict[str, Any] = tree_map(copy, dict(kwargs))
    return copied_args, copied_kwargs


def _copy_at(tensor: Tensor, elements: int) -> Tensor:
    """Return a copy with the same strides that begins `elements` after an aligned address."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return tensor.clone()
    span = 1  # elements of memory from the first to the last
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        span += (size - 1) * stride
    size_of_element = tensor.element_size()
    memory = torch.empty(
        (span + elements) * size_of_element + CACHE_LINE, dtype=torch.uint8, device=tensor.device
    )
    start = -memory.data_ptr() % CACHE_LINE + elements * size_of_element
    flat = memory[start : start + span * size_of_element].view(tensor.dtype)
    flat.copy_(tensor.detach().as_strided((span,), (1,)))
    return flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset())


def _digest(func: Operation, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the digest of all that an operation computed, its arguments too if it changes some."""
    overload: Any = func
    computed = [result]
    if overload._schema.is_mutable:
        computed += [args, kwargs]
    digests = []
    for leaf in tree_leaves(computed):
        if isinstance(leaf, Tensor):
            values = leaf.detach().to_dense() if leaf.layout != torch.strided else leaf.detach()
            content = values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            digests.append(("", digest_bytes(str(leaf.dtype), leaf.shape, content)))
        elif isinstance(leaf, int | float | bool):
            digests.append(("", repr(leaf)))
    return combine(digests)[1]


def _random_state() -> list[Tensor]:
    """Return the states of the generators that operations draw from."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return states


def _restore_random_state(states: Sequence[Tensor]) -> None:
    """Put the generators back into these states."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1])


def _dtype(tensors: Sequence[Tensor]) -> str:
    """Return the name of the type of the first floating-point tensor, or else of the first one."""
    for tensor in tensors:
        if tensor.is_floating_point():
            return str(tensor.dtype).removeprefix("torch.")
    if not tensors:
        return "none"
    return str(tensors[0].dtype).removeprefix("torch.")


def _sizes(tensors: Sequence[Tensor]) -> str:
    """Return the sizes of tensors, as `64×784, 784×256`; of many, their number and elements."""
    if not tensors:
        return "no tensors"
    if len(tensors) > LISTED_SIZES:
        elements = sum(tensor.numel() for tensor in tensors)
        return f"{len(tensors)} tensors of {elements:,} elements"
    return ", ".join("×".join(map(str, tensor.shape)) or "scalar" for tensor in tensors)
