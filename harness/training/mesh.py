"""How the ranks of a trial are arranged, and all that follows from it.

Each rank has its share of every batch; with a `shard_size`, groups of ranks hold one copy of the
model each. Everybody asks the mesh who evaluates which samples, and who must agree before training
continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from harness.spec.axes import Axes
from harness.training import ranks as collectives
from harness.training.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The dimensions of torch's mesh, as torch's own documents call them.
REPLICATE, SHARD = "dp_replicate", "dp_shard"


@dataclass(frozen=True)
class ParallelMesh:
    """The arrangement of a trial's ranks, as its axes ask for it."""

    ranks: Ranks  # this rank among all of the world
    device: torch.device  # this rank's own
    shard_size: int | None = None  # ranks that hold one copy of the model; None: all of them

    @staticmethod
    def from_axes(axes: Axes, ranks: Ranks, device: torch.device) -> ParallelMesh:
        """Return the arrangement that the axes ask for."""
        return ParallelMesh(ranks, device, axes.shard_size)

    @property
    def rank(self) -> int:
        """Return the number of this rank's share of a global batch, from 0."""
        return self.ranks.rank

    @property
    def size(self) -> int:
        """Return the number of shares that a global batch is cut into."""
        return self.ranks.world_size

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """The same ranks as torch's own mesh; every rank must ask for it.

        Its dimensions are those of `fully_shard` for plain and for hybrid sharding.
        """
        from torch.distributed.device_mesh import init_device_mesh

        shape, names = [self.size], [SHARD]
        if self.shard_size is not None:
            shape = [self.size // self.shard_size, self.shard_size]
            names = [REPLICATE, SHARD]
        return init_device_mesh(self.device.type, tuple(shape), mesh_dim_names=tuple(names))

    # Shares of a global batch and of the test set

    def rank_batch_size(self, axes: Axes) -> int:
        """Return the samples of an optimizer step at one rank.

        Cells whose batch size can't be shared out evenly are refused before anything starts.
        """
        return axes.batch_size // self.size

    def micro_batch_size(self, axes: Axes) -> int:
        """Return the samples of one forward and backward at one rank."""
        return self.rank_batch_size(axes) // axes.grad_accum_steps

    def test_share(self, samples: int) -> list[int]:
        """Return the indices of the test samples that this rank evaluates.

        Sample i belongs to share i modulo `size`.
        """
        return list(range(self.rank, samples, self.size))

    def largest_test_share(self, samples: int) -> int:
        """Return how many test samples the largest share has: the quotient, rounded up."""
        return -(-samples // self.size)

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
