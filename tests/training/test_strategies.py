"""A strategy is one module and one entry in a table; the mesh says what each rank does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.core.errors import NotApplied
from harness.measure.clock import StepClock
from harness.spec.axes import STRATEGIES, Axes
from harness.training.execution import Compiler
from harness.training.mesh import ParallelMesh
from harness.training.ranks import Ranks
from harness.training.strategies import strategy_class
from harness.training.strategies.base import Strategy
from tests.support.frozen import AlternatingFit
from tests.support.line import LineFit, Options
from tests.support.training import CPU, NoEvaluation, make_assignment, make_trainer
from workloads.base import Workload
from workloads.options import Settings


class HookedAllReduce(Strategy):
    """Averages each gradient by itself, as soon as it has been added up."""

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._average)  # type: ignore[no-untyped-call]
        return compiler(model)

    def _average(self, parameter: Tensor) -> None:
        dist.all_reduce(parameter.grad, group=self.mesh.dp_group)
        assert parameter.grad is not None
        parameter.grad /= self.mesh.dp_size


@pytest.fixture
def process_group_of_one() -> Iterator[None]:
    """Let strategies find a process group, whose only rank is this process."""
    store = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_table_names_the_class_of_each_strategy(name: str) -> None:
    assert issubclass(strategy_class(name), Strategy)
    assert strategy_class(name).needs_process_group == (name != "single")


@pytest.mark.usefixtures("process_group_of_one")
def test_a_new_strategy_needs_only_its_class_and_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRATEGIES, "hooked", f"{__name__}:HookedAllReduce")
    digests = set()
    for name in ("hooked", "ddp"):
        assignment = make_assignment(steps=4, strategy=name)
        trainer = make_trainer(assignment, LineFit(Options(), Settings()), tmp_path / name)
        trainer.run()
        digests.add(trainer.fingerprint())
    assert len(digests) == 1


def mesh_of(rank: int, world_size: int) -> ParallelMesh:
    """Return the mesh at one rank."""
    return ParallelMesh(Ranks(rank=rank, local_rank=rank, world_size=world_size), CPU)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_out_the_test_set(world_size: int) -> None:
    shares = [mesh_of(rank, world_size).test_share(65) for rank in range(world_size)]
    assert sorted(itertools.chain(*shares)) == list(range(65))
    assert max(map(len, shares)) == mesh_of(0, world_size).largest_test_share(65)


def test_ranks_of_a_tensor_parallel_group_share_nothing_out() -> None:
    axes = Axes(batch_size=64, strategy="fsdp2", world_size=4, tensor_parallel=2)
    ranks = [Ranks(rank=rank, local_rank=rank, world_size=4) for rank in range(4)]
    meshes = [ParallelMesh.from_axes(axes, rank, CPU) for rank in ranks]
    assert [mesh.dp_rank for mesh in meshes] == [0, 0, 1, 1]
    assert [mesh.reports_share for mesh in meshes] == [True, False, True, False]
    assert {mesh.rank_batch_size(axes) for mesh in meshes} == {32}
    assert meshes[2].test_share(5) == meshes[3].test_share(5) == [1, 3]


@pytest.fixture
def process_group_of_eight() -> Iterator[None]:
    """Make this process the sixth of eight ranks, whose collectives send nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group_of_eight")
def test_replicas_shards_and_tensor_parallel_groups_are_three_dimensions() -> None:
    axes = Axes(batch_size=64, strategy="hsdp", world_size=8, shard_size=2, tensor_parallel=2)
    mesh = ParallelMesh.from_axes(axes, Ranks(rank=5, local_rank=5, world_size=8), CPU)
    assert mesh.dp_device_mesh().mesh.tolist() == [[1, 3], [5, 7]]
    assert mesh.tp_device_mesh().mesh.tolist() == [4, 5]


@pytest.mark.usefixtures("process_group_of_one")
@pytest.mark.parametrize(
    ("workload", "axes", "problem"),
    [
        (
            AlternatingFit(Options(), Settings()),
            {"strategy": "ddp"},
            "strategy=ddp cannot be used with inner.layers.0.weight, which is thawed while training",
        ),
        (
            LineFit(Options(depth=2, memory=True), Settings()),
            {"strategy": "pp", "grad_accum_steps": 2},
            "strategy=pp is unavailable: buffer inner.running_sum changes after the first layer",
        ),
    ],
    ids=["ddp", "pp"],
)
def test_what_ranks_would_not_share_is_refused(
    tmp_path: Path, workload: Workload, axes: dict[str, Any], problem: str
) -> None:
    """Of two ranks this is the first; it needs no other to find out."""
    assignment = make_assignment(steps=6, world_size=2, **axes)
    ranks = Ranks(rank=0, local_rank=0, world_size=2)
    trainer = make_trainer(assignment, workload, tmp_path, ranks=ranks, hooks=NoEvaluation())
    with pytest.raises(NotApplied, match=problem):
        trainer.run()


def test_a_global_batch_is_shared_out_over_ranks_and_micro_steps() -> None:
    axes = Axes(batch_size=64, strategy="ddp", world_size=2, grad_accum_steps=4)
    mesh = mesh_of(1, 2)
    assert (mesh.dp_rank, mesh.dp_size) == (1, 2)
    assert mesh.rank_batch_size(axes) == 32
    assert mesh.micro_batch_size(axes) == 8
