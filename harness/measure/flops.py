"""Counts the floating-point operations of training with torch's own counter; nothing is timed."""

from __future__ import annotations

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from harness.measure.probe import Loss, probe_gradients
from workloads.base import Batch


def flops_per_sample(loss: Loss, module: nn.Module, batch: Batch) -> float | None:
    """Return the operations of one forward and backward, per sample of `batch`.

    Matrix products, convolutions and attentions are counted, a multiply-add as 2; everything else is
    small next to them. The training is left as it was (`probe_gradients`). Returns None if nothing of
    that kind was computed, and if memory is insufficient.
    """
    counter = FlopCounterMode(display=False)
    # Fused attention computes its scores again in backward; written out as products, each is
    # counted once.
    with sdpa_kernel(SDPBackend.MATH):
        if not probe_gradients(loss, module, batch, counter):
            return None
    return counter.get_total_flops() / len(batch[0]) or None
