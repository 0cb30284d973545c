"""The axes applied to a model: strategy, execution, precision; and the proof that they took effect."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.cell import Axes
from harness.errors import NotApplied
from workloads.base import Workload


@dataclass(frozen=True)
class Prepared:
    """A model as it is trained, and the same parameters without wrapper for evaluating and saving."""

    training: nn.Module
    module: nn.Module


def prepare(workload: Workload, model: nn.Module, axes: Axes, device: torch.device) -> Prepared:
    """`model` on the device, wrapped and compiled as the axes say. FSDP2 replaces its parameters in place."""
    model = model.to(device)
    training: nn.Module = model
    if axes.strategy == "ddp":
        training = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    elif axes.strategy == "fsdp2":
        _shard(workload, model, axes.world_size, device)
    if axes.execution == "compile":
        training = cast(nn.Module, torch.compile(training))
    return Prepared(training, model)


def _shard(workload: Workload, model: nn.Module, world_size: int, device: torch.device) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    for block in workload.blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def autocast(axes: Axes, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward passes."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if axes.precision == "bf16" else nullcontext()


def compiled_graphs(axes: Axes) -> int | None:
    """How many graphs were compiled so far, None for eager; raises NotApplied if compile gave none."""
    if axes.execution != "compile":
        return None
    from torch._dynamo.utils import counters

    graphs = int(counters["stats"]["unique_graphs"])
    if not graphs:
        raise NotApplied(
            "execution: compile was asked for and compiled no graph; a model whose class has its own forward"
            " (not a bare nn.Sequential) does compile under DDP and FSDP2"
        )
    return graphs
