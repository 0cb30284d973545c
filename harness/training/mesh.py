"""How the ranks of a trial are arranged, and all that follows from it.

Today every rank is data-parallel, and this module is the only one that says so. Everybody else asks
the mesh: who loads which share of a batch, who evaluates which samples, who must agree before
training goes on. A dimension in which ranks work on the same samples, such as tensor or pipeline
parallelism, would make `dp_size` smaller than the world and leave the mesh's callers as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from harness.spec.axes import Axes
from harness.training import ranks as collectives
from harness.training.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class ParallelMesh:
    """The arrangement of a trial's ranks: one dimension, `dp`, in which all are data-parallel."""

    ranks: Ranks  # this rank among all of the world
    device: torch.device  # this rank's own

    @property
    def dp_rank(self) -> int:
        """Return this rank's position among the data-parallel ranks, from 0."""
        return self.ranks.rank

    @property
    def dp_size(self) -> int:
        """Return the number of data-parallel ranks, into whose shares a global batch is cut."""
        return self.ranks.world_size

    @property
    def dp_group(self) -> dist.ProcessGroup | None:
        """Return the process group over which gradients are averaged; None without one."""
        return dist.group.WORLD if dist.is_initialized() else None

    def dp_device_mesh(self) -> DeviceMesh:
        """Return the same ranks as torch's own mesh, for strategies that shard over it."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device.type, (self.dp_size,))

    # Shares of a global batch and of the test set

    def rank_batch_size(self, axes: Axes) -> int:
        """Return the samples of an optimizer step at one rank.

        Cells whose batch size can't be shared out evenly are refused before anything starts.
        """
        return axes.batch_size // self.dp_size

    def micro_batch_size(self, axes: Axes) -> int:
        """Return the samples of one forward and backward at one rank."""
        return self.rank_batch_size(axes) // axes.grad_accum_steps

    def test_share(self, samples: int) -> list[int]:
        """Return the indices of the test samples that this rank evaluates.

        Sample i belongs to rank i modulo `dp_size`.
        """
        return list(range(self.dp_rank, samples, self.dp_size))

    def largest_test_share(self, samples: int) -> int:
        """Return how many test samples the rank with the most has: the quotient, rounded up."""
        return -(-samples // self.dp_size)

    # Communication. Without a process group, each is what it comes to for a single rank.

    def all_reduce_min(self, *values: int) -> list[int]:
        """Return the smallest of all ranks' numbers, position by position, at every rank."""
        return collectives.all_reduce_min(self.device, *values)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value at rank 0, by rank; an empty list at the other ranks.

        Values travel as bytes, so this is for what is rare and small. They are made of plain Python
        values and tensors.
        """
        return collectives.gather(value, self.ranks)

    def broadcast_from_rank_0(self, value: Any) -> Any:
        """Return rank 0's value at every rank."""
        return collectives.broadcast_from_rank_0(value)

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Overwrite every rank's buffers with rank 0's, as DDP does before a forward."""
        collectives.broadcast_buffers(model)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        collectives.barrier()
