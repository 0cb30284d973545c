"""Sums of gradients in one fixed order, whichever ranks compute them: the axis `reduction: tree`.

A sum of floats depends on its order, and the order in which a backend sums up the ranks' gradients
depends on how many ranks there are, on DDP's buckets and on FSDP2's shards. Here the order is fixed
instead. A global batch is cut into micro-batches, as many as `world_size` times `grad_accum_steps`,
and their gradients are the leaves of a binary tree:

    ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))

Rank r of n computes the micro-batches r, n + r, 2n + r, ... So the ranks' gradients of one
micro-step are the leaves of a subtree, which the ranks sum up together. Each rank then sums up the
subtrees. Every element of a gradient is summed up in the same order, whichever bucket or
shard it is in, so one process, two ranks and four compute the same bits.

`step.TreeStep` is the training step that does so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.measure.communication import all_gather_single


@dataclass
class Subtree:
    """The sum of the gradients of 2^height micro-steps that follow each other."""

    height: int
    gradients: list[Tensor | None]  # of each parameter; None for one without a gradient


@dataclass
class GradientTree:
    """Sums up the gradients of micro-steps as a binary tree while they arrive.

    It holds no more than one sum of each height, as a binary counter has one digit of each weight.
    """

    subtrees: list[Subtree] = field(default_factory=list)  # from the highest to the lowest

    def add(self, gradients: list[Tensor | None]) -> None:
        """Add the gradients of the next micro-step; they belong to the tree from now on."""
        added = Subtree(0, gradients)
        while self.subtrees and self.subtrees[-1].height == added.height:
            earlier = self.subtrees.pop()
            added = Subtree(added.height + 1, _add(earlier.gradients, added.gradients))
        self.subtrees.append(added)

    def total(self) -> list[Tensor | None]:
        """Return the sum over all micro-steps, whose number must be a power of two."""
        (whole,) = self.subtrees
        return whole.gradients


def _add(earlier: list[Tensor | None], later: list[Tensor | None]) -> list[Tensor | None]:
    """Add the later gradients to the earlier ones in place, and return those."""
    sums: list[Tensor | None] = []
    for first_gradient, second_gradient in zip(earlier, later, strict=True):
        sums.append(second_gradient if first_gradient is None else first_gradient)
        if first_gradient is not None and second_gradient is not None:
            local_part(first_gradient).add_(local_part(second_gradient))
    return sums


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, and any other tensor as it is; they share memory."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def sum_rows(rows: Tensor) -> Tensor:
    """Return the sum of the rows as a binary tree, shape (columns,).

    `rows` has the shape (rows, columns); the number of rows must be a power of two.
    """
    while len(rows) > 1:
        rows = rows[0::2] + rows[1::2]
    return rows[0]


class TreeCollective:
    """Sums up the gradients of all ranks as a tree, as DDP and FSDP2 want it."""

    def __init__(self) -> None:
        self.calls = 0  # buckets or groups of parameters that were summed up

    def reduce_scatter(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **_: object
    ) -> None:
        """Fill `output_tensor`, shape (share,), with this rank's share of the sum of all ranks.

        `input_tensor` has the shape (ranks * share,); its r-th share is for rank r. The sum is not
        divided, whatever FSDP2 asks for: the training step does that.
        """
        self.calls += 1
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        output_tensor.copy_(sum_rows(received.view(group.size(), -1)))

    def all_reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Return a future that is done, with the sum of all ranks' buckets of DDP.

        Each rank sums up its share of a bucket, and all ranks gather the shares.
        """
        flat, group = bucket.buffer(), dist.group.WORLD
        assert group is not None, "DDP has a process group"
        share = -(-len(flat) // group.size())
        padded = flat.new_zeros(group.size() * share)
        padded[: len(flat)] = flat
        own_share = flat.new_empty(share)
        self.reduce_scatter(own_share, padded, group)
        all_gather_single(padded, own_share, group=group)
        flat.copy_(padded[: len(flat)])
        devices = [flat.device] if flat.is_cuda else None
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        future.set_result(flat)
        return future
