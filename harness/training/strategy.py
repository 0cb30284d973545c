"""The axes applied to a model: strategy, memory format, activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from harness.core.errors import NotApplied
from harness.measure.clock import StepClock
from harness.measure.communication import mark_gradient_wait, time_collectives
from harness.spec.axes import Axes
from harness.training.execution import Compiler
from workloads.base import Batch, Workload

RESHARD = {"auto": None, "always": True, "never": False}
DEFAULT_BUCKET = 25 * 2**20  # bytes: DDP's own cap, for every bucket but the first


@dataclass(frozen=True)
class Prepared:
    """A model as it is trained, and the same parameters without wrapper for evaluating and saving."""

    training: nn.Module
    module: nn.Module
    sync: Callable[[bool], AbstractContextManager[object]] = field(
        default=lambda last: nullcontext()
    )
    watch: Callable[[Tensor], None] | None = None


def prepare(
    workload: Workload,
    model: nn.Module,
    axes: Axes,
    device: torch.device,
    compiler: Compiler,
    clock: StepClock,
) -> Prepared:
    """`model` on the device, wrapped and compiled as the axes say. FSDP2 replaces its parameters in place.

    `sync(last)` is the context of a micro-step's forward and backward: only in the last do ranks share gradients.
    `watch(loss)` before a backward has `clock` tell communication apart, as FSDP2 does on the CPU by itself.
    """
    model = model.to(device)
    if axes.channels_last:
        if not any(parameter.ndim == 4 for parameter in model.parameters()):
            raise NotApplied(
                "channels_last was asked for and the model has no convolution of images"
            )
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if axes.activation_checkpointing:
        for block in workload.layers(model) or [model]:
            _checkpoint_activations(block)
    if axes.strategy == "ddp":
        wrapped = _replicate(model, axes, device)
        sync = lambda last: nullcontext() if last else wrapped.no_sync()  # noqa: E731
        return Prepared(
            compiler(wrapped), model, sync, lambda loss: mark_gradient_wait(loss, clock)
        )
    if axes.strategy == "fsdp2":
        sharded = Prepared(compiler(model), model, _shard(workload, model, axes, device))
        if device.type == "cpu":
            time_collectives(model, clock)
        return sharded
    return Prepared(compiler(model), model)


def _checkpoint_activations(block: nn.Module) -> None:
    """Patched in place, so that the names of parameters and the structure of the model stay."""
    forward = block.forward

    def recomputed(*arguments: Any, **named: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False, **named)

    block.forward = recomputed


def _replicate(model: nn.Module, axes: Axes, device: torch.device) -> DistributedDataParallel:
    if axes.bucket_cap_mb is not None and buckets(model, axes.bucket_cap_mb) == (
        own := buckets(model, None)
    ):
        count = f"{len(own)} bucket{'s' if len(own) > 1 else ''}"
        raise NotApplied(
            f"bucket_cap_mb: {axes.bucket_cap_mb:g} was asked for and the gradients are in the same {count} as without"
        )
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=axes.bucket_cap_mb,
        gradient_as_bucket_view=axes.gradient_as_bucket_view,
        static_graph=axes.static_graph,
    )


def buckets(model: nn.Module, cap: float | None) -> list[list[int]]:
    """The buckets that DDP has from its second step on, as numbers of parameters counted from the model's last.

    `cap` in MiB; None is DDP's own, whose first bucket is smaller. That gradients are ready in the order opposite to
    that of the parameters is what DDP assumes too; it then goes by the order seen in the first step.
    """
    ddp: Any = dist  # what DDP itself uses of it has no types
    gradients = [
        parameter for parameter in reversed(list(model.parameters())) if parameter.requires_grad
    ]
    limits = (
        [ddp._DEFAULT_FIRST_BUCKET_BYTES, DEFAULT_BUCKET] if cap is None else [int(cap * 2**20)]
    )
    assigned: list[list[int]] = ddp._compute_bucket_assignment_by_size(gradients, limits)[0]
    return assigned


def _shard(
    workload: Workload, model: nn.Module, axes: Axes, device: torch.device
) -> Callable[[bool], AbstractContextManager[object]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    lower = torch.bfloat16 if axes.precision == "bf16:fsdp2" else None
    settings: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (axes.world_size,)),
        "reshard_after_forward": RESHARD[axes.reshard_after_forward],
        "mp_policy": MixedPrecisionPolicy(param_dtype=lower),
    }
    for block in workload.layers(model) if axes.fsdp_wrap == "layers" else ():
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    assert isinstance(model, FSDPModule)
    sharded = model

    def sync(last: bool) -> AbstractContextManager[object]:
        sharded.set_requires_gradient_sync(last)
        return nullcontext()

    return sync


def arrange(batch: Batch, axes: Axes) -> Batch:
    """The batch in the memory order of the model."""
    if not axes.channels_last:
        return batch
    return tuple(
        t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in batch
    )
