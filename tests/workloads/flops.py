"""Counts what a workload says it computes."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from workloads.base import Workload, load_splits


def counted_per_sample(workload: Workload, samples: int) -> float:
    """Floating-point operations of one forward and backward pass, by torch's own counter."""
    train = load_splits(workload).train
    model = workload.build_model()
    # Fused attention computes its scores again in backward; written out as products, each is
    # counted once.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        torch.autograd.backward(workload.loss(model, train.batch(range(samples))))
    return float(counter.get_total_flops()) / samples
