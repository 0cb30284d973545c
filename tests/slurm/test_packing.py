"""Which trials share a job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.slurm.packing import FILL_FRACTION, MAX_ARRAY_JOBS, Packing, pack
from harness.spec.cell import Cell, Trial
from harness.spec.cluster import Parallel
from tests.factories import make_cell

SINGLE = make_cell()
DDP = make_cell(strategy="ddp", world_size=2)
LIMIT = 3600 / FILL_FRACTION  # seconds, of which estimates may fill an hour


def make_block(*cells: Cell, seed: int = 0) -> list[Trial]:
    """Return a block of one trial of each cell."""
    return [Trial(cell=cell, seed=seed) for cell in cells]


def pack_blocks(
    blocks: Sequence[Sequence[Trial]],
    *,
    seconds: float | None = None,
    max_parallel_jobs: int = 4,
    ranks_per_node: int = 1,
    parallel: Parallel = 1,
) -> Packing:
    """Pack blocks of trials that each take so many seconds, or take nobody knows how long."""
    estimates = {} if seconds is None else {SINGLE.id: seconds, DDP.id: seconds}
    return pack(
        blocks,
        estimates,
        ranks_per_node=ranks_per_node,
        limit_seconds=LIMIT,
        max_parallel_jobs=max_parallel_jobs,
        parallel=parallel,
    )


def trial_ids(packing: Packing) -> list[list[str]]:
    """Return the trials of each job."""
    return [list(ids) for array in packing.arrays for ids in array.trial_ids]


def test_a_block_is_one_job_on_as_many_nodes_as_its_largest_trial_needs() -> None:
    (array,) = pack_blocks([make_block(SINGLE, DDP)]).arrays
    assert (array.nodes, array.ranks_per_node) == (2, 1)
    assert array.trial_ids == [[trial.id for trial in make_block(SINGLE, DDP)]]


def test_ranks_fill_a_node_before_they_use_another() -> None:
    five_ranks = make_cell(strategy="ddp", world_size=5)
    (array,) = pack_blocks([make_block(five_ranks)], ranks_per_node=4).arrays
    assert (array.nodes, array.ranks_per_node) == (2, 4)
    (array,) = pack_blocks([make_block(DDP)], ranks_per_node=4).arrays
    assert (array.nodes, array.ranks_per_node) == (1, 2)


@pytest.mark.parametrize(
    ("cells", "parallel", "ranks"),
    [
        ([SINGLE] * 6, "auto", 4),  # the node is full
        ([SINGLE] * 3, "auto", 3),  # no lane without a trial
        ([SINGLE] * 6, 2, 2),
        ([SINGLE, SINGLE, DDP], "auto", 2),
        ([DDP, DDP], 3, 4),
    ],
)
def test_a_job_has_room_for_trials_side_by_side(
    cells: list[Cell], parallel: Parallel, ranks: int
) -> None:
    block = [Trial(cell=cell, seed=0, repeat=number) for number, cell in enumerate(cells)]
    (array,) = pack_blocks([block], ranks_per_node=4, parallel=parallel).arrays
    assert (array.nodes, array.ranks_per_node) == (1, ranks)


def test_trials_side_by_side_share_the_time_of_their_job() -> None:
    block = [Trial(cell=SINGLE, seed=0, repeat=number) for number in range(4)]
    packing = pack_blocks([block], seconds=1800, ranks_per_node=4, parallel="auto")
    assert packing.arrays[0].estimated_seconds == [1800]


def test_blocks_of_unknown_duration_have_a_job_each() -> None:
    packing = pack_blocks([make_block(SINGLE, seed=seed) for seed in range(9)])
    assert len(trial_ids(packing)) == 9
    assert set(packing.arrays[0].estimated_seconds) == {None}


def test_short_blocks_share_as_many_jobs_as_may_run_at_a_time() -> None:
    blocks = [make_block(SINGLE, DDP, seed=seed) for seed in range(10)]
    packing = pack_blocks(blocks, seconds=10)
    jobs = trial_ids(packing)
    assert sorted(len(job) for job in jobs) == [4, 4, 6, 6]
    assert sum(seconds or 0 for seconds in packing.arrays[0].estimated_seconds) == 200
    packed = sorted(trial_id for job in jobs for trial_id in job)
    assert packed == sorted(trial.id for block in blocks for trial in block)


def test_no_job_exceeds_the_limit() -> None:
    blocks = [make_block(SINGLE, seed=seed) for seed in range(10)]
    packing = pack_blocks(blocks, seconds=1800, max_parallel_jobs=1)
    assert packing.arrays[0].estimated_seconds == [3600] * 5
    assert packing.remarks == []


def test_a_block_that_exceeds_the_limit_is_split_with_a_remark() -> None:
    packing = pack_blocks([make_block(SINGLE, DDP, seed=3)], seconds=2000)
    assert [len(job) for job in trial_ids(packing)] == [1, 1]
    (remark,) = packing.remarks
    assert "block of seed 3, repeat 0" in remark
    assert "split into 2 jobs" in remark


def test_a_trial_that_exceeds_the_limit_has_its_own_job() -> None:
    """It saves at the limit, and continues when the job is back."""
    packing = pack_blocks([make_block(SINGLE)], seconds=9000)
    assert trial_ids(packing) == [[Trial(cell=SINGLE, seed=0).id]]
    assert packing.remarks == []


def test_there_is_an_array_for_each_number_of_nodes() -> None:
    blocks = [make_block(SINGLE if seed % 2 else DDP, seed=seed) for seed in range(1000)]
    arrays = pack_blocks(blocks).arrays
    assert [(array.nodes, len(array.trial_ids)) for array in arrays] == [(2, 500), (1, 500)]


def test_no_array_is_larger_than_slurm_allows() -> None:
    blocks = [make_block(SINGLE, seed=seed) for seed in range(2 * MAX_ARRAY_JOBS + 1)]
    arrays = pack_blocks(blocks).arrays
    assert [len(array.trial_ids) for array in arrays] == [MAX_ARRAY_JOBS, MAX_ARRAY_JOBS, 1]


def test_cells_that_were_never_measured_are_taken_to_need_what_the_measured_ones_do() -> None:
    """So a block of which some trials are done is split, however many are not."""
    cells = [make_cell(num_workers=number) for number in range(9)]
    estimates = {cells[0].id: 1000.0, cells[1].id: 1400.0}
    packing = pack(
        [make_block(*cells)], estimates, ranks_per_node=1, limit_seconds=LIMIT, max_parallel_jobs=4
    )
    assert [len(job) for job in trial_ids(packing)] == [3, 3, 3]
    assert "7 cells never measured" in packing.remarks[0]
    assert "1,200 s a trial" in packing.remarks[0]


def test_the_remark_says_what_cells_are_taken_to_need() -> None:
    """Not what those of another workload do, or cells that are not submitted."""
    measured, other, unmeasured = make_cell(num_workers=1), make_cell("cnn"), make_cell()
    estimates = {measured.id: 10.0, other.id: 1000.0, make_cell(num_workers=2).id: 5000.0}
    blocks = [make_block(cell) for cell in (measured, other, unmeasured)]
    packing = pack(blocks, estimates, ranks_per_node=1, limit_seconds=LIMIT, max_parallel_jobs=4)
    assert "1 cell never measured" in packing.remarks[0]
    assert "10 s a trial" in packing.remarks[0]


def test_a_block_that_was_never_measured_and_hardly_fits_is_warned_of() -> None:
    cells = [make_cell(num_workers=number) for number in range(9)]
    assert pack_blocks([make_block(*cells)]).remarks == []
    many = [make_cell(batch_size=number + 1) for number in range(200)]
    (remark,) = pack_blocks([make_block(*many), make_block(*many, seed=1)]).remarks
    assert remark.startswith("200 trials that were never measured share a job of 4,000 s, which is")


def test_parts_of_a_block_ask_for_the_room_that_their_own_trials_need() -> None:
    """Of twelve trials of 3,000 s, eight at a time, nine fit into a job; the others run side by side."""
    cells = [make_cell(batch_size=8 * number) for number in range(1, 13)]
    assert parts_of(cells, 3000) == [(8, 9, 3375), (3, 3, 3000)]


def test_trials_of_another_size_wait_for_those_before_them() -> None:
    """Eight trials of a rank run side by side, and then four of two ranks, as long again."""
    singles = [make_cell(batch_size=8 * number) for number in range(1, 9)]
    pairs = [
        make_cell(batch_size=8 * number, strategy="ddp", world_size=2) for number in range(1, 5)
    ]
    assert parts_of([*singles, *pairs], 2800) == [(8, 8, 2800), (8, 4, 2800)]


def parts_of(cells: Sequence[Cell], seconds: float) -> list[tuple[int, int, float | None]]:
    """Return the ranks, the trials and the seconds of each job of a block on nodes of eight ranks."""
    packing = pack(
        [make_block(*cells)],
        {cell.id: seconds for cell in cells},
        ranks_per_node=8,
        limit_seconds=LIMIT,
        max_parallel_jobs=4,
        parallel="auto",
    )
    return [
        (array.ranks_per_node, len(trial_ids), job_seconds)
        for array in packing.arrays
        for trial_ids, job_seconds in zip(array.trial_ids, array.estimated_seconds, strict=True)
    ]
