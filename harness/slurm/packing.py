"""Deals blocks to jobs: trials of a block are compared with each other, so they share a job and its nodes.

A job that reaches its time limit comes back and goes on, so no duration is estimated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from harness.launch.lanes import JobRoom, lane_count
from harness.spec.cell import Trial
from harness.spec.cluster import Parallel
from harness.spec.slurm import SlurmOptions

# Of one array: Slurm's MaxArraySize is 1001 unless an administrator raised it.
MAX_ARRAY_JOBS = 1000


@dataclass(frozen=True, kw_only=True)
class JobArray:
    """The jobs of one call of sbatch, which ask for the same resources."""

    nodes: int  # of each job
    ranks_per_node: int
    trial_ids: Sequence[Sequence[str]]  # of each job, in the order in which the trials run

    # The id that sbatch returned. None until then, and for good if whoever submitted was killed
    # before it was written down.
    slurm_id: str | None = None
    # Whether it was given up, because sbatch failed, or never returned and no job of it was in the
    # queue. Should Slurm have received it all the same, its jobs end at once.
    is_abandoned: bool = False

    def job_id(self, index: int) -> str | None:
        """Return the id of the job with this index as squeue prints it, such as 12_3; None if
        unknown.

        submitit submits a single job as a job, not as an array of one, so its id has no index.
        """
        if self.slurm_id is None:
            return None
        if len(self.trial_ids) == 1:
            return self.slurm_id
        return f"{self.slurm_id}_{index}"


def pack(
    blocks: Sequence[Sequence[Trial]], slurm: SlurmOptions, parallel: Parallel = 1
) -> list[JobArray]:
    """Deal blocks round to as many jobs as may run at a time, each on the nodes that it needs.

    A block stays in one job. Blocks that need other numbers of nodes or ranks have other jobs, which
    are in an array of their own.
    """
    blocks_by_shape: dict[tuple[int, int], list[Sequence[Trial]]] = {}
    for block in blocks:
        blocks_by_shape.setdefault(_shape(block, slurm.ranks_per_node, parallel), []).append(block)
    arrays = []
    for (nodes, ranks), blocks_of_shape in blocks_by_shape.items():
        jobs = min(slurm.array_parallelism, len(blocks_of_shape), MAX_ARRAY_JOBS)
        trial_ids = []
        for number in range(jobs):
            trials = chain.from_iterable(blocks_of_shape[number::jobs])
            trial_ids.append([trial.id for trial in trials])
        arrays.append(JobArray(nodes=nodes, ranks_per_node=ranks, trial_ids=trial_ids))
    return arrays


def _shape(block: Sequence[Trial], ranks_per_node: int, parallel: Parallel) -> tuple[int, int]:
    """Return the number of nodes, and of ranks on each, that a block's trials need.

    That is what its largest trial needs, or more for trials that run side by side, which are no more than
    it has. Nodes are filled: five ranks on nodes of four are two nodes with four ranks each, of which
    three stay idle.
    """
    room = JobRoom(ranks_per_node=ranks_per_node)
    lanes = [lane_count(parallel, room.capacity(trial.cell.axes)) for trial in block]
    trials_by_lanes = Counter(lanes)
    ranks = 0
    for trial, count in zip(block, lanes, strict=True):
        side_by_side = min(count, trials_by_lanes[count])
        ranks = max(ranks, trial.cell.axes.world_size * side_by_side)
    nodes = -(-ranks // ranks_per_node)  # rounded up
    return nodes, min(ranks, ranks_per_node)
