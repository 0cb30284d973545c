"""Finds how a workload calls its model: with which tensors, and which of their sizes vary.

A workload defines how a batch is evaluated, not what its model takes. So the calls are recorded
while a few batches of the test set are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.spec.axes import Axes
from harness.training.model import place_batch
from workloads.base import Samples, Workload

Inputs = tuple[Tensor, ...]
PROBED_BATCHES = 16  # that are evaluated, spread over the test set


class CallWatch(nn.Module):
    """Wraps a model, and keeps the inputs of every call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calls: list[Inputs] = []

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model; raises NotApplied for inputs that are no tensors by position."""
        if keywords or not all(isinstance(value, Tensor) for value in inputs):
            names = [*(type(value).__name__ for value in inputs), *keywords]
            raise NotApplied(
                f"evaluate() calls the model with {', '.join(names)}; needed: tensors by position"
            )
        self.calls.append(inputs)
        return self.model(*inputs)


@dataclass(frozen=True)
class CallShape:
    """The inputs that an exported model has to take."""

    example: Inputs  # of the largest call, if possible one whose varying sizes are all above 1
    varying: Sequence[frozenset[int]]  # for each input, the dimensions whose size varies

    def axes(self, index: int) -> list[str]:
        """Return the size of each axis of an input, or a name for an axis whose size varies.

        Inputs share the names, as in (batch, axis_1), which is that of their first axes. Where the
        sizes differ, as those of a text and its translation, the name ends in the index of the input.
        """
        axes = []
        for number, size in enumerate(self.example[index].shape):
            if number not in self.varying[index]:
                axes.append(str(size))
                continue
            name = "batch" if number == 0 else f"axis_{number}"
            varies = [other for other, varying in enumerate(self.varying) if number in varying]
            equal = [other for other in varies if self.example[other].shape[number] == size]
            axes.append(name if equal[0] == varies[0] else f"{name}_{equal[0]}")
        return axes


@torch.no_grad()
def inputs_of(
    workload: Workload,
    model: nn.Module,
    samples: Samples,
    indices: Sequence[int],
    axes: Axes,
    device: torch.device,
) -> list[Inputs]:
    """Return the inputs of all calls of the model in the evaluation of some samples."""
    watch = CallWatch(model)
    workload.evaluate(watch, place_batch(samples.batch(indices), axes, device))
    if not watch.calls:
        raise NotApplied("evaluate() did not call the model; needed: calls of the model itself")
    return watch.calls


def probe_calls(
    inputs_of_samples: Callable[[Sequence[int]], list[Inputs]], count: int, batch_size: int
) -> CallShape:
    """Return the common shape of the calls of an evaluation.

    `inputs_of_samples` returns the calls for some of `count` samples. Batches from the whole set
    are evaluated, a single sample and two, so that the dimension of samples varies.
    Raises NotApplied where calls have different numbers of inputs, or of dimensions.
    """
    starts = range(0, count, batch_size)
    stride = max(1, len(starts) // PROBED_BATCHES)
    calls = inputs_of_samples([0]) + inputs_of_samples(range(min(2, count)))
    for start in starts[::stride]:
        calls += inputs_of_samples(range(start, min(start + batch_size, count)))
    ranks = {tuple(tensor.ndim for tensor in inputs) for inputs in calls}
    if len(ranks) > 1:
        raise NotApplied(
            "evaluate() calls the model in several ways; needed: always the same inputs"
        )
    varying = []
    for tensors in zip(*calls, strict=True):
        sizes = zip(*(tensor.shape for tensor in tensors), strict=True)
        varying.append(frozenset(n for n, values in enumerate(sizes) if len(set(values)) > 1))

    def suitability(inputs: Inputs) -> tuple[int, int]:
        """Return how many varying sizes are larger than 1, and how many numbers the inputs have.

        torch.export takes a size of 1 for constant.
        """
        pairs = zip(inputs, varying, strict=True)
        sizes = [tensor.shape[axis] for tensor, axes in pairs for axis in axes]
        return sum(size > 1 for size in sizes), sum(tensor.numel() for tensor in inputs)

    return CallShape(example=max(calls, key=suitability), varying=varying)
