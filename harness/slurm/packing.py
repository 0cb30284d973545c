"""Deals blocks to jobs: trials of a block are compared with each other, so they share a job and its nodes.

A job that reaches its time limit comes back and goes on, so no duration is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from harness.spec.cell import Trial
from harness.spec.slurm import SlurmOptions

# Of one array: Slurm's MaxArraySize is 1001 unless an administrator raised it.
MAX_ARRAY_JOBS = 1000


@dataclass(frozen=True, kw_only=True)
class JobArray:
    """The jobs of one call of sbatch, which ask for the same resources."""

    nodes: int  # of each job
    ranks_per_node: int
    trial_ids: Sequence[Sequence[str]]  # of each job, in the order in which the trials run


def pack(blocks: Sequence[Sequence[Trial]], slurm: SlurmOptions) -> list[JobArray]:
    """Deal blocks round to as many jobs as may run at a time, each on the nodes that it needs.

    A block stays in one job. Blocks that need other numbers of nodes or ranks have other jobs, which
    are in an array of their own. Nodes are filled: five ranks on nodes of four are two nodes with four
    ranks each, of which three stay idle. A block without trials is passed over.
    """
    blocks_by_shape: dict[tuple[int, int], list[Sequence[Trial]]] = {}
    for block in filter(None, blocks):
        ranks = max(trial.cell.axes.world_size for trial in block)
        nodes = -(-ranks // slurm.ranks_per_node)  # rounded up
        shape = nodes, min(ranks, slurm.ranks_per_node)
        blocks_by_shape.setdefault(shape, []).append(block)
    arrays = []
    for (nodes, ranks), blocks_of_shape in blocks_by_shape.items():
        jobs = min(slurm.array_parallelism, len(blocks_of_shape), MAX_ARRAY_JOBS)
        trial_ids = []
        for number in range(jobs):
            trials = chain.from_iterable(blocks_of_shape[number::jobs])
            trial_ids.append([trial.id for trial in trials])
        arrays.append(JobArray(nodes=nodes, ranks_per_node=ranks, trial_ids=trial_ids))
    return arrays
