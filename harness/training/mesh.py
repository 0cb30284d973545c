"""How the ranks of a trial are arranged.

Each rank has its share of every batch; with a `shard_size`, groups of ranks hold one copy of the
model each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from harness.training.ranks import Ranks, all_reduce_min

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class ParallelMesh:
    """The arrangement of a trial's ranks, as its axes ask for it."""

    ranks: Ranks  # this rank among all of the world
    device: torch.device  # this rank's own
    shard_size: int | None = None  # ranks that hold one copy of the model; None: all of them

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

        Its dimensions are those of `fully_shard` for plain and for hybrid sharding, by the names that
        torch's own documents give them.
        """
        from torch.distributed.device_mesh import init_device_mesh

        shards = self.shard_size
        if shards is None:
            return init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("dp_shard",))
        shape, names = (self.size // shards, shards), ("dp_replicate", "dp_shard")
        return init_device_mesh(self.device.type, shape, mesh_dim_names=names)

    def all_reduce_min(self, *values: int) -> list[int]:
        """Return the smallest of all ranks' numbers, position by position, at every rank."""
        return all_reduce_min(self.device, *values)
