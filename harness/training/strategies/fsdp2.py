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
from typing import TYPE_CHECKING, Any

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
from harness.spec.axes import Axes
from harness.training.execution import Compiler
from harness.training.mesh import ParallelMesh
from harness.training.strategies.base import Strategy
from harness.training.tree_reduction import TreeReduceScatter
from workloads.base import Workload

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

# How autograd reports a parameter that FSDP2 has freed, as it does after each backward.
FREED_PARAMETER = re.compile(r"setStorage: .* out of bounds for storage of size 0")
MAX_DIGEST = 2**62 - 1
REDUCE_DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}


class FSDP2(Strategy):
    """Train with torch.distributed.fsdp.fully_shard."""

    shards_parameters = True

    def __init__(self, axes: Axes, mesh: ParallelMesh) -> None:
        super().__init__(axes, mesh)
        self._sharded: FSDPModule | None = None  # set by `prepare`
        self._reduce_scatter: Any = None  # that gradients are shared with; set by `prepare`
        self._parameters: list[nn.Parameter] = []  # set by `prepare`
        self._gradients = 0  # a digest of which parameters have had a gradient in which step

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Shard the parameters of `model` in place; return it, compiled if the axes say so."""
        from torch.distributed.fsdp import FSDPModule

        # Compiling only wraps the model. Its graph is traced at the first step, when it is sharded.
        training_module = compiler(model)
        self._shard(model, workload)
        self._parameters = list(model.parameters())
        assert isinstance(model, FSDPModule)  # `fully_shard` has changed its class
        self._sharded = model
        if self.axes.reduction == "tree" and self.mesh.size > 1:
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

        parameters = self.axes.fsdp
        param_dtype = torch.bfloat16 if self.axes.precision == "bf16:fsdp2" else None
        reduce_dtype = REDUCE_DTYPES[parameters.reduce_dtype]
        settings: dict[str, Any] = {
            "mesh": self.mesh.device_mesh,
            "reshard_after_forward": parameters.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype),
        }
        if parameters.cpu_offload:
            settings["offload_policy"] = CPUOffloadPolicy()
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

    def note_gradients(self) -> None:
        """Add to the digest which parameters this step has left a gradient in."""
        pattern = tuple(parameter.grad is None for parameter in self._parameters)
        self._gradients = hash((self._gradients, pattern)) & MAX_DIGEST

    def votes(self) -> tuple[int, ...]:
        """Return the digest twice, of opposite signs, whose smallest are opposite if all are equal."""
        return self._gradients, -self._gradients

    def check_votes(self, smallest: Sequence[int]) -> None:
        """Raise NotApplied if ranks have trained different parameters.

        FSDP2 adds up what has a gradient at each rank, whichever parameter it is of.
        """
        if smallest[0] != -smallest[1]:
            raise NotApplied(
                f"strategy={self.axes.strategy} is unavailable: in the same step, ranks had gradients"
                " of different parameters, which it adds up; allowed: ddp with"
                " ddp.find_unused_parameters, or a loss that uses the same parameters at all ranks"
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


class _WatchedReduceScatter(ShardCollective):
    """A reduce-scatter of FSDP2 that reports its input."""

    def __init__(self, collective: Any, report: Callable[[Tensor], None]) -> None:
        self._collective = collective
        self._report = report

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Report the gradients, then share them."""
        self._report(named["input_tensor"])
        return self._collective(*arguments, **named)
