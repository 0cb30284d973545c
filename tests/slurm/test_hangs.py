"""Ranks of jobs that hang in each way that is known: the failure names the rank, its node and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.conftest import slurm_in
from tests.slurm.sweeps import is_over, read_records, submit, trial_rows
from tests.support.hang_verdicts import WAYS, check_verdict, failure_of, hang_sweep
from tests.support.running import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes with room for several jobs, which wait most of the time."""
    with slurm_in(tmp_path_factory.mktemp("wide"), cpus=8) as slurm:
        yield slurm


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.usefixtures("slurm")
def test_every_hang_is_named_on_two_nodes(tmp_path: Path, world_size: int, strategy: str) -> None:
    """Within the limits that every trial has."""
    for way in WAYS:
        folder = tmp_path / way
        folder.mkdir()
        sweep = hang_sweep(folder, way, world_size=world_size, strategy=strategy)
        submit(sweep, folder / "results", ranks_per_node=world_size // 2, cpus_per_rank=1)
    for way in WAYS:
        results = tmp_path / way / "results"
        wait_until(lambda results=results: is_over(results), 1800, every=3.0)
        (record,) = read_records(results).values()
        check_verdict(way, record)
        failure = failure_of(record)
        if failure.kind in ("Hang", "Unresponsive"):
            (row,) = trial_rows(results)
            assert failure.kind in row["detail"]
            if failure.rank is not None:
                assert failure.host == ("n1" if failure.rank < world_size // 2 else "n2")
