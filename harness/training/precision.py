"""The precision that the axes ask for: autocast, loss scaling, TensorFloat-32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.core.errors import NotApplied
from harness.records.record import LossScale
from harness.spec.axes import Axes

P = ParamSpec("P")
T = TypeVar("T")

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
LOWER = AUTOCAST | {"bf16:fsdp2": torch.bfloat16}
AMPERE = 8  # the compute capability from which on GPUs have TensorFloat-32 and bf16


def apply_matmul_precision(axes: Axes, device: torch.device) -> None:
    """TensorFloat-32 for products and convolutions, or exact fp32. Raises NotApplied where the device has none."""
    wanted = axes.precision == "tf32"
    if wanted and torch.cuda.get_device_capability(device)[0] < AMPERE:
        raise NotApplied("precision: tf32 was asked for; needed: a GPU from Ampere on")
    torch.set_float32_matmul_precision("high" if wanted else "highest")
    torch.backends.cudnn.allow_tf32 = wanted


def autocast(axes: Axes, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward passes."""
    dtype = AUTOCAST.get(axes.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def under_autocast(axes: Axes, device: torch.device, function: Callable[P, T]) -> Callable[P, T]:
    """`function` in that context; as it is where there is none, as an idle context costs time in every step."""
    context = autocast(axes, device)
    return context(function) if isinstance(context, torch.autocast) else function


def computed_in(dtype: torch.dtype, loss: Tensor) -> bool:
    """Whether anything that `loss` was computed from was a tensor of `dtype`.

    Read off the graph of its backward, which disturbs no computation. It ends at a compiled graph, of which it shows
    what goes in, what comes out, and what is kept for backward.
    """
    nodes: set[Any] = set()
    ahead: list[Any] = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in nodes:
            continue
        if any(shown.dtype == dtype for shown in node._input_metadata):
            return True
        nodes.add(node)
        ahead += [further for further, _ in node.next_functions]
    compiled = [node for node in nodes if node.name() == "CompiledFunctionBackward"]
    return any(
        kept is not None and kept.dtype == dtype for node in compiled for kept in node.saved_tensors
    )


class Scaler:
    """Backward and optimizer step; under fp16 with a loss scale, which falls where gradients overflow.

    The first backward raises NotApplied if nothing of its forward was computed in the precision asked for.
    """

    def __init__(self, axes: Axes, device: torch.device) -> None:
        self.unproven = axes.precision if axes.precision in LOWER else None
        self.scaled = axes.precision == "fp16"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.scaled)
        self.skipped = 0

    def backward(self, loss: Tensor) -> None:
        if self.unproven is not None:
            if not computed_in(LOWER[self.unproven], loss):
                raise NotApplied(
                    f"precision: {self.unproven} was asked for and the first step computed nothing in it"
                )
            self.unproven = None
        if self.scaled:
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: Optimizer, max_grad_norm: float | None) -> bool:
        """Whether the optimizer has stepped: under a loss scale it skips gradients that are not finite."""
        if max_grad_norm is not None:
            self.scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(
                [p for group in optimizer.param_groups for p in group["params"]], max_grad_norm
            )
        if not self.scaled:
            optimizer.step()
            return True
        before = self.scaler.get_scale()  # waits for the device, as the scaler's own step does
        self.scaler.step(optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < before
        self.skipped += skipped
        return not skipped

    def account(self) -> LossScale | None:
        """None unless there is a loss scale."""
        if not self.scaled:
            return None
        return LossScale(scale=self.scaler.get_scale(), skipped_steps=self.skipped)

    def state(self) -> dict[str, Any]:
        return {"scaler": self.scaler.state_dict(), "skipped": self.skipped}

    def restore(self, state: dict[str, Any]) -> None:
        self.skipped = state["skipped"]
        if self.scaled:
            self.scaler.load_state_dict(state["scaler"])
