"""A strategy is one module and one entry in a table; the mesh says what each rank does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.measure.clock import StepClock
from harness.spec.axes import STRATEGIES, Axes
from harness.training.execution import Compiler
from harness.training.mesh import ParallelMesh
from harness.training.ranks import Ranks
from harness.training.strategies import strategy_class
from harness.training.strategies.base import Strategy
from tests.support.line import LineFit, Options
from tests.support.training import CPU, make_assignment, make_trainer
from workloads.base import Workload
from workloads.settings import Settings


class HookedAllReduce(Strategy):
    """Averages each gradient by itself, as soon as it has been added up."""

    def prepare(
        self, model: nn.Module, workload: Workload, compiler: Compiler, clock: StepClock
    ) -> nn.Module:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._average)  # type: ignore[no-untyped-call]
        return compiler(model)

    def _average(self, parameter: Tensor) -> None:
        dist.all_reduce(parameter.grad, group=dist.group.WORLD)
        assert parameter.grad is not None
        parameter.grad /= self.mesh.size


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


@pytest.fixture
def process_group_of_eight() -> Iterator[None]:
    """Make this process the sixth of eight ranks, whose collectives send nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group_of_eight")
def test_replicas_and_shards_are_two_dimensions() -> None:
    axes = Axes(batch_size=64, strategy="hsdp", world_size=8, shard_size=2)
    mesh = ParallelMesh.from_axes(axes, Ranks(rank=5, local_rank=5, world_size=8), CPU)
    assert mesh.device_mesh.mesh.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_global_batch_is_shared_out_over_ranks_and_micro_steps() -> None:
    axes = Axes(batch_size=64, strategy="ddp", world_size=2, grad_accum_steps=4)
    mesh = mesh_of(1, 2)
    assert (mesh.rank, mesh.size) == (1, 2)
    assert mesh.rank_batch_size(axes) == 32
    assert mesh.micro_batch_size(axes) == 8
