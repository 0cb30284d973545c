"""The precision that the axes ask for, and the proof that it was used.

A model may opt out of autocast, and a device may lack a type. A trial that asked for bf16 and
computed in fp32 must fail rather than leave an fp32 number under another name. So before the first
backward, the graph of the loss is searched for a tensor of the type that was asked for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.core.errors import NotApplied
from harness.measure.flops import Loss
from harness.records.record import LossScale
from harness.sweep.axes import Axes

AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The type in which something must have been computed, by whatever means.
REQUIRED_TYPES = AUTOCAST_TYPES | {"bf16:fsdp2": torch.bfloat16, "fp64": torch.float64}
AMPERE = 8  # the major compute capability from which on GPUs have TensorFloat-32


def apply_matmul_precision(axes: Axes, device: torch.device) -> None:
    """Allow TensorFloat-32 in products and convolutions, or have them in exact fp32.

    Raises NotApplied where the device has no TensorFloat-32.
    """
    use_tf32 = axes.precision == "tf32"
    if use_tf32:
        major, _ = torch.cuda.get_device_capability(device)
        if major < AMPERE:
            raise NotApplied("precision=tf32 is unavailable on this GPU; needed: Ampere or newer")
    torch.set_float32_matmul_precision("high" if use_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = use_tf32


def autocast(axes: Axes, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass."""
    dtype = AUTOCAST_TYPES.get(axes.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def under_autocast(axes: Axes, device: torch.device, loss: Loss) -> Loss:
    """Return `loss` called under autocast, or itself where an idle context would cost time."""
    if axes.precision not in AUTOCAST_TYPES:
        return loss
    wrapped: Loss = torch.autocast(device.type, dtype=AUTOCAST_TYPES[axes.precision])(loss)
    return wrapped


def computed_in(dtype: torch.dtype, loss: Tensor) -> bool:
    """Return whether anything that `loss` was computed from was a tensor of `dtype`.

    This is read off the graph of its backward, which disturbs no computation. A compiled graph is
    one node in it, of which can be seen what goes in, what comes out, and what is saved for
    backward.
    """
    visited: set[Any] = set()
    pending: list[Any] = [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        tensors = list(node._input_metadata)
        if node.name() == "CompiledFunctionBackward":
            tensors += node.saved_tensors
        if any(tensor is not None and tensor.dtype == dtype for tensor in tensors):
            return True
        pending += [next_node for next_node, _ in node.next_functions]
    return False


class Scaler:
    """Computes gradients and steps the optimizer; under fp16 with a loss scale.

    The gradients of fp16 underflow to zero unless the loss is scaled up (Micikevicius et al. 2018,
    arXiv:1710.03740). The scale falls where gradients overflow. All other precisions have the
    exponents of fp32 and need no scale.
    """

    def __init__(self, axes: Axes, device: torch.device) -> None:
        # The precision of which it has yet to be seen that something was computed in it.
        self.unproven = axes.precision if axes.precision in REQUIRED_TYPES else None
        # It hands all on as it is for other precisions.
        self.grad_scaler = torch.amp.GradScaler(device.type, enabled=axes.precision == "fp16")
        self.skipped_steps = 0

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, times the loss scale if there is one.

        The first call raises NotApplied if nothing that the loss was computed from was in the
        precision of the axes.
        """
        if self.unproven is not None:
            if not computed_in(REQUIRED_TYPES[self.unproven], loss):
                raise NotApplied(
                    f"precision={self.unproven} had no effect: nothing in the first step ran in it"
                )
            self.unproven = None
        self.grad_scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: Optimizer, max_grad_norm: float | None) -> bool:
        """Step the optimizer; return whether it has moved parameters.

        The norm of all gradients together is first clipped to `max_grad_norm`, None for no limit.
        Under a loss scale, the step is skipped if gradients are not finite.
        """
        if max_grad_norm is not None:
            # Without the loss scale; this does nothing where there is none.
            self.grad_scaler.unscale_(optimizer)
            parameters = []
            for group in optimizer.param_groups:
                parameters += group["params"]
            torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
        self.grad_scaler.step(optimizer)  # it waits for the device, as to read the scale does
        scale_before = self.grad_scaler.get_scale()
        self.grad_scaler.update()
        is_skipped = self.grad_scaler.get_scale() < scale_before
        self.skipped_steps += is_skipped
        return not is_skipped

    def account(self) -> LossScale | None:
        """Return the loss scale and the steps that were skipped; None without loss scaling."""
        if not self.grad_scaler.is_enabled():
            return None
        return LossScale(scale=self.grad_scaler.get_scale(), skipped_steps=self.skipped_steps)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"scaler": self.grad_scaler.state_dict(), "skipped": self.skipped_steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self.skipped_steps = state["skipped"]
        self.grad_scaler.load_state_dict(state["scaler"])
