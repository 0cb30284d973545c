"""Strategies `fsdp2` and `hsdp`: each rank has a shard of every parameter (torch's `fully_shard`).

Parameters of a layer are gathered before its forward and its backward, and freed afterwards;
gradients are reduced to their shards. With `hsdp` that is within groups of ranks, each of which has
the whole model, and the groups average their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.errors import NotApplied
from harness.measure.clock import StepClock
from harness.measure.communication import ShardCollective, all_gather, reduce_scatter
from harness.training.execution import Compiler
from harness.training.strategies.base import Strategy
from harness.training.tree_reduction import TreeCollective
from workloads.base import Workload

MAX_DIGEST = 2**62 - 1
REDUCE_DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}


class FSDP2(Strategy):
    """Train with torch.distributed.fsdp.fully_shard."""

    shards_parameters = True
    _sharded: dict[str, Any]  # FSDPModules by name, empty for the model's; set by `prepare`
    _reduce_scatter: ShardCollective  # that gradients are shared with; set by `prepare`
    _parameters: list[nn.Parameter]  # set by `prepare`
    _gradients = 0  # a digest of which parameters have had a gradient in which step

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Shard the parameters of `model` in place; return it, compiled if the axes say so."""
        from torch.distributed.fsdp import FSDPModule

        # Compiling only wraps the model. Its graph is traced at the first step, when it is sharded.
        training_module = compiler(model)
        self._shard(model, workload)
        self._parameters = list(model.parameters())
        self._sharded = {}
        for name, module in model.named_modules():
            if isinstance(module, FSDPModule):  # `fully_shard` has changed its class
                self._sharded[name] = module
        # On GPUs, collectives overlap with computing, so the time in them is not lost.
        timed_by = clock if self.mesh.device.type == "cpu" else None
        self._reduce_scatter = ShardCollective(reduce_scatter, timed_by)
        if self.axes.reduction == "tree" and self.mesh.size > 1:
            self.tree = TreeCollective()
            self._reduce_scatter = ShardCollective(self.tree.reduce_scatter, timed_by)
        for module in self._sharded.values():
            if timed_by is not None:
                module.set_custom_all_gather(ShardCollective(all_gather, timed_by))
            if timed_by is not None or self.tree is not None:
                module.set_custom_reduce_scatter(self._reduce_scatter)
            if self.tree is not None and self.axes.precision == "fp64":
                # The collective divides fp32 and bf16, if it does, and FSDP2 itself other types.
                module.set_gradient_divide_factor(1.0)
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
        for module in [*workload.layers(model), model]:
            fully_shard(module, **settings)

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
        for name, module in self._sharded.items():

            def watched(name: str = name, **named: Any) -> Any:
                report(f"{name or 'model'} (flattened)", named["input_tensor"])
                return self._reduce_scatter(**named)

            module.set_custom_reduce_scatter(ShardCollective(watched))

        def stop() -> None:
            for module in self._sharded.values():
                module.set_custom_reduce_scatter(self._reduce_scatter)

        return stop

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Have the coming backward reduce gradients only in the last micro-step."""
        self._sharded[""].set_requires_gradient_sync(is_last)
        return nullcontext()


class HSDP(FSDP2):
    """Train with fully_shard over a mesh of two dimensions: replicas, each sharded over a group."""
