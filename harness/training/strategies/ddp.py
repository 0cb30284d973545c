"""Strategy `ddp`: each rank has the whole model, and DistributedDataParallel averages gradients.

Gradients are sent in buckets, while backward still computes others. A communication hook, the axis
`comm_hook`, gets each bucket and shares it among the ranks in another way. Those of torch that send
fewer bits are simple functions; PowerSGD also has a state, without which a trial could not resume to
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.core.errors import NotApplied
from harness.core.text import counted
from harness.measure.clock import StepClock
from harness.measure.communication import mark_gradient_wait
from harness.records.record import Collective
from harness.spec.axes import Axes
from harness.training.execution import Compiler
from harness.training.mesh import ParallelMesh
from harness.training.strategies.base import Strategy
from harness.training.tree_reduction import TreeAllReduce
from workloads.base import Workload

# DDP's own caps: for the first bucket, and for all others.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
# PowerSGD begins with this step, counted from 0: the earliest at which torch allows it, because DDP
# rebuilds its buckets after the first. Until then, gradients are sent as they are.
FIRST_COMPRESSED_STEP = 2
# The fields of torch's PowerSGDState that training changes, apart from its random numbers.
TENSORS_BY_BUCKET = ("error_dict", "p_memory_dict", "q_memory_dict")
COUNTS = ("iter", "total_numel_before_compression", "total_numel_after_compression")


class DDP(Strategy):
    """Train with torch.nn.parallel.DistributedDataParallel."""

    def __init__(self, axes: Axes, mesh: ParallelMesh) -> None:
        super().__init__(axes, mesh)
        self._replica: DistributedDataParallel | None = None  # set by `prepare`
        self._hook: CommHook | None = None  # that gradients are sent by; None: as they are
        self._frozen: dict[str, nn.Parameter] = {}  # by name; set by `prepare`

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Return `model` in DDP, which is compiled as a whole.

        torch.compile then cuts the graph at DDP's buckets, so that communication can still overlap
        with backward. Raises NotApplied for a bucket size without effect.
        """
        self._check_bucket_cap(model)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                self._frozen[name] = parameter
        device = self.mesh.device
        self._replica = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            process_group=self.mesh.dp_group,
            bucket_cap_mb=self.axes.bucket_cap_mb,
            gradient_as_bucket_view=self.axes.gradient_as_bucket_view,
            static_graph=self.axes.static_graph,
            # A turn uses some of the parameters only.
            find_unused_parameters=type(workload).turns is not Workload.turns,
        )
        assert self.mesh.dp_group is not None, "DDP has a process group"
        if self.axes.reduction == "tree":
            all_reduce = TreeAllReduce(self.mesh.dp_group)
            self.tree_collective = all_reduce
            self._send_by(all_reduce)
        self._hook = comm_hook(self.axes, self.mesh.dp_group)
        if self._hook is not None:
            self._send_by(self._hook)
        return compiler(self._replica)

    def _send_by(self, hook: Callable[[Any], torch.futures.Future[Tensor]]) -> None:
        """Have DDP share its buckets of gradients by calling `hook`.

        A lambda, because DDP refuses hooks whose annotations are text, as they all are here, and
        torch's own hook for bf16 by its name where there is no NCCL, though gloo can sum bf16.
        """
        assert self._replica is not None, "made before"
        self._replica.register_comm_hook(None, lambda _, bucket: hook(bucket))

    def check_effect(self) -> None:
        """Raise NotApplied if a communication hook did nothing, or frozen parameters were thawed."""
        super().check_effect()
        for name, parameter in self._frozen.items():
            if parameter.requires_grad and self.mesh.dp_size > 1:
                raise NotApplied(
                    f"strategy=ddp cannot be used with {name}, which is thawed while training: DDP shares"
                    " the gradients of parameters that require them from the start; allowed: fsdp2"
                )
        if self._hook is not None:
            self._hook.check_effect()

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if no gradients were sent as `comm_hook` says."""
        if self._hook is not None:
            self._hook.check_communication(collectives)

    def rank_state(self) -> dict[str, Any]:
        """Return the state of the communication hook, empty without one."""
        return {} if self._hook is None else self._hook.state()

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `rank_state` returned."""
        if self._hook is not None:
            self._hook.load(state, self.mesh.device)

    def _check_bucket_cap(self, model: nn.Module) -> None:
        """Raise NotApplied if a model is too small for its bucket size to change anything."""
        cap_mb = self.axes.bucket_cap_mb
        if cap_mb is None:
            return
        default_buckets = assign_buckets(model, None)
        if assign_buckets(model, cap_mb) == default_buckets:
            raise NotApplied(
                f"bucket_cap_mb={cap_mb:g} had no effect: the gradients are in the same"
                f" {counted(len(default_buckets), 'bucket')} as without it"
            )

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Return DDP's `no_sync()` for all micro-steps but the last."""
        if is_last:
            return nullcontext()
        replica = self._replica
        assert replica is not None, "prepare() comes first"
        return replica.no_sync()

    def loss_hook(self, clock: StepClock) -> Callable[[Tensor], None]:
        """Return a hook that has `clock` count the wait for the last buckets as communication.

        What overlaps with backward costs nothing and counts as backward.
        """
        return lambda loss: mark_gradient_wait(loss, clock)

    @property
    def arranging_steps(self) -> int:
        """Return after how many backwards DDP rebuilds its buckets, for more than two ranks.

        It does so in the order in which gradients became ready: in the first backward, or in the
        second with a static graph, whose first backward only counts how often each is used. Where
        in a bucket a gradient is decides in which order the ranks are summed up, and so, from three
        ranks on, the last bits of the sum. PowerSGD has a state for each bucket, whatever the ranks.
        """
        if self.mesh.dp_size <= 2 and self.axes.comm_hook != "powersgd":
            return 0
        return 2 if self.axes.static_graph else 1


def assign_buckets(model: nn.Module, cap_mb: float | None) -> list[list[int]]:
    """Return the buckets that DDP uses from its second step on, each a list of parameter numbers.

    Parameters that need gradients are counted from the model's last. `cap_mb` is in MiB; None is
    DDP's own rule, by which the first bucket is smaller. Like DDP before its first step, this
    assumes that gradients become ready in the reverse order of the parameters. A bucket has
    gradients of one type, and is full once it has reached its cap.
    """
    caps = [FIRST_BUCKET_BYTES, BUCKET_BYTES] if cap_mb is None else [int(cap_mb * 2**20)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trained.reverse()
    buckets: list[list[int]] = []
    for dtype in {parameter.dtype for parameter in trained}:
        bucket: list[int] = []
        size = 0
        full = 0  # buckets of this type
        for number, parameter in enumerate(trained):
            if parameter.dtype != dtype:
                continue
            bucket.append(number)
            size += parameter.nbytes
            if size >= caps[min(full, len(caps) - 1)]:
                buckets.append(bucket)
                bucket, size, full = [], 0, full + 1
        if bucket:
            buckets.append(bucket)
    return sorted(buckets)


class CommHook(Protocol):
    """A way to share buckets of gradients among the ranks of a group."""

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Return a future of the bucket's mean over the ranks."""
        ...

    def check_effect(self) -> None:
        """Raise NotApplied if it did nothing in the steps so far."""

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if it shows nowhere in the collectives of a step."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain values and tensors on the CPU."""
        ...

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore the state that `state` returned."""


def comm_hook(axes: Axes, group: dist.ProcessGroup) -> CommHook | None:
    """Return the hook that the axes ask for, None for none."""
    if axes.comm_hook == "none":
        return None
    if axes.comm_hook == "powersgd":
        return PowerSGD(axes.matrix_approximation_rank, group)
    return Compression(axes.comm_hook, group)


class Compression:
    """Sends gradients in bf16 or fp16; it has no state."""

    def __init__(self, dtype: str, group: dist.ProcessGroup) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
        self._dtype = dtype
        self._hook = hooks[dtype]
        self._group = group
        self._calls = 0

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Return a future of the bucket's mean, which is summed up in the lower precision."""
        self._calls += 1
        return self._hook(self._group, bucket)

    def check_effect(self) -> None:
        """Raise NotApplied if DDP has never called it."""
        if not self._calls:
            raise NotApplied(f"comm_hook={self._dtype} had no effect: DDP has not called it")

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if no gradients were sent in the lower precision."""
        types = sorted({sent.dtype for sent in collectives if sent.operation == "all_reduce"})
        if self._dtype not in types:
            raise NotApplied(
                f"comm_hook={self._dtype} had no effect: gradients were sent in"
                f" {' and '.join(types) or 'no type'}"
            )

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Do nothing."""


class PowerSGD:
    """Sends gradients as products of two matrices of a low rank (Vogels et al. 2019).

    What the approximation leaves out is added to the gradients of the next step, and each begins
    with the matrices of the one before. So every rank has its own state.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        self._powersgd: Any = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=rank, start_powerSGD_iter=FIRST_COMPRESSED_STEP
        )
        self._hook = powerSGD_hook.powerSGD_hook

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Return a future of the bucket's mean, approximated from the third step on."""
        return self._hook(self._powersgd, bucket)

    def check_effect(self) -> None:
        """Raise NotApplied if it has compressed no gradient, though it has begun."""
        before = self._powersgd.total_numel_before_compression
        if before and self._powersgd.total_numel_after_compression >= before:
            raise NotApplied(
                "comm_hook=powersgd had no effect: no gradient is a matrix that rank"
                f" {self._powersgd.matrix_approximation_rank} makes smaller by half"
            )

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if training ended before it began."""
        self.check_effect()
        if not self._powersgd.p_memory_dict:
            raise NotApplied(
                "comm_hook=powersgd had no effect: it begins with step"
                f" {FIRST_COMPRESSED_STEP + 1}, and there was none"
            )

    def state(self) -> dict[str, Any]:
        """Return errors, matrices, random numbers and counts."""
        algorithm, keys, *position = self._powersgd.rng.get_state()
        content: dict[str, Any] = {
            "random": [algorithm, torch.from_numpy(keys.astype("int64")), *position]
        }
        for name in TENSORS_BY_BUCKET:
            tensors = getattr(self._powersgd, name)
            content[name] = {bucket: tensor.cpu() for bucket, tensor in tensors.items()}
        for name in COUNTS:
            content[name] = getattr(self._powersgd, name)
        return content

    def load(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore the state that `state` returned; the tensors go to `device`."""
        algorithm, keys, *position = state["random"]
        self._powersgd.rng.set_state((algorithm, keys.numpy().astype("uint32"), *position))
        for name in TENSORS_BY_BUCKET:
            tensors = {bucket: tensor.to(device) for bucket, tensor in state[name].items()}
            setattr(self._powersgd, name, tensors)
        for name in COUNTS:
            setattr(self._powersgd, name, state[name])
