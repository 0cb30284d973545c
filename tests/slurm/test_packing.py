"""Which trials share a job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from harness.slurm.submission import JobArray
from harness.slurm.submit import MAX_ARRAY_JOBS, pack
from harness.sweep.cell import Cell, Trial
from harness.sweep.cluster import SlurmOptions
from tests.factories import make_cell

SINGLE = make_cell()
DDP = make_cell(strategy="ddp", world_size=2)


def make_block(*cells: Cell, seed: int = 0) -> list[Trial]:
    """Return a block of one trial of each cell."""
    return [Trial(cell=cell, seed=seed) for cell in cells]


def pack_blocks(
    blocks: Sequence[Sequence[Trial]],
    *,
    max_parallel_jobs: int = 4,
    ranks_per_node: int = 1,
) -> list[JobArray]:
    """Deal blocks to jobs of a profile."""
    slurm = SlurmOptions(ranks_per_node=ranks_per_node, array_parallelism=max_parallel_jobs)
    return pack(blocks, slurm)


def test_a_block_is_one_job_on_as_many_nodes_as_its_largest_trial_needs() -> None:
    (array,) = pack_blocks([make_block(SINGLE, DDP)])
    assert (array.nodes, array.ranks_per_node) == (2, 1)
    assert array.trial_ids == [[trial.id for trial in make_block(SINGLE, DDP)]]


def test_ranks_fill_a_node_before_they_use_another() -> None:
    five_ranks = make_cell(strategy="ddp", world_size=5)
    (array,) = pack_blocks([make_block(five_ranks)], ranks_per_node=4)
    assert (array.nodes, array.ranks_per_node) == (2, 4)
    (array,) = pack_blocks([make_block(DDP)], ranks_per_node=4)
    assert (array.nodes, array.ranks_per_node) == (1, 2)


def test_there_is_an_array_for_each_number_of_nodes() -> None:
    blocks = [make_block(SINGLE if seed % 2 else DDP, seed=seed) for seed in range(20)]
    arrays = pack_blocks(blocks)
    assert [(array.nodes, len(array.trial_ids)) for array in arrays] == [(2, 4), (1, 4)]


def test_no_array_is_larger_than_slurm_allows() -> None:
    blocks = [make_block(SINGLE, seed=seed) for seed in range(2 * MAX_ARRAY_JOBS + 1)]
    (array,) = pack_blocks(blocks, max_parallel_jobs=2 * MAX_ARRAY_JOBS)
    assert len(array.trial_ids) == MAX_ARRAY_JOBS
    assert sum(map(len, array.trial_ids)) == len(blocks)


def test_blocks_are_dealt_to_as_many_jobs_as_may_run_at_a_time() -> None:
    blocks = [make_block(SINGLE, seed=seed) for seed in range(7)]
    (array,) = pack_blocks(blocks, max_parallel_jobs=3)
    assert [len(ids) for ids in array.trial_ids] == [3, 2, 2]
    assert sorted(chain.from_iterable(array.trial_ids)) == sorted(block[0].id for block in blocks)
