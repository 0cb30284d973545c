"""Communication hooks of DDP, and what proves that settings of communication took effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.core.errors import NotApplied
from harness.records.record import Collective
from harness.spec.axes import Axes
from harness.training import worker
from harness.training.mesh import ParallelMesh
from harness.training.ranks import Ranks
from harness.training.strategies import strategy_class
from harness.training.strategies.ddp import Compression, PowerSGD
from tests.support.line import LineFit, Options
from tests.support.training import CPU, make_assignment, make_trainer
from tests.training.test_interruption import run_trial
from workloads.options import Settings

POWER_SGD = {"strategy": "ddp", "comm_hook": "powersgd"}
LAST_GROUP: list[dist.ProcessGroup] = []  # what `group_of_one` made last


@contextmanager
def group_of_one(*_: object, **__: object) -> Iterator[None]:
    """Make a process group whose only rank is this process.

    Its last owner may be a model in DDP, which goes with the GIL held. Then gloo's thread, which
    wants the GIL to drop the tensors of its last collective, and this one would wait for each other
    for ever. So each group lives until the next one is made, when its thread has long been idle.
    """
    store = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    LAST_GROUP[:] = [dist.distributed_c10d._get_default_group()]
    try:
        yield
    finally:  # a trial that is interrupted leaves by an error
        dist.destroy_process_group()


@pytest.fixture
def process_group_of_one() -> Iterator[None]:
    with group_of_one():
        yield


def sent(operation: str, dtype: str = "fp32", ranks: int = 2) -> Collective:
    return Collective(operation=operation, dtype=dtype, ranks=ranks, calls=1, bytes=64)


@pytest.mark.usefixtures("process_group_of_one")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_gradients_are_sent_in_fewer_bits(tmp_path: Path, dtype: str) -> None:
    losses = []
    for hook in ("none", dtype):
        assignment = make_assignment(steps=4, strategy="ddp", comm_hook=hook)
        trainer = make_trainer(assignment, LineFit(Options(), Settings()), tmp_path / hook)
        trainer.run()
        losses.append(trainer.state.losses)
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert losses[1] != losses[0]
    collectives = worker._count_collectives(trainer.parts)
    assert collectives == [
        Collective(operation="all_reduce", dtype=dtype, ranks=1, calls=1, bytes=2 * 161)
    ]
    assert trainer.parts.model.get_parameter("inner.layers.0.weight").grad is None


def test_a_trial_with_power_sgd_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it begins, with the first errors, and with matrices of earlier steps."""
    monkeypatch.setattr("harness.training.entry.process_group", group_of_one)
    entry = {"axes": POWER_SGD, "options": {"dropout": 0.3}}
    whole, _ = run_trial(tmp_path / "whole", entry)
    resumed, interruptions = run_trial(tmp_path / "resumed", entry, [1, 2, 3, 11])
    assert resumed == whole
    assert [step for step, _ in interruptions] == [1, 2, 3, 11]


@pytest.mark.usefixtures("process_group_of_one")
def test_a_rank_that_compresses_nothing_is_refused(tmp_path: Path) -> None:
    assignment = make_assignment(steps=4, **POWER_SGD, matrix_approximation_rank=4)
    trainer = make_trainer(assignment, LineFit(Options(), Settings()), tmp_path)
    with pytest.raises(NotApplied, match=r"comm_hook=powersgd had no effect: .* that rank 4 makes"):
        trainer.run()


@pytest.mark.usefixtures("process_group_of_one")
def test_hooks_that_did_nothing_are_named() -> None:
    assert dist.group.WORLD is not None
    compression = Compression("bf16", dist.group.WORLD)
    with pytest.raises(NotApplied, match="comm_hook=bf16 had no effect: DDP has not called it"):
        compression.check_effect()
    with pytest.raises(NotApplied, match="comm_hook=bf16 had no effect: gradients were sent in fp"):
        compression.check_communication([sent("all_reduce", "fp32"), sent("broadcast", "bf16")])
    with pytest.raises(NotApplied, match="powersgd had no effect: it begins with step 3"):
        PowerSGD(1, dist.group.WORLD).check_communication([])


@pytest.mark.parametrize(
    ("axes", "collectives", "problem"),
    [
        (
            {"strategy": "fsdp2", "reduce_dtype": "bf16"},
            [sent("reduce_scatter", ranks=4)],
            "reduce_dtype=bf16 had no effect: gradients were summed up in fp32",
        ),
        (
            {"strategy": "hsdp", "shard_size": 2},
            [sent("reduce_scatter", ranks=4)],
            "strategy=hsdp had no effect: found no all_reduce over 2 ranks",
        ),
        (
            {"strategy": "fsdp2", "tensor_parallel": 2},
            [sent("all_reduce", ranks=4)],
            "tensor parallelism had no effect: nothing was sent among 2 ranks",
        ),
        ({"strategy": "tp"}, [], "tensor parallelism had no effect: nothing was sent among 4"),
        ({"strategy": "hsdp", "shard_size": 2}, [sent("reduce_scatter"), sent("all_reduce")], None),
    ],
)
def test_what_was_sent_proves_the_strategy(
    axes: dict[str, Any], collectives: list[Collective], problem: str | None
) -> None:
    settings = Axes(batch_size=8, world_size=4, **axes)
    mesh = ParallelMesh.from_axes(settings, Ranks(rank=0, local_rank=0, world_size=4), CPU)
    strategy = strategy_class(settings.strategy)(settings, mesh)
    if problem is None:
        strategy.check_communication(collectives)
        return
    with pytest.raises(NotApplied, match=problem):
        strategy.check_communication(collectives)


@pytest.mark.parametrize(("operation", "bytes_sent"), [("all_reduce", 96), ("all_gather", 48)])
def test_bytes_sent_are_those_of_a_ring(operation: str, bytes_sent: float) -> None:
    assert sent(operation, ranks=4).sent_bytes == bytes_sent
