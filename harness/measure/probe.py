"""Computes a forward and a backward whose results are dropped, for what counts their operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from workloads.base import Batch

# Returns the mean loss of a batch, as a workload's `loss` does, under autocast if it is trained so.
Loss = Callable[[nn.Module, Batch], torch.Tensor]


def probe_gradients(
    loss_of: Loss,
    module: nn.Module,
    batch: Batch,
    counting: AbstractContextManager[object],
) -> bool:
    """Compute the gradients of a batch in the context `counting`; return whether memory sufficed.

    Modules have the modes that they have. Parameters, gradients, buffers and the state of the random
    generators are as before afterwards, and no hook of a wrapper runs.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        with undisturbed(module, batch[0].device), counting:
            loss = loss_of(module, batch)
            # Unlike `backward`, this leaves `parameter.grad` as it is.
            torch.autograd.grad(loss, parameters, allow_unused=True)
    except torch.OutOfMemoryError:
        return False
    return True


@contextmanager
def undisturbed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Have a block leave the buffers of a module and the state of torch's generators as they are."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    generators = [device] if device.type == "cuda" else []  # besides the CPU's
    with torch.random.fork_rng(generators):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, original in buffers:
                    buffer.copy_(original)
