"""Strategies `fsdp2` and `hsdp`: each rank has a shard of every parameter (torch's `fully_shard`).

Parameters of a layer are gathered before its forward and its backward, and freed afterwards;
gradients are reduced to their shards. With `hsdp` that is within groups of ranks, each of which has
the whole model, and the groups average their gradients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.measure.clock import StepClock
from harness.measure.communication import (
    AllGather,
    ReduceScatter,
    ShardCollective,
    TimedCollective,
    sharded_modules,
)
from harness.records.record import Collective
from harness.spec.axes import Axes
from harness.training.execution import Compiler
from harness.training.mesh import ParallelMesh
from harness.training.strategies.base import Strategy
from harness.training.strategies.tensor_parallel import check_all_reduced, parallelize
from harness.training.tree_reduction import TreeReduceScatter
from workloads.base import Workload

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

# The axis' values as `fully_shard` takes them; None is torch's own rule (all but the root).
RESHARD_AFTER_FORWARD = {"auto": None, "always": True, "never": False}
# How autograd reports a parameter that FSDP2 has freed, as it does after each backward.
FREED_PARAMETER = re.compile(r"setStorage: .* out of bounds for storage of size 0")
REDUCE_DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16}


class FSDP2(Strategy):
    """Train with torch.distributed.fsdp.fully_shard."""

    shards_parameters = True

    def __init__(self, axes: Axes, mesh: ParallelMesh) -> None:
        super().__init__(axes, mesh)
        self._sharded: FSDPModule | None = None  # set by `prepare`
        self._reduce_scatter: Any = None  # that gradients are shared with; set by `prepare`

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Shard the parameters of `model` in place; return it, compiled if the axes say so."""
        from torch.distributed.fsdp import FSDPModule

        # Compiling only wraps the model. Its graph is traced at the first step, when it is sharded.
        training_module = compiler(model)
        if self.mesh.tp_size > 1:
            parallelize(model, workload, self.mesh)
        self._shard(model, workload)
        assert isinstance(model, FSDPModule)  # `fully_shard` has changed its class
        self._sharded = model
        if self.axes.reduction == "tree" and self.mesh.dp_size > 1:
            self.tree_collective = TreeReduceScatter()
            for module in sharded_modules(model):
                module.set_custom_reduce_scatter(self.tree_collective)
                if self.axes.precision == "fp64":
                    # The collective divides fp32 and bf16, if it does, and FSDP2 itself other types.
                    module.set_gradient_divide_factor(1.0)
        self._reduce_scatter = self.tree_collective or ReduceScatter()
        if self.mesh.device.type == "cpu":
            # On GPUs, collectives overlap with computing, so the time in them is not lost.
            all_gather = TimedCollective(AllGather(), clock)
            self._reduce_scatter = TimedCollective(self._reduce_scatter, clock)
            for module in sharded_modules(model):
                module.set_custom_all_gather(all_gather)
                module.set_custom_reduce_scatter(self._reduce_scatter)
        return training_module

    def _shard(self, model: nn.Module, workload: Workload) -> None:
        """Shard each of the workload's layers, then the rest of the model."""
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        param_dtype = torch.bfloat16 if self.axes.precision == "bf16:fsdp2" else None
        reduce_dtype = REDUCE_DTYPES[self.axes.reduce_dtype]
        settings: dict[str, Any] = {
            "mesh": self.mesh.dp_device_mesh(),
            "reshard_after_forward": RESHARD_AFTER_FORWARD[self.axes.reshard_after_forward],
            "mp_policy": MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype),
        }
        if self.axes.cpu_offload:
            settings["offload_policy"] = CPUOffloadPolicy()
        if self.axes.fsdp_wrap == "layers":
            for layer in workload.layers(model):
                fully_shard(layer, **settings)
        fully_shard(model, **settings)

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Raise NotApplied for a backward through parameters that FSDP2 has freed."""
        try:
            yield
        except RuntimeError as error:
            if FREED_PARAMETER.search(str(error)) is None:
                raise
            raise NotApplied(
                f"strategy={self.axes.strategy} cannot be used with gradients of gradients"
                " (create_graph=True): it frees parameters after backward, and the second one needs"
                " them; allowed: ddp"
            ) from error

    def release_parameters(self) -> None:
        """Free the parameters that an evaluation has gathered: the root keeps its own until a backward."""
        assert self._sharded is not None, "prepare() comes first"
        for module in sharded_modules(cast(nn.Module, self._sharded)):
            module.reshard()

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if gradients were summed up in another type than `reduce_dtype`.

        So it does if tensor-parallel ranks did not share their results.
        """
        if self.mesh.tp_size > 1:
            check_all_reduced(collectives, self.mesh)
        wanted = self.axes.reduce_dtype
        types = sorted({sent.dtype for sent in collectives if sent.operation == "reduce_scatter"})
        if wanted != "auto" and self.mesh.dp_size > 1 and types != [wanted]:
            raise NotApplied(
                f"reduce_dtype={wanted} had no effect: gradients were summed up in"
                f" {' and '.join(types) or 'no type'}"
            )

    def watch_local_gradients(
        self, model: nn.Module, report: Callable[[str, Tensor], None]
    ) -> Callable[[], None]:
        """Have `report` called with this rank's gradients of each sharded module, flattened.

        FSDP2 puts them into one tensor before ranks share them, padded to equal shards. Returns
        what ends it, and leaves the model as it was.
        """
        sharded = set(sharded_modules(model))
        for name, module in model.named_modules():
            if module in sharded:
                watched = _WatchedReduceScatter(
                    self._reduce_scatter, partial(report, f"{name or 'model'} (flattened)")
                )
                module.set_custom_reduce_scatter(watched)

        def stop() -> None:
            for module in sharded:
                module.set_custom_reduce_scatter(self._reduce_scatter)

        return stop

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Have the coming backward reduce gradients only in the last micro-step."""
        assert self._sharded is not None, "prepare() comes first"
        self._sharded.set_requires_gradient_sync(is_last)
        return nullcontext()


class HSDP(FSDP2):
    """Train with fully_shard over a mesh of two dimensions: replicas, each sharded over a group."""

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if gradients were not averaged over replicas, or not sharded in groups."""
        super().check_communication(collectives)
        assert self.mesh.shard_size is not None, "refused before anything starts"
        replicas = self.mesh.dp_size // self.mesh.shard_size
        # Tensor-parallel ranks send all-reduces too: those of as many ranks can't be told from these.
        needed = {("reduce_scatter", self.mesh.shard_size), ("all_reduce", replicas)}
        missing = needed - {(sent.operation, sent.ranks) for sent in collectives}
        for operation, ranks in sorted(missing):
            raise NotApplied(
                f"strategy=hsdp had no effect: found no {operation} over {ranks} ranks"
            )


class _WatchedReduceScatter(ShardCollective):
    """A reduce-scatter of FSDP2 that reports its input."""

    def __init__(self, collective: Any, report: Callable[[Tensor], None]) -> None:
        self._collective = collective
        self._report = report

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Report the gradients, then share them."""
        self._report(named["input_tensor"])
        return self._collective(*arguments, **named)
