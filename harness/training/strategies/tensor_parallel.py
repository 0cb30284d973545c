"""Strategy `tp`: the ranks share out the work on the same samples, by the workload's own plan.

Torch's `parallelize_module` cuts the matrices that the plan names. All other parameters are the same
at each rank, and so are their gradients, since all ranks have the same activations between the
layers. FSDP2 shards all parameters further if the axis `tensor_parallel` gives it groups of ranks.

What ranks send to one another is a part of forward and backward here, and counts as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from harness.core.errors import NotApplied
from harness.measure.clock import StepClock
from harness.records.record import Collective
from harness.training.execution import Compiler
from harness.training.mesh import ParallelMesh
from harness.training.strategies.base import Strategy
from workloads.base import Workload


class TensorParallel(Strategy):
    """Train with parallelize_module over all ranks, which have the same samples."""

    shards_parameters = True

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        """Cut parameters of `model` in place; return it, compiled if the axes say so."""
        parallelize(model, workload, self.mesh)
        return compiler(model)

    def check_communication(self, collectives: Sequence[Collective]) -> None:
        """Raise NotApplied if ranks did not share their results."""
        if self.mesh.tp_size > 1:
            check_all_reduced(collectives, self.mesh)


def parallelize(model: nn.Module, workload: Workload, mesh: ParallelMesh) -> None:
    """Cut parameters of `model` over the ranks that have this rank's samples.

    Raises NotApplied for a workload without a plan, for a plan that names no module of the model,
    and for one that cuts no parameter.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    plan = dict(workload.tensor_parallel_plan(model, mesh.tp_size))
    name = f"{type(workload).__name__}.tensor_parallel_plan()"
    if not plan:
        raise NotApplied(f"tensor parallelism is unavailable: {name} is empty; needed: a plan")
    modules = [module_name for module_name, _ in model.named_modules()]
    for pattern in plan:
        # Torch would only warn, and leave such a module whole.
        if not any(fnmatchcase(module_name, pattern) for module_name in modules):
            raise NotApplied(f"{name}: found {pattern!r}, which names no module of the model")
    parallelize_module(model, mesh.tp_device_mesh(), plan)
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise NotApplied(f"tensor parallelism had no effect: {name} cuts no parameter")


def check_all_reduced(collectives: Sequence[Collective], mesh: ParallelMesh) -> None:
    """Raise NotApplied if no results were summed up over the tensor-parallel ranks."""
    over_group = {"all_reduce", "reduce_scatter", "all_gather"}
    for sent in collectives:
        if sent.operation in over_group and sent.ranks == mesh.tp_size:
            return
    raise NotApplied(
        f"tensor parallelism had no effect: nothing was sent among {mesh.tp_size} ranks"
    )
