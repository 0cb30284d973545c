"""Ranks are bound to the cores that `binding` says, and a rank that runs elsewhere fails its trial."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.core.cores import usable_cores
from harness.core.errors import NotApplied
from harness.records.company import Lane
from harness.training import binding
from harness.training.binding import account_binding, bind_rank, cores_of_rank, rank_cores
from harness.training.loader import make_loader
from harness.training.order import BatchOrder
from harness.training.ranks import Ranks
from tests.support.topology import GPU, fake_topology
from tests.support.training import CPU, SINGLE_RANK, make_assignment
from workloads.base import Batch

ALL = range(16)
SPREAD = (0, 0, 1, 1, 2, 2, 3, 3)  # the nodes of eight ranks


@pytest.fixture(autouse=True)
def unbound() -> Iterator[None]:
    """Give this process back all of its cores."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("mode", "of_rank_0", "of_rank_1", "of_rank_5"),
    [
        ("node", {0, 1, 8, 9}, {0, 1, 8, 9}, {4, 5, 12, 13}),
        (
            "socket",
            {0, 1, 2, 3, 8, 9, 10, 11},
            {0, 1, 2, 3, 8, 9, 10, 11},
            {*range(4, 8), *range(12, 16)},
        ),
        ("exclusive", {0, 8}, {1, 9}, {5, 13}),
        ("core-complex", {0, 8}, {1, 9}, {5, 13}),
    ],
)
def test_each_value_gives_the_cores_that_torchrun_would(
    tmp_path: Path, mode: str, of_rank_0: set[int], of_rank_1: set[int], of_rank_5: set[int]
) -> None:
    topology = fake_topology(tmp_path)
    of_ranks = [cores_of_rank(mode, ALL, SPREAD, rank, topology) for rank in range(8)]
    assert (of_ranks[0], of_ranks[1], of_ranks[5]) == (of_rank_0, of_rank_1, of_rank_5)
    if mode == "exclusive":
        assert sum(map(len, of_ranks)) == len(set().union(*of_ranks)) == 16


def test_only_cores_that_the_rank_may_use_count(tmp_path: Path) -> None:
    """As of a lane, or of a job that has a part of a node."""
    topology = fake_topology(tmp_path)
    assert cores_of_rank("node", [0, 2, 3], [1], 0, topology) == {2, 3}
    assert cores_of_rank("socket", [0, 2, 3, 4], [1], 0, topology) == {0, 2, 3}
    assert cores_of_rank("exclusive", [0, 1, 9], [0, 0], 1, topology) == {1, 9}
    with pytest.raises(
        NotApplied, match=r"is on NUMA node 3, and the rank may use cores 0-1,4, none"
    ):
        cores_of_rank("node", [0, 1, 4], [3], 0, topology)


def test_more_ranks_than_physical_cores_can_not_have_them_alone(tmp_path: Path) -> None:
    topology = fake_topology(tmp_path)
    assert cores_of_rank("exclusive", ALL, [0] * 2, 1, topology) == {1, 9}
    with pytest.raises(
        NotApplied, match="NUMA node 0 has 2 physical cores that may be used, for 3 ranks"
    ):
        cores_of_rank("exclusive", ALL, [0] * 3, 1, topology)


def test_the_first_ranks_get_the_cores_that_can_not_be_shared_out(tmp_path: Path) -> None:
    topology = fake_topology(tmp_path)
    assert cores_of_rank("core-complex", ALL, [0] * 3, 2, topology) == {0, 8}, "in turn"
    (tmp_path / "devices/system/node/node0/cpulist").write_text("0-4\n", encoding="ascii")
    shares = [cores_of_rank("exclusive", range(5), [0] * 2, rank, topology) for rank in range(2)]
    assert shares == [{0, 1, 2}, {3, 4}]


def test_the_node_of_a_gpu_is_that_of_its_pci_device(tmp_path: Path) -> None:
    topology = fake_topology(tmp_path)
    assert topology.node_of_pci_device(GPU) == 2
    (tmp_path / f"bus/pci/devices/{GPU}/numa_node").write_text("-1\n", encoding="ascii")
    assert topology.node_of_pci_device(GPU) == 0


def test_a_rank_records_where_it_runs() -> None:
    first = usable_cores()[:1]
    assignment = replace(
        make_assignment(steps=1, binding="node"), lane=Lane(number=0, count=2, cores=tuple(first))
    )
    bind_rank(assignment, SINGLE_RANK, CPU)
    assert os.sched_getaffinity(0) == set(first)
    account = account_binding(assignment, SINGLE_RANK, CPU)
    assert account is not None
    assert account.cores == first
    assert account.numa_nodes
    assert not account.memory or sum(account.memory.values()) > 2**20


class CoresAsSamples:
    """Samples that are the cores of the process that fetches them."""

    def __len__(self) -> int:
        return 8

    def batch(self, indices: Sequence[int]) -> Batch:
        return (torch.tensor(sorted(os.sched_getaffinity(0))),)


@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core is all that there is")
def test_loader_workers_run_on_the_cores_of_their_rank() -> None:
    *_, last = usable_cores()
    lane = Lane(number=0, count=1, cores=(last,))
    assignment = replace(make_assignment(steps=1, binding="node"), lane=lane)
    bind_rank(assignment, SINGLE_RANK, CPU)
    order = BatchOrder(samples=8, batch_size=4, seed=0, dp_rank=0, dp_size=1)
    axes = replace(assignment.trial.cell.axes, num_workers=1)
    found = []
    for _, worker, (cores,) in make_loader(CoresAsSamples(), order, axes, seed=0, device=CPU):
        found.append((worker, cores.tolist()))
    assert found == [(0, [last])] * 2


@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core is all that there is")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_rank_that_runs_elsewhere_fails(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """A launcher's own binding, or a library that binds its threads, may be in the way."""
    first, *_ = usable_cores()
    assignment = make_assignment(steps=1, binding="node")
    if moment == "before":
        monkeypatch.setattr(binding, "bind_to_cores", lambda cores: None)
        os.sched_setaffinity(0, [first])
        with pytest.raises(
            NotApplied, match=f"binding=node had no effect: it asks for cores .*on {first}$"
        ):
            bind_rank(assignment, SINGLE_RANK, CPU)
        return
    bind_rank(assignment, SINGLE_RANK, CPU)
    os.sched_setaffinity(0, [first])
    with pytest.raises(NotApplied, match="binding=node had no effect"):
        account_binding(assignment, SINGLE_RANK, CPU)


def test_without_binding_nothing_is_touched_or_recorded() -> None:
    before = os.sched_getaffinity(0)
    assignment = make_assignment(steps=1)
    bind_rank(assignment, SINGLE_RANK, CPU)
    assert os.sched_getaffinity(0) == before
    assert account_binding(assignment, SINGLE_RANK, CPU) is None


@pytest.mark.parametrize(("rank", "cores"), [(0, {0, 1, 8, 9}), (2, {4, 5, 12, 13})])
def test_ranks_without_gpus_are_spread_over_the_nodes(
    tmp_path: Path, rank: int, cores: set[int]
) -> None:
    lane = Lane(number=0, count=1, cores=tuple(ALL))
    assignment = replace(make_assignment(steps=1, binding="node"), lane=lane)
    ranks = Ranks(rank=rank, local_rank=rank, world_size=4)
    assert rank_cores(assignment, ranks, CPU, fake_topology(tmp_path)) == cores


@pytest.mark.parametrize(
    ("kind", "given", "cores"), [("none", tuple(ALL), {1, 9}), ("mask_cpu:", (4, 12), {4, 12})]
)
def test_cores_that_slurm_gave_each_task_are_not_divided_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    given: tuple[int, ...],
    cores: set[int],
) -> None:
    """Otherwise the tasks of a node share those of the step: here eight tasks on each of two nodes."""
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "8")
    monkeypatch.setenv("SLURM_CPU_BIND_TYPE", kind)
    lane = Lane(number=0, count=1, cores=given)
    assignment = replace(make_assignment(steps=1, binding="exclusive"), lane=lane)
    task = Ranks(rank=9, local_rank=1, world_size=16, may_be_bound=True)
    assert rank_cores(assignment, task, CPU, fake_topology(tmp_path)) == cores
