"""Counts the floating-point operations of training with torch's own counter; nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from workloads.base import Batch, Workload


def flops_per_sample(
    workload: Workload,
    module: nn.Module,
    batch: Batch,
    forward: Callable[[], AbstractContextManager[object]],
) -> float | None:
    """Return the operations of one forward and backward, per sample of `batch`.

    Matrix products, convolutions and attentions are counted, a multiply-add as 2; everything else is
    small next to them. Forward runs in the context `forward()`, such as autocast. Parameters,
    gradients, buffers and the state of the random generators are as before afterwards. Returns None
    if nothing of that kind was computed, and if memory is insufficient.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    device = batch[0].device
    generators = [device] if device.type == "cuda" else []  # besides the CPU's
    counter = FlopCounterMode(display=False)
    try:
        # Fused attention computes its scores again in backward; written out as products, each is
        # counted once.
        with torch.random.fork_rng(generators), sdpa_kernel(SDPBackend.MATH), counter:
            with forward():
                loss = workload.loss(module, batch)
            # Unlike `backward`, this leaves `parameter.grad` as it is.
            torch.autograd.grad(loss, parameters, allow_unused=True)
    except torch.OutOfMemoryError:
        return None
    finally:
        with torch.no_grad():
            for buffer, original in buffers:
                buffer.copy_(original)
    return counter.get_total_flops() / len(batch[0]) or None
