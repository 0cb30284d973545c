"""The strategies: how the ranks of a trial train one model together, and what they share when.

The loop, checkpoints and evaluation call a strategy's methods at the points where strategies differ, and
are the same for all of them otherwise. `harness.sweep.axes.STRATEGIES` lists them. To add a strategy, write
a class that derives from `Strategy`, and enter it in that table: its name is then a value of the axis.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from harness.core.errors import NotApplied
from harness.measure.clock import (
    ShardCollective,
    StepClock,
    all_gather_single,
    mark_gradient_wait,
    reduce_scatter,
)
from harness.sweep.axes import Axes
from harness.training.execution import Compiler
from harness.training.ranks import Ranks, all_reduce_min
from workloads.base import Workload

FIRST_BUCKET_MB = 1.0  # DDP's own cap for its first bucket
MAX_DIGEST = 2**62 - 1
REDUCE_DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(eq=False)
class Strategy:
    """One way to train a model on all ranks of a trial. One object per rank and trial.

    This class itself is the strategy `single`: one process, which communicates with no other. Its methods
    are also right for a strategy whose ranks each have all parameters, and for one that shards them as
    DTensors; derived ones override `prepare`.
    """

    # Whether a rank has a part of some parameters only, so that no rank can compute a loss by
    # itself.
    shards_parameters = False
    # In how many steps the strategy arranges itself, in a way that results depend on. So many forwards
    # and backwards are computed before a checkpoint of later steps is loaded, and their gradients dropped.
    arranging_steps = 0

    axes: Axes
    mesh: Ranks
    clock: StepClock  # gets communication that would otherwise count as forward or backward

    def prepare(self, model: nn.Module, workload: Workload, compiler: Compiler) -> nn.Module:
        """Return the module that training steps call: `model`, wrapped and compiled.

        `model` is on the device already, and is the one that is evaluated and saved. So its
        parameters must be those that are trained; they may be replaced in place. Raises NotApplied for a
        setting that changes nothing.
        """
        return compiler(model)

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-step's forward and backward.

        Only in the last micro-step of an optimizer step do ranks share gradients. This is not
        called for steps without accumulation.
        """
        return nullcontext()

    def before_backward(self, loss: Tensor) -> None:
        """Look at a loss, in the timed region."""

    def note_gradients(self) -> None:
        """Look at which parameters have gradients, before the optimizer's step; in the timed region."""

    def check_effect(self) -> None:
        """Raise NotApplied if the steps so far were not those of one training.

        Every rank must call this, between segments.
        """

    def before_evaluation(self, model: nn.Module) -> None:
        """Make sure that all ranks evaluate the same model.

        Ranks may have buffers of their own, such as running means; all take rank 0's, as DDP does.
        """
        if not dist.is_initialized():
            return
        for buffer in model.buffers():
            dist.broadcast(buffer.detach(), src=0)


class DDP(Strategy):
    """Train with DistributedDataParallel: each rank has the whole model, and gradients are averaged.

    They are sent in buckets, while backward still computes others.
    """

    def prepare(self, model: nn.Module, workload: Workload, compiler: Compiler) -> nn.Module:
        """Return `model` in DDP, which is compiled as a whole.

        torch.compile then cuts the graph at DDP's buckets, so that communication can still overlap
        with backward. Raises NotApplied for a bucket size without effect.
        """
        axes = self.axes
        size = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
        size_mb = size / 2**20
        cap_mb = axes.ddp_bucket_cap_mb
        if cap_mb is not None and size_mb <= min(cap_mb, FIRST_BUCKET_MB):
            raise NotApplied(
                f"ddp.bucket_cap_mb={cap_mb:g} had no effect: the model's gradients have"
                f" {size_mb:.3g} MiB, and are in one bucket with and without it"
            )
        # DDP rebuilds its buckets in the order in which gradients became ready: in the first backward,
        # or in the second with a static graph, whose first backward only counts how often each is used.
        # Where in a bucket a gradient is decides in which order the ranks are summed up, and so, from
        # three ranks on, the last bits of the sum.
        if self.mesh.world_size > 2:
            self.arranging_steps = 2 if axes.ddp_static_graph else 1
        self._replica = DistributedDataParallel(model, **axes.torch_parameters("ddp"))
        # Shares a bucket of gradients, in place of DDP itself.
        hook: Callable[..., Any] | None = None
        if axes.reduction == "tree":
            hook = all_reduce_as_tree
        if axes.comm_hook != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            hook = getattr(default_hooks, f"{axes.comm_hook}_compress_hook")
        if hook is not None:
            # A lambda, because DDP refuses hooks whose annotations are text, as they all are here, and
            # torch's own hook for bf16 by its name where there is no NCCL, though gloo can sum bf16.
            self._replica.register_comm_hook(
                dist.group.WORLD, lambda group, bucket: hook(group, bucket)
            )
        return compiler(self._replica)

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Return DDP's `no_sync()` for all micro-steps but the last."""
        return nullcontext() if is_last else self._replica.no_sync()

    def before_backward(self, loss: Tensor) -> None:
        """Have the wait for the last buckets counted as communication.

        What overlaps with backward costs nothing and counts as backward.
        """
        mark_gradient_wait(loss, self.clock)


class FSDP2(Strategy):
    """Train with `fully_shard`: each rank has a shard of every parameter.

    Parameters of a layer are gathered before its forward and its backward, and freed afterwards; gradients
    are reduced to their shards. Under `hsdp` that happens within groups of `shard_size` ranks, each of
    which has the whole model, and the groups average their gradients.
    """

    shards_parameters = True
    _gradients = 0  # a digest of which parameters have had a gradient in which step

    def prepare(self, model: nn.Module, workload: Workload, compiler: Compiler) -> nn.Module:
        """Shard each of the workload's layers, then the rest of `model`, in place; return it.

        It is compiled if the axes say so.
        """
        # Compiling only wraps the model. Its graph is traced at the first step, when it is sharded.
        training_module = compiler(model)
        self._sharded: list[Any] = [*workload.layers(model), model]
        self._shard_all()
        self._parameters = list(model.parameters())  # the shards
        # On GPUs, collectives overlap with computing, so the time in them is not lost.
        timed_by = self.clock if self.mesh.device.type == "cpu" else None
        is_tree = self.axes.reduction == "tree"
        collective: Callable[..., Any] = reduce_scatter_as_tree if is_tree else reduce_scatter
        gather = ShardCollective(all_gather_single, timed_by)
        reduce = ShardCollective(collective, timed_by)
        for module in self._sharded:
            if timed_by is not None:
                module.set_custom_all_gather(gather)
            if timed_by is not None or is_tree:
                module.set_custom_reduce_scatter(reduce)
            if is_tree and self.axes.precision == "fp64":
                # The collective divides fp32 and bf16, if it does, and FSDP2 itself other types.
                module.set_gradient_divide_factor(1.0)
        return training_module

    def _shard_all(self) -> None:
        """Have torch shard the modules, over a mesh with the names that its own documents give it."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import (
            CPUOffloadPolicy,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
        )

        axes = self.axes
        ranks = self.mesh.world_size
        sizes: tuple[int, ...] = (ranks,)
        names: tuple[str, ...] = ("dp_shard",)
        if axes.shard_size is not None:
            sizes = (ranks // axes.shard_size, axes.shard_size)
            names = ("dp_replicate", "dp_shard")
        mesh = init_device_mesh(self.mesh.device.type, sizes, mesh_dim_names=names)
        precision = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if axes.precision == "bf16:fsdp2" else None,
            reduce_dtype=REDUCE_DTYPES[axes.fsdp_reduce_dtype],
        )
        offload = CPUOffloadPolicy() if axes.fsdp_cpu_offload else OffloadPolicy()
        for module in self._sharded:
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=axes.fsdp_reshard_after_forward,
                mp_policy=precision,
                offload_policy=offload,
            )

    def note_gradients(self) -> None:
        """Add to the digest which parameters this step has left a gradient in."""
        pattern = tuple(parameter.grad is None for parameter in self._parameters)
        self._gradients = hash((self._gradients, pattern)) & MAX_DIGEST

    def check_effect(self) -> None:
        """Raise NotApplied if ranks have trained different parameters.

        FSDP2 adds up what has a gradient at each rank, whichever parameter it is of.
        """
        # Of opposite signs, so that the smallest are opposite too if all are equal.
        smallest, opposite = all_reduce_min(self._gradients, -self._gradients)
        if smallest != -opposite:
            raise NotApplied(
                f"strategy={self.axes.strategy} is unavailable: in the same step, ranks had gradients"
                " of different parameters, which it adds up; allowed: ddp with"
                " ddp.find_unused_parameters, or a loss that uses the same parameters at all ranks"
            )

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Have the coming backward reduce gradients only in the last micro-step."""
        self._sharded[-1].set_requires_gradient_sync(is_last)
        return nullcontext()


def sum_rows(rows: Tensor) -> Tensor:
    """Return the sum of the rows as a binary tree, shape (columns,).

    `rows` has the shape (rows, columns); the number of rows must be a power of two.
    """
    while len(rows) > 1:
        rows = rows[0::2] + rows[1::2]
    return rows[0]


def reduce_scatter_as_tree(
    output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **_: object
) -> None:
    """Fill `output_tensor`, shape (share,), with this rank's share of the sum of all ranks, for FSDP2.

    `input_tensor` has the shape (ranks * share,); its r-th share is for rank r. The sum is not
    divided, whatever FSDP2 asks for: the training step does that.
    """
    received = torch.empty_like(input_tensor)
    dist.all_to_all_single(received, input_tensor, group=group)
    output_tensor.copy_(sum_rows(received.view(group.size(), -1)))


def all_reduce_as_tree(group: dist.ProcessGroup, bucket: Any) -> Future[Tensor]:
    """Return a future that is done, with the sum of all ranks' buckets of DDP.

    Each rank gathers those of all ranks, and sums them up itself.
    """
    flat = bucket.buffer()
    gathered = flat.new_empty(group.size() * len(flat))
    all_gather_single(gathered, flat, group=group)
    flat.copy_(sum_rows(gathered.view(group.size(), -1)))
    devices = [flat.device] if flat.is_cuda else None
    future: Future[Tensor] = Future(devices=devices)
    future.set_result(flat)
    return future
