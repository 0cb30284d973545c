"""A strategy is one class and one entry in a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.sweep.axes import STRATEGIES
from harness.training.execution import Compiler
from harness.training.strategies import Strategy
from tests.support.line import LineFit, Options
from tests.support.training import digest_of, make_assignment, make_trainer
from workloads.base import Workload
from workloads.settings import Settings


class HookedAllReduce(Strategy):
    """Averages each gradient by itself, as soon as it has been added up."""

    def prepare(self, model: nn.Module, workload: Workload, compiler: Compiler) -> nn.Module:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._average)  # type: ignore[no-untyped-call]
        return compiler(model)

    def _average(self, parameter: Tensor) -> None:
        dist.all_reduce(parameter.grad, group=dist.group.WORLD)
        assert parameter.grad is not None
        parameter.grad /= self.mesh.world_size


@pytest.fixture
def process_group_of_one() -> Iterator[None]:
    """Let strategies find a process group, whose only rank is this process."""
    store = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
        digests.add(digest_of(trainer))
    assert len(digests) == 1


@pytest.mark.usefixtures("process_group_of_one")
def test_a_tree_over_micro_batches_of_one_rank_is_the_same_under_each_strategy(
    tmp_path: Path,
) -> None:
    """FSDP2 calls no collective then."""
    digests = set()
    for name in ("single", "ddp", "fsdp2"):
        assignment = make_assignment(steps=4, strategy=name, reduction="tree", grad_accum_steps=2)
        trainer = make_trainer(assignment, LineFit(Options(), Settings()), tmp_path / name)
        trainer.run()
        digests.add(digest_of(trainer))
    assert len(digests) == 1
