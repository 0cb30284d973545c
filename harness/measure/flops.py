"""Counts the floating-point operations of training with torch's own counter; nothing is timed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from workloads.base import Batch

# Returns the mean loss of a batch, as a workload's `loss` does, under autocast if it is trained so.
Loss = Callable[[nn.Module, Batch], Tensor]
Shape = Sequence[int]


def flops_per_sample(loss_of: Loss, module: nn.Module, batch: Batch) -> float | None:
    """Return the operations of one forward and backward, per sample of `batch`.

    Matrix products, convolutions and attentions are counted, a multiply-add as 2; everything else is
    small next to them. Gradients of parameters stay as they are. Returns None if nothing of that
    kind was computed, and raises whatever the loss raises.
    """
    counter = FlopCounterMode(
        display=False,
        custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward},
    )
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with warnings.catch_warnings(), ExitStack() as stack:
        # Torch warns of another setting, which it sets along.
        warnings.simplefilter("ignore", UserWarning)
        # Fused attention computes its scores again in backward; written out as products, each is
        # counted once.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # An LSTM of these libraries is one operation, which the counter does not know.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(counter)
        loss = loss_of(module, batch)
        # Unlike `backward`, this leaves `parameter.grad` as it is.
        torch.autograd.grad(loss, parameters, allow_unused=True)
    return counter.get_total_flops() / len(batch[0]) or None


def _convolution_backward(gradient: Shape, x: Shape, w: Shape, *options: Any, **_: Any) -> int:
    """Return the operations of a convolution's backward, whose own formula in torch ignores groups.

    Given are the shapes of the output, of which `gradient` is one, the input and the weight. The gradients
    of input and of weight each take as many multiply-adds as the forward: one for each number of the
    kernel, which is (out, in / groups, ...), at each place of the output. Of a transposed convolution it is
    each place of the input.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, output_mask = options
    places = math.prod((x if transposed else gradient)[2:])
    multiply_adds = x[0] * places * math.prod(w)
    return int(2 * multiply_adds * sum(output_mask[:2]))
