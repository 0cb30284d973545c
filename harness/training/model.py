"""The model as the axes ask for it, apart from the strategy; and batches in the form it takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from harness.core.errors import NotApplied
from harness.spec.axes import Axes
from harness.training.precision import to_precision
from workloads.base import Batch, Workload

# Of a batch of images, and of the kernels of a convolution: the tensors that can be channels-last.
IMAGE_DIMENSIONS = 4


def build_model(workload: Workload, axes: Axes, device: torch.device) -> nn.Module:
    """Return the workload's model on `device`, as the axes ask for it apart from the strategy.

    That is the memory format, activation checkpointing and fp64. Raises NotApplied if channels_last
    would change nothing.
    """
    model = workload.build_model().to(device)
    if axes.precision == "fp64":
        # Only now: initial parameters that are drawn in fp64 would be other random numbers.
        model.double()
    if axes.channels_last:
        _use_channels_last(model)
    if axes.activation_checkpointing:
        for layer in workload.layers(model) or [model]:
            _checkpoint_activations(layer)
    return model


def _use_channels_last(model: nn.Module) -> None:
    """Lay out the kernels of convolutions channels-last; raises NotApplied if there are none."""
    if not any(parameter.ndim == IMAGE_DIMENSIONS for parameter in model.parameters()):
        raise NotApplied("channels_last=true had no effect: the model has no convolution of images")
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _checkpoint_activations(layer: nn.Module) -> None:
    """Have `layer` compute its activations again in backward, instead of keeping them.

    Its `forward` is replaced, rather than the layer wrapped in a module, so that the names of
    parameters and the structure of the model stay as they are.
    """
    forward = layer.forward

    def recomputed_forward(*arguments: Any, **keywords: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

    layer.forward = recomputed_forward


def must_place_batches(axes: Axes, device: torch.device) -> bool:
    """Return whether `place_batch` does anything to a loader's batch."""
    return device.type != "cpu" or axes.channels_last or axes.precision == "fp64"


def place_batch(batch: Batch, axes: Axes, device: torch.device) -> Batch:
    """Return the batch on `device`, in the type and the memory format of the model.

    Copies from page-locked memory run beside the host, which does not wait for them.
    """
    if device.type != "cpu" and batch[0].device != device:
        batch = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
    if axes.precision == "fp64":
        batch = tuple(to_precision(tensor, axes) for tensor in batch)
    if axes.channels_last:
        batch = tuple(_in_channels_last(tensor) for tensor in batch)
    return batch


def _in_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return images in channels-last order, and any other tensor as it is."""
    if tensor.ndim != IMAGE_DIMENSIONS:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
