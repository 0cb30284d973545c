"""Finds how a workload calls its model: with which tensors, and which of their sizes vary.

A workload defines how a batch is evaluated, not what its model takes. So the calls are recorded
while a few batches of the test set are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.sweep.axes import Axes
from harness.training.model import place_batch
from workloads.base import Samples, Workload

Inputs = tuple[Tensor, ...]
PROBED_BATCHES = 16  # that are evaluated, spread over the test set


@dataclass(frozen=True)
class TrainedModel:
    """A model in evaluation mode, and what its workload evaluates it on."""

    workload: Workload
    model: nn.Module
    samples: Samples
    axes: Axes
    device: torch.device

    @torch.no_grad()
    def evaluate(self, indices: Sequence[int]) -> Tensor:
        """Return the rows of an evaluation of some samples, in fp64."""
        samples = self.samples.batch(indices)
        batch = place_batch(samples, self.axes, self.device)
        rows = self.workload.evaluate(self.model, batch)
        return rows.double().cpu()

    def calls(self, indices: Sequence[int]) -> list[Inputs]:
        """Return the inputs of all calls of the model in the evaluation of some samples.

        Raises NotApplied for inputs that are no tensors by position.
        """
        calls: list[Inputs] = []

        def note(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
            are_tensors = all(isinstance(value, Tensor) for value in inputs)
            if keywords or not are_tensors:
                raise NotApplied(
                    "evaluate() calls the model with other things than tensors by position"
                )
            calls.append(inputs)

        with self.model.register_forward_pre_hook(note, with_kwargs=True):
            self.evaluate(indices)
        return calls


@dataclass(frozen=True)
class CallShape:
    """The inputs that an exported model has to take."""

    example: Inputs
    varying: Sequence[frozenset[int]]  # for each input, the dimensions whose size varies

    def names(self, index: int) -> dict[int, str]:
        """Return the names of the varying axes of an input: `batch`, and else one of its own.

        ONNX takes axes of one name for equally long, as a text and its translation are not.
        """
        names = {axis: f"axis_{axis}_{index}" for axis in sorted(self.varying[index])}
        if 0 in names:
            size = self.example[index].shape[0]
            batch_size = self.example[0].shape[0]
            if size == batch_size:
                names[0] = "batch"
        return names

    def describe(self, index: int) -> str:
        """Return the type and shape of an input, as in `float32 (batch, 4)`."""
        tensor = self.example[index]
        names = self.names(index)
        sizes = []
        for axis, size in enumerate(tensor.shape):
            sizes.append(names.get(axis, str(size)))
        dtype = str(tensor.dtype).removeprefix("torch.")
        return f"{dtype} ({', '.join(sizes)})"


def probe_calls(
    calls_of: Callable[[Sequence[int]], list[Inputs]], count: int, batch_size: int
) -> CallShape:
    """Return the common shape of the calls of an evaluation.

    `calls_of` returns the calls for some of `count` samples. A single sample is evaluated, and batches
    from the whole set, of at least two samples: torch.export takes a size of 1 for constant.
    """
    size = max(2, batch_size)
    starts = range(0, max(1, count - 1), size)
    single = calls_of([0])
    batches: list[Inputs] = []
    stride = max(1, len(starts) // PROBED_BATCHES)
    for start in starts[::stride]:
        stop = min(start + size, count)
        batches += calls_of(range(start, stop))
    calls = [*single, *batches]
    varying = [varying_dimensions(tensors) for tensors in zip(*calls, strict=True)]
    largest = max(batches, key=lambda inputs: sum(map(torch.numel, inputs)))
    # Copies: torch.export takes two inputs that are one tensor for one input.
    example = tuple(tensor.clone() for tensor in largest)
    return CallShape(example=example, varying=varying)


def varying_dimensions(tensors: Sequence[Tensor]) -> frozenset[int]:
    """Return the dimensions in which the sizes of some tensors differ."""
    shapes = [tensor.shape for tensor in tensors]
    dimensions = set()
    for dimension, sizes in enumerate(zip(*shapes, strict=True)):
        if len(set(sizes)) > 1:
            dimensions.add(dimension)
    return frozenset(dimensions)
