"""The model as the axes ask for it, apart from the strategy; and batches in the form it takes.

Which modules train in evaluation mode, such as a frozen encoder, is the workload's to say: the modes
that the model is built with are those that it is trained with.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.core.errors import NotApplied
from harness.spec.axes import Axes
from workloads.base import Batch, Workload

# Of a batch of images, and of the kernels of a convolution: the tensors that can be channels-last.
IMAGE_DIMENSIONS = 4


def build_model(workload: Workload, axes: Axes, device: torch.device) -> nn.Module:
    """Return the workload's model on `device`, as the axes ask for it apart from the strategy.

    That is the memory format and fp64; `checkpoint_activations` comes later. Raises NotApplied if channels_last
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
    return model


def checkpoint_activations(workload: Workload, model: nn.Module) -> None:
    """Have each layer of the model, or the model without any, compute its activations in backward again."""
    for layer in workload.layers(model) or [model]:
        _checkpoint_activations(layer)


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


@contextmanager
def undisturbed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Have a block leave a module's buffers and the generators of torch, NumPy and Python as they are."""
    buffers = {}
    for path, part in module.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            buffers[path, name] = (buffer, buffer.clone())
    python_state, numpy_state = random.getstate(), np.random.get_state()
    generators = [device] if device.type == "cuda" else []  # besides the CPU's
    with torch.random.fork_rng(generators):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            _restore_buffers(module, buffers)


@torch.no_grad()
def _restore_buffers(
    module: nn.Module, buffers: Mapping[tuple[str, str], tuple[Tensor, Tensor]]
) -> None:
    """Give a module its buffers back, by the path of its part and the buffer's name: each and its copy."""
    for path, part in module.named_modules():
        for name, present in list(part.named_buffers(recurse=False)):
            if (path, name) not in buffers:  # the block has made it
                setattr(part, name, None)
                continue
            buffer, original = buffers[path, name]
            buffer.copy_(original)
            if present is not buffer:
                setattr(part, name, buffer)


def check_training_mode(workload: Workload, model: nn.Module) -> None:
    """Raise NotApplied if all trained modules are in evaluation mode.

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
