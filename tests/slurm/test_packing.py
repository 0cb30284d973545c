"""Which trials share a job."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from harness.slurm.packing import FILLING, MOST_JOBS, Packing, pack
from harness.spec.cell import Cell, Trial
from tests.factories import make_cell

ONE, TWO = make_cell(), make_cell(strategy="ddp", world_size=2)
HOUR = 3600 / FILLING


def block(*cells: Cell, seed: int = 0) -> list[Trial]:
    return [Trial(cell=cell, seed=seed) for cell in cells]


def packed(
    blocks: Sequence[Sequence[Trial]], *, seconds: float | None = None, parallel: int = 4
) -> Packing:
    known = {} if seconds is None else {cell.id: seconds for cell in (ONE, TWO)}
    return pack(blocks, known, ranks_per_node=1, limit=HOUR, parallel=parallel)


def jobs(found: Packing) -> list[list[str]]:
    return [[trial.id for trial in load.trials] for array in found.arrays for load in array.loads]


def test_a_block_is_one_job_on_nodes_for_its_largest_trial() -> None:
    (array,) = packed([block(ONE, TWO)]).arrays
    assert (array.nodes, array.ranks_per_node) == (2, 1)
    assert [list(load.trials) for load in array.loads] == [block(ONE, TWO)]


def test_ranks_fill_nodes_before_they_take_another() -> None:
    cell = make_cell(strategy="ddp", world_size=5)
    (array,) = pack([block(cell)], {}, ranks_per_node=4, limit=HOUR, parallel=4).arrays
    assert (array.nodes, array.ranks_per_node) == (2, 4)
    (array,) = pack([block(TWO)], {}, ranks_per_node=4, limit=HOUR, parallel=4).arrays
    assert (array.nodes, array.ranks_per_node) == (1, 2)


def test_blocks_whose_time_is_unknown_have_a_job_each() -> None:
    found = packed([block(ONE, seed=seed) for seed in range(9)])
    assert len(jobs(found)) == 9
    assert {load.seconds for load in found.arrays[0].loads} == {None}


def test_short_blocks_share_as_many_jobs_as_run_at_a_time() -> None:
    found = packed([block(ONE, TWO, seed=seed) for seed in range(10)], seconds=10)
    assert sorted(len(job) for job in jobs(found)) == [4, 4, 6, 6]
    assert sum(load.seconds or 0 for load in found.arrays[0].loads) == 200
    assert sorted(functools.reduce(operator.iadd, jobs(found), [])) == sorted(
        trial.id for seed in range(10) for trial in block(ONE, TWO, seed=seed)
    )


def test_no_job_is_longer_than_its_limit() -> None:
    found = packed([block(ONE, seed=seed) for seed in range(10)], seconds=1800, parallel=1)
    assert [load.seconds for load in found.arrays[0].loads] == [3600] * 5
    assert found.remarks == []


def test_a_block_that_is_too_long_is_split_and_says_so() -> None:
    found = packed([block(ONE, TWO, seed=3)], seconds=2000)
    assert [len(job) for job in jobs(found)] == [1, 1]
    (remark,) = found.remarks
    assert "block of seed 3, repeat 0" in remark
    assert "split into 2 jobs" in remark


def test_a_trial_that_is_too_long_has_its_own_job() -> None:
    """It saves at the limit, and goes on when the job is back."""
    found = packed([block(ONE)], seconds=9000)
    assert jobs(found) == [[Trial(cell=ONE, seed=0).id]]
    assert found.remarks == []


def test_arrays_are_as_few_as_there_are_shapes_and_no_larger_than_slurm_takes() -> None:
    blocks = [block(ONE if seed % 2 else TWO, seed=seed) for seed in range(1000)]
    found = packed(blocks)
    assert [(array.nodes, len(array.loads)) for array in found.arrays] == [(2, 500), (1, 500)]
    blocks = [block(ONE, seed=seed) for seed in range(2 * MOST_JOBS + 1)]
    assert [len(array.loads) for array in packed(blocks).arrays] == [MOST_JOBS, MOST_JOBS, 1]
