"""The model as the axes ask for it, apart from the strategy; and batches in the form it takes.

Which modules train in evaluation mode, such as a frozen encoder, is the workload's to say: the modes
that the model is built with are those that it is trained with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.core.errors import NotApplied
from harness.spec.axes import Axes
from workloads.base import Batch, Workload

# Of a batch of images, and of the kernels of a convolution: the tensors that can be channels-last.
IMAGE_DIMENSIONS = 4
DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def build_model(workload: Workload, axes: Axes, device: torch.device) -> nn.Module:
    """Return the workload's model on `device`, as the axes ask for it apart from the strategy.

    That is the memory format, activation checkpointing and fp64. Raises NotApplied if channels_last
    would change nothing.
    """
    model = workload.build_model()
    if device.type != "cpu":
        model.to(device)
    if axes.precision == "fp64":
        # Only now: initial parameters that are drawn in fp64 would be other random numbers.
        model.double()
    if axes.channels_last:
        if not any(parameter.ndim == IMAGE_DIMENSIONS for parameter in model.parameters()):
            raise NotApplied(
                "channels_last=true had no effect: the model has no convolution of images"
            )
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if axes.activation_checkpointing:
        for layer in workload.layers(model) or [model]:
            _checkpoint_activations(layer)
    return model


def _checkpoint_activations(layer: nn.Module) -> None:
    """Have `layer` compute its activations again in backward, instead of keeping them.

    Its `forward` is replaced, rather than the layer wrapped in a module, so that the names of
    parameters and the structure of the model stay as they are.
    """
    forward = layer.forward
    has_buffers = any(True for _ in layer.buffers())

    def recomputed_forward(*arguments: Any, **keywords: Any) -> Any:
        # torch.compile changes buffers in the first computation alone, and takes no such contexts.
        if not has_buffers or torch.compiler.is_compiling():
            return checkpoint(forward, *arguments, use_reentrant=False, **keywords)
        # The contexts are those of a forward that begins now, and of the one that computes it again.
        return checkpoint(
            forward,
            *arguments,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _BuffersOfForward(layer)),
            **keywords,
        )

    layer.forward = recomputed_forward


class _BuffersOfForward:
    """Gives a layer, in a block, copies of the buffers that it has now, and then back its own.

    A layer may change its buffers, such as the running statistics of a batch norm. What computes its
    activations again has to find what the forward found, and must not change them once more.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._found: list[tuple[nn.Module, str, Tensor]] = []
        for module in layer.modules():
            for name, buffer in module.named_buffers(recurse=False):
                self._found.append((module, name, buffer.clone()))
        self._present: list[Tensor] = []

    def __enter__(self) -> None:
        self._present = [getattr(module, name) for module, name, _ in self._found]
        for module, name, buffer in self._found:
            setattr(module, name, buffer.clone())

    def __exit__(self, *error: object) -> None:
        for (module, name, _), present in zip(self._found, self._present, strict=True):
            setattr(module, name, present)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put all modules into evaluation mode for a block, and then each into the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def check_training_mode(workload: Workload, model: nn.Module) -> None:
    """Raise NotApplied if all trained modules, or all dropout that an option asks for, are off.

    Some modules may be in evaluation mode on purpose. But `from_pretrained` of transformers returns
    a whole model in evaluation mode, and it would be trained without dropout.
    """
    name = type(workload).__name__
    trained = []
    for module in model.modules():
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            trained.append(module)
    if trained and not any(module.training for module in trained):
        raise NotApplied(
            f"{name}: found a model in evaluation mode, which trains without dropout; needed:"
            " model.train() in build_model(), as after from_pretrained()"
        )
    dropouts = [module for module in model.modules() if isinstance(module, DROPOUT) and module.p]
    option = _dropout_option(workload)
    if option is None or not dropouts or any(module.training for module in dropouts):
        return
    raise NotApplied(
        f"{option} had no effect: all dropout modules of {name} are in evaluation mode"
    )


def _dropout_option(workload: Workload) -> str | None:
    """Return the first option that asks for dropout, with its value; None if none does."""
    for option in fields(workload.options):
        value = getattr(workload.options, option.name)
        if "dropout" in option.name and isinstance(value, float) and value > 0:
            return f"options.{option.name}={value:g}"
    return None


def must_place_batches(axes: Axes, device: torch.device) -> bool:
    """Return whether `place_batch` does anything to a loader's batch."""
    return device.type != "cpu" or axes.channels_last or axes.precision == "fp64"


def place_batch(batch: Batch, axes: Axes, device: torch.device) -> Batch:
    """Return the batch on `device`, in the type and the memory format of the model.

    Copies from page-locked memory are asynchronous: the host does not wait for them.
    """
    if device.type != "cpu" and batch[0].device != device:
        batch = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
    if axes.precision == "fp64":
        # Tensors of integers, such as labels, stay as they are.
        batch = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in batch)
    if axes.channels_last:
        tensors = []
        for tensor in batch:
            if tensor.ndim == IMAGE_DIMENSIONS:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            tensors.append(tensor)
        batch = tuple(tensors)
    return batch
