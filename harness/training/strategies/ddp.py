"""Strategy `ddp`: each rank has the whole model, and DistributedDataParallel averages gradients.

Gradients are sent in buckets, while backward still computes others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.core.errors import NotApplied
from harness.measure.clock import StepClock
from harness.measure.communication import mark_gradient_wait
from harness.training.execution import Compiler
from harness.training.strategies.base import Strategy
from harness.training.tree_reduction import TreeCollective
from workloads.base import Workload

FIRST_BUCKET_MB = 1.0  # DDP's own cap for its first bucket


class DDP(Strategy):
    """Train with torch.nn.parallel.DistributedDataParallel."""

    _replica: DistributedDataParallel  # set by `prepare`
    _hook_calls = 0  # of `comm_hook`

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Return `model` in DDP, which is compiled as a whole.

        torch.compile then cuts the graph at DDP's buckets, so that communication can still overlap
        with backward. Raises NotApplied for a bucket size without effect.
        """
        axes, device = self.axes, self.mesh.device
        self._check_bucket_cap(model)
        # DDP rebuilds its buckets in the order in which gradients became ready: in the first backward,
        # or in the second with a static graph, whose first backward only counts how often each is used.
        # Where in a bucket a gradient is decides in which order the ranks are summed up, and so, from
        # three ranks on, the last bits of the sum.
        if self.mesh.size > 2:
            self.arranging_steps = 2 if axes.ddp.static_graph else 1
        self._replica = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            **axes.ddp.changed(),
        )
        if axes.reduction == "tree":
            self.tree = TreeCollective()
            self._send_by(self.tree.all_reduce)
        if axes.comm_hook != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            compress = getattr(default_hooks, f"{axes.comm_hook}_compress_hook")
            self._send_by(partial(self._counted, compress))
        return compiler(self._replica)

    def _send_by(self, hook: Callable[[Any], torch.futures.Future[Tensor]]) -> None:
        """Have DDP share its buckets of gradients by calling `hook`.

        A lambda, because DDP refuses hooks whose annotations are text, as they all are here, and
        torch's own hook for bf16 by its name where there is no NCCL, though gloo can sum bf16.
        """
        self._replica.register_comm_hook(None, lambda _, bucket: hook(bucket))

    def _counted(self, compress: Callable[..., Any], bucket: Any) -> Any:
        """Send a bucket by one of torch's hooks."""
        self._hook_calls += 1
        return compress(dist.group.WORLD, bucket)

    def check_effect(self) -> None:
        """Raise NotApplied if a communication hook did nothing."""
        super().check_effect()
        if self.axes.comm_hook != "none" and not self._hook_calls:
            raise NotApplied(
                f"comm_hook={self.axes.comm_hook} had no effect: DDP has not called it"
            )

    def _check_bucket_cap(self, model: nn.Module) -> None:
        """Raise NotApplied if a model is too small for its bucket size to change anything."""
        cap_mb = self.axes.ddp.bucket_cap_mb
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        size_mb = sum(parameter.nbytes for parameter in trained) / 2**20
        if cap_mb is not None and size_mb <= min(cap_mb, FIRST_BUCKET_MB):
            raise NotApplied(
                f"ddp.bucket_cap_mb={cap_mb:g} had no effect: the model's gradients have"
                f" {size_mb:.3g} MiB, and are in one bucket with and without it"
            )

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Return DDP's `no_sync()` for all micro-steps but the last."""
        return nullcontext() if is_last else self._replica.no_sync()

    def loss_hook(self, clock: StepClock) -> Callable[[Tensor], None]:
        """Return a hook that has `clock` count the wait for the last buckets as communication.

        What overlaps with backward costs nothing and counts as backward.
        """
        return lambda loss: mark_gradient_wait(loss, clock)
