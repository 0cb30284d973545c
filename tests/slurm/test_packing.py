"""Which trials share a job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest

from harness.slurm.submission import JobArray
from harness.slurm.submit import MAX_ARRAY_JOBS, pack
from harness.sweep.cell import Trial
from harness.sweep.cluster import SlurmOptions
from tests.factories import make_cell


def pack_blocks(world_sizes: Sequence[Sequence[int]], jobs: int, ranks: int) -> list[JobArray]:
    """Deal blocks, each with trials of these numbers of ranks, to jobs; a node has so many ranks."""
    cells = {size: make_cell(strategy="ddp", world_size=size) for size in set(chain(*world_sizes))}
    blocks = []
    for seed, sizes in enumerate(world_sizes):
        blocks.append([Trial(cell=cells[size], seed=seed) for size in sizes])
    arrays = pack(blocks, SlurmOptions(ranks_per_node=ranks, array_parallelism=jobs))
    dealt = chain.from_iterable(chain.from_iterable(array.trial_ids for array in arrays))
    assert sorted(dealt) == sorted(trial.id for block in blocks for trial in block)
    return arrays


@pytest.mark.parametrize(
    ("world_sizes", "ranks", "expected"),
    [
        ([[1, 2]], 1, [(2, 1, [2])]),  # a block stays together, on nodes for its largest trial
        ([[5]], 4, [(2, 4, [1])]),  # ranks fill a node before they use another
        ([[2]], 4, [(1, 2, [1])]),
        ([[2], [1]] * 4, 1, [(2, 1, [2, 1, 1]), (1, 1, [2, 1, 1])]),  # an array for each shape
        ([[1]] * 7, 1, [(1, 1, [3, 2, 2])]),  # as many jobs as may run at a time
    ],
)
def test_blocks_are_dealt_to_three_jobs_of_each_shape(
    world_sizes: Sequence[Sequence[int]], ranks: int, expected: list[tuple[int, int, list[int]]]
) -> None:
    found = []
    for array in pack_blocks(world_sizes, 3, ranks):
        found.append((array.nodes, array.ranks_per_node, list(map(len, array.trial_ids))))
    assert found == expected


def test_no_array_is_larger_than_slurm_allows() -> None:
    (array,) = pack_blocks([[1]] * (MAX_ARRAY_JOBS + 1), 2 * MAX_ARRAY_JOBS, 1)
    assert len(array.trial_ids) == MAX_ARRAY_JOBS
