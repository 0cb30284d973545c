"""The model and its optimizer as the axes ask for them, apart from the strategy; and batches for the model.

Which modules train in evaluation mode, such as a frozen encoder, is the workload's to say: the modes
that the model is built with are those that it is trained with.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.checkpoint import checkpoint

from harness.core.errors import NotApplied, one_line
from harness.sweep.axes import Axes
from harness.training.ranks import generators_kept
from workloads.base import Batch, Workload

# Of a batch of images, and of the kernels of a convolution: the tensors that can be channels-last.
IMAGE_DIMENSIONS = 4
SIMULATED_STEPS = 1000  # of a schedule at most, to see whether it depends on the optimizer's rates
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
            found = [(part, name, buffer.clone()) for part, name, buffer in _buffers(layer)]
            # The contexts of this forward, and of the one that computes it again.
            keywords["context_fn"] = lambda: (nullcontext(), _with_buffers(layer, found))
        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

    return recomputed_forward


@contextmanager
def _with_buffers(module: nn.Module, found: Buffers) -> Iterator[None]:
    """Give a module, in a block, copies of the buffers that were found, and then back its own.

    A module may change its buffers, such as the running statistics of a batch norm. What computes the
    activations of a layer again has to find what the forward found, and must not change them once more.
    """
    present = _buffers(module)
    for part, name, buffer in found:
        setattr(part, name, buffer.clone())
    try:
        yield
    finally:
        for part, name, _ in _buffers(module):
            setattr(part, name, None)  # also one that the block has made
        for part, name, buffer in present:
            setattr(part, name, buffer)


def _buffers(module: nn.Module) -> Buffers:
    """Return the buffers of a module and of its parts."""
    buffers = []
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            buffers.append((part, name, buffer))
    return buffers


@contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Evaluate in a block, which leaves modes, buffers and random generators as they are."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with generators_kept(device), _with_buffers(model, _buffers(model)), torch.no_grad():
            yield
    finally:
        for module, is_training in modes:
            module.training = is_training


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


# Optimizer and learning rate: the workload's recipe, as the axes change it


def make_optimizer(workload: Workload, model: nn.Module, axes: Axes) -> Optimizer:
    """Return the workload's optimizer, with the implementation and the rates that the axes ask for.

    With lr_scaling=linear, k times the recipe's batch size means k times the learning rate (Goyal
    et al. 2017, arXiv:1706.02677). Raises NotApplied for an implementation that the optimizer
    doesn't have, and for a parameter outside the model, which no strategy or checkpoint has.
    """
    optimizer = workload.optimizer(model)
    of_model = set(model.parameters())
    is_fused = False
    for group in optimizer.param_groups:
        is_fused |= bool(group.get("fused"))
        if not of_model.issuperset(group["params"]):
            raise NotApplied(
                f"{type(workload).__name__}: found an optimizer with a parameter that is not the"
                " model's; needed: all that train in build_model(), so that ranks share their"
                " gradients and checkpoints have them"
            )
    implementation = axes.optimizer_impl
    if axes.reduction == "tree" and is_fused:
        # On CPUs, a fused kernel rounds the elements of a tensor's end, which do not fill a vector
        # register, in another way. Where a tensor ends depends on how it is sharded.
        implementation = "foreach"
    if implementation != "recipe":
        # A new object, because an optimizer checks its implementation when it is made.
        # A loop over tensors has neither flag.
        flags = {name: name == implementation for name in ("foreach", "fused")}
        for group in optimizer.param_groups:
            group |= flags
        optimizer_class: Any = type(optimizer)
        try:
            optimizer = optimizer_class(optimizer.param_groups, **flags)
        except (TypeError, RuntimeError) as error:  # it refuses, or takes no such arguments
            problem = f"{optimizer_class.__name__} has no {implementation}: {one_line(error)}"
            raise NotApplied(f"optimizer_impl: {problem}") from None
    for group in optimizer.param_groups:
        base_lr = group["lr"] if axes.lr is None else axes.lr
        group["lr"] = base_lr * lr_factor(workload, axes)
    return optimizer


def lr_factor(workload: Workload, axes: Axes) -> float:
    """Return the factor of learning rates that the axis `lr_scaling` asks for."""
    if axes.lr_scaling == "linear":
        return axes.batch_size / workload.batch_size
    return 1.0


def make_schedule(
    workload: Workload, optimizer: Optimizer, axes: Axes, steps: int
) -> LRScheduler | None:
    """Return the workload's schedule over `steps` optimizer steps; None for a constant rate.

    Raises NotApplied if the axes change the rate, and the workload's schedule sets rates of its own:
    it has the same ones at twice the optimizer's. So do torch's OneCycleLR and CyclicLR with
    numbers for their rates.
    """
    if axes.lr is not None or lr_factor(workload, axes) != 1:
        rates = simulate_rates(workload, optimizer, steps)
        doubled = simulate_rates(workload, optimizer, steps, scale=2)
        for once, twice in zip(rates, doubled, strict=True):
            # A group that stays at 0 is frozen by a factor, which depends on no rate.
            if once == twice and any(once):
                raise NotApplied(
                    f"lr and lr_scaling had no effect: {type(workload).__name__}.schedule() sets rates"
                    " of its own; needed: the optimizer's, as in"
                    " max_lr=[group['lr'] for group in optimizer.param_groups]"
                )
    return workload.schedule(optimizer, steps)


def simulate_rates(
    workload: Workload, optimizer: Optimizer, steps: int, *, scale: float = 1
) -> list[tuple[float, ...]]:
    """Return the rates of a schedule at its first steps, shape (groups of parameters, steps).

    It is that of an optimizer with `scale` times the rates. At most SIMULATED_STEPS are simulated. Nothing is
    trained, and the optimizer is left as it was.
    """
    simulated = copy(optimizer)
    simulated.param_groups = []
    for group in optimizer.param_groups:
        simulated.param_groups.append(group | {"lr": scale * group["lr"]})
    rates = []  # shape (steps, groups of parameters)
    with warnings.catch_warnings():
        # Torch warns of a schedule that is stepped before its optimizer.
        warnings.simplefilter("ignore", UserWarning)
        schedule = workload.schedule(simulated, steps)
        for _ in range(min(steps, SIMULATED_STEPS)):
            rates.append([float(group["lr"]) for group in simulated.param_groups])
            if schedule is not None:
                schedule.step()
    return list(zip(*rates, strict=True))
