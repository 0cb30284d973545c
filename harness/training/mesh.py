"""How the ranks of a trial are arranged, and all that follows from it.

Ranks are data-parallel, tensor-parallel or both, or a pipeline. The ranks of a tensor-parallel group,
and all ranks of a pipeline, work on the same samples, and so have the same share of a batch, the same
random numbers and the same loss; `dp_size` is the number of such groups. Their numbers follow each
other, so that a group is on one node where it can be. This module is the only one that says so.
Everybody else asks the mesh: who loads which share of a batch, who evaluates which samples, who must
agree before training continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from harness.spec.axes import Axes
from harness.training import ranks as collectives
from harness.training.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The dimensions of torch's mesh, as torch's own documents call them.
REPLICATE, SHARD, TENSOR = "dp_replicate", "dp_shard", "tp"


@dataclass(frozen=True)
class ParallelMesh:
    """The arrangement of a trial's ranks, as its axes ask for it."""

    ranks: Ranks  # this rank among all of the world
    device: torch.device  # this rank's own
    tp_size: int = 1  # ranks that work on the same samples
    shard_size: int | None = None  # ranks that hold one copy of the model; None: all of them

    @staticmethod
    def from_axes(axes: Axes, ranks: Ranks, device: torch.device) -> ParallelMesh:
        """Return the arrangement that the axes ask for."""
        return ParallelMesh(ranks, device, axes.ranks_per_share, axes.shard_size)

    @property
    def dp_rank(self) -> int:
        """Return the number of this rank's share of a global batch, from 0."""
        return self.ranks.rank // self.tp_size

    @property
    def dp_size(self) -> int:
        """Return the number of shares that a global batch is cut into."""
        return self.ranks.world_size // self.tp_size

    @property
    def reports_share(self) -> bool:
        """Return whether this rank is the first of those with its share, and reports for them."""
        return self.ranks.rank % self.tp_size == 0

    @property
    def dp_group(self) -> dist.ProcessGroup | None:
        """Return the process group of all ranks, over which DDP averages; None without one."""
        return dist.group.WORLD if dist.is_initialized() else None

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """The same ranks as torch's own mesh; every rank must ask for it.

        Its dimensions are those of `fully_shard` for plain and for hybrid sharding, followed by the
        tensor-parallel one if there is one.
        """
        from torch.distributed.device_mesh import init_device_mesh

        shape, names = [self.dp_size], [SHARD]
        if self.shard_size is not None:
            shape = [self.dp_size // self.shard_size, self.shard_size]
            names = [REPLICATE, SHARD]
        if self.tp_size > 1:
            shape.append(self.tp_size)
            names.append(TENSOR)
        return init_device_mesh(self.device.type, tuple(shape), mesh_dim_names=tuple(names))

    def dp_device_mesh(self) -> DeviceMesh:
        """Return torch's mesh of the data-parallel dimensions, for strategies that shard over it."""
        if self.tp_size == 1:
            return self.device_mesh
        if self.shard_size is None:
            return self.device_mesh[SHARD]
        return self.device_mesh[REPLICATE, SHARD]

    def tp_device_mesh(self) -> DeviceMesh:
        """Return torch's mesh of the ranks that work on the same samples as this one."""
        return self.device_mesh[TENSOR]

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

        Sample i belongs to share i modulo `dp_size`.
        """
        return list(range(self.dp_rank, samples, self.dp_size))

    def largest_test_share(self, samples: int) -> int:
        """Return how many test samples the largest share has: the quotient, rounded up."""
        return -(-samples // self.dp_size)

    # Communication. Without a process group, each returns its result for a single rank.

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

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        collectives.barrier()
