"""The model as the axes ask for it, apart from the strategy; and batches in the form it takes.

Which modules train in evaluation mode, such as a frozen encoder, is the workload's to say: the modes
that the model is built with are those that it is trained with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.core.errors import NotApplied
from harness.sweep.axes import Axes
from harness.training.ranks import generators_kept
from workloads.base import Batch, Workload

# Of a batch of images, and of the kernels of a convolution: the tensors that can be channels-last.
IMAGE_DIMENSIONS = 4
Buffers = list[tuple[nn.Module, str, Tensor]]  # each with its module and its name there


def build_model(workload: Workload, axes: Axes, device: torch.device) -> nn.Module:
    """Return the workload's model on `device`, as the axes ask for it apart from the strategy.

    That is the memory format and fp64; `checkpoint_activations` comes later. Raises NotApplied if
    channels_last would change nothing.
    """
    model = workload.build_model().to(device)
    if axes.precision == "fp64":
        # Only now: initial parameters that are drawn in fp64 would be other random numbers.
        model.double()
    if axes.channels_last:
        dimensions = {parameter.ndim for parameter in model.parameters()}
        if IMAGE_DIMENSIONS not in dimensions:
            raise NotApplied(
                "channels_last=true had no effect: the model has no convolution of images"
            )
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def checkpoint_activations(workload: Workload, model: nn.Module) -> None:
    """Have each layer of the model, or the model without any, compute its activations in backward again.

    A layer's `forward` is replaced, rather than the layer wrapped in a module, so that the names of
    parameters and the structure of the model stay as they are.
    """
    for layer in workload.layers(model) or [model]:
        layer.forward = _recomputed(layer)


def _recomputed(layer: nn.Module) -> Any:
    """Return the forward of a layer that keeps no activations."""
    forward = layer.forward
    has_buffers = bool(_buffers(layer))

    def recomputed_forward(*arguments: Any, **keywords: Any) -> Any:
        # torch.compile changes buffers in the first computation alone, and takes no such contexts.
        if has_buffers and not torch.compiler.is_compiling():
            found = _copied(_buffers(layer))
            # The contexts of this forward, and of the one that computes it again.
            keywords["context_fn"] = lambda: (nullcontext(), _with_buffers(layer, found))
        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

    return recomputed_forward


@contextmanager
def _with_buffers(layer: nn.Module, found: Buffers) -> Iterator[None]:
    """Give a layer, in a block, copies of the buffers that its forward found, and then back its own.

    A layer may change its buffers, such as the running statistics of a batch norm. What computes its
    activations again has to find what the forward found, and must not change them once more.
    """
    present = _buffers(layer)
    _set(_copied(found))
    try:
        yield
    finally:
        _set(present)


def _buffers(module: nn.Module) -> Buffers:
    """Return the buffers of a module and of its parts."""
    buffers = []
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            buffers.append((part, name, buffer))
    return buffers


def _copied(buffers: Buffers) -> Buffers:
    """Return copies of buffers, with the places that they belong to."""
    return [(part, name, buffer.clone()) for part, name, buffer in buffers]


def _set(buffers: Buffers) -> None:
    """Put buffers, or others in their place, where they belong."""
    for part, name, buffer in buffers:
        setattr(part, name, buffer)


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
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Evaluate in a block, which leaves modes, buffers and random generators as they are."""
    buffers = _buffers(model)
    originals = _copied(buffers)
    with generators_kept(device), evaluation_mode(model), torch.no_grad():
        try:
            yield
        finally:
            for part, name, _ in _buffers(model):
                setattr(part, name, None)  # also of one that the block has made
            for (_, _, buffer), (_, _, original) in zip(buffers, originals, strict=True):
                buffer.copy_(original)
            _set(buffers)


def check_training_mode(workload: Workload, model: nn.Module) -> None:
    """Raise NotApplied if all layers of the model are in evaluation mode.

    Some may be on purpose. But `from_pretrained` of transformers returns a whole model in evaluation mode,
    and it would be trained without dropout, in whichever module it is, also beside a loss function that
    was not evaluated.
    """
    modes = set()
    for module in model.modules():
        if list(module.parameters(recurse=False)):
            modes.add(module.training)
    if modes == {False}:
        raise NotApplied(
            f"{type(workload).__name__}: found a model in evaluation mode, which trains without"
            " dropout; needed: model.train() in build_model(), as after from_pretrained()"
        )


def place_batch(batch: Batch, axes: Axes, device: torch.device) -> Batch:
    """Return the batch on `device`, in the type and the memory format of the model.

    Copies from page-locked memory are asynchronous: the host does not wait for them.
    """
    placed = []
    for tensor in batch:
        tensor = tensor.to(device, non_blocking=True)
        if axes.precision == "fp64" and tensor.is_floating_point():  # not labels
            tensor = tensor.double()
        if axes.channels_last and tensor.ndim == IMAGE_DIMENSIONS:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        placed.append(tensor)
    return tuple(placed)
