"""Computes a forward and a backward whose results are dropped, for what counts their operators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import numpy as np
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
    module: nn.Module, buffers: Mapping[tuple[str, str], tuple[torch.Tensor, torch.Tensor]]
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
