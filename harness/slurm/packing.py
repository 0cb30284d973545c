"""Packing: which trials share a job. Pure functions of blocks and of estimated durations.

Three aims conflict. Trials of a block are compared with each other, so they should run in one job,
on the same nodes, one shortly after the other. A job must end before its time limit. And the
cluster should run as many jobs at once as the profile allows, without a wait in the queue for every
single block. So blocks stay whole where they fit into a job, and are merged into long jobs only as
far as the others are kept busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

from harness.core.text import counted
from harness.launch.lanes import JobRoom, lane_count
from harness.spec.cell import Trial
from harness.spec.cluster import Parallel

# Of one array: Slurm's MaxArraySize is 1001 unless an administrator raised it.
MAX_ARRAY_JOBS = 1000
FILL_FRACTION = 0.9  # of a job's time limit that estimates may fill; trials may take longer
# Seconds a trial, of a job whose trials were never measured, below which the user is warned.
TIGHT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class PackedJob:
    """The trials of one job, block after block, in the order in which they run."""

    trials: Sequence[Trial]
    estimated_seconds: float | None  # None where the time of a trial is unknown


@dataclass(frozen=True, kw_only=True)
class JobArray:
    """The jobs of one call of sbatch, which ask for the same resources."""

    nodes: int  # of each job
    ranks_per_node: int
    trial_ids: Sequence[Sequence[str]]  # of each job, in the order in which the trials run
    estimated_seconds: Sequence[float | None]  # of each job; None where it can't be estimated

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


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The arrays to submit, and what the user should know about them."""

    arrays: Sequence[JobArray]
    remarks: Sequence[str]


def pack(
    blocks: Sequence[Sequence[Trial]],
    estimates: Mapping[str, float],
    *,
    ranks_per_node: int,
    limit_seconds: float,
    max_parallel_jobs: int,
    parallel: Parallel = 1,
) -> Packing:
    """Pack blocks into as few jobs as still keep the cluster busy.

    A block stays in one job, on as many nodes as its largest trial needs, unless it is estimated to
    exceed the job's limit; then it is split, with a remark. Blocks are spread over as many jobs as
    may run at a time, or over more if those would take too long. A block whose duration is unknown
    has a job to itself.

    `estimates` are seconds by cell id. Where some cells were measured, the others are taken to need
    what those do on average, with a remark. `limit_seconds` is the time limit of a job,
    `max_parallel_jobs` the number of jobs of an array that Slurm runs at a time. `parallel` is the
    profile's: trials of a job that run side by side share its time.
    """
    usable_seconds = limit_seconds * FILL_FRACTION
    estimates, remarks = _complete_estimates(blocks, estimates)
    if not estimates:
        remarks += _unmeasured_remarks(blocks, limit_seconds)
    jobs_by_shape: dict[tuple[int, int], list[PackedJob]] = {}  # by (nodes, ranks of a node)
    room = JobRoom(ranks_per_node=ranks_per_node)
    for block in blocks:
        # How many trials of the size of each may run at a time on a node, by its id.
        lanes = {trial.id: lane_count(parallel, room.capacity(trial.cell.axes)) for trial in block}
        parts = _split_block(block, estimates, usable_seconds, lanes)
        if len(parts) > 1:
            name = f"block of seed {block[0].seed}, repeat {block[0].repeat}"
            remarks.append(
                f"{name} takes about {_total_seconds(parts):,.0f} s and a job has {usable_seconds:,.0f} s:"
                f" split into {len(parts)} jobs, so its trials no longer run under the same conditions"
            )
        for part in parts:
            shape = _shape(part, ranks_per_node, lanes)
            jobs_by_shape.setdefault(shape, []).append(part)
    arrays = []
    for (nodes, ranks), jobs in jobs_by_shape.items():
        merged = _merge(jobs, usable_seconds, max_parallel_jobs)
        for start in range(0, len(merged), MAX_ARRAY_JOBS):
            jobs_of_array = merged[start : start + MAX_ARRAY_JOBS]
            trial_ids = [[trial.id for trial in job.trials] for job in jobs_of_array]
            seconds = [job.estimated_seconds for job in jobs_of_array]
            array = JobArray(
                nodes=nodes, ranks_per_node=ranks, trial_ids=trial_ids, estimated_seconds=seconds
            )
            arrays.append(array)
    return Packing(arrays=arrays, remarks=remarks)


def _complete_estimates(
    blocks: Sequence[Sequence[Trial]], estimates: Mapping[str, float]
) -> tuple[Mapping[str, float], list[str]]:
    """Return estimates for all cells if there are any, and a remark on those that are guesses.

    A cell that was never measured is taken to need what the measured ones of its workload do on
    average, or all measured ones.
    """
    unmeasured: dict[str, str] = {}  # label of the workload by cell id
    measured: dict[str, list[float]] = {}  # seconds by label of the workload
    for trial in chain.from_iterable(blocks):
        label = trial.cell.workload.label
        if trial.cell.id not in estimates:
            unmeasured[trial.cell.id] = label
        else:
            measured.setdefault(label, []).append(estimates[trial.cell.id])
    if not unmeasured or not estimates:
        return estimates, []
    mean_seconds = fmean(estimates.values())
    completed = dict(estimates)
    for cell_id, label in unmeasured.items():
        completed[cell_id] = fmean(measured[label]) if label in measured else mean_seconds
    taken_seconds = fmean(completed[cell_id] for cell_id in unmeasured)
    remark = (
        f"{counted(len(unmeasured), 'cell')} never measured: taken to need what the measured ones"
        f" do, {taken_seconds:,.0f} s a trial on average"
    )
    return completed, [remark]


def _unmeasured_remarks(blocks: Sequence[Sequence[Trial]], limit_seconds: float) -> list[str]:
    """Return a remark if the largest of blocks that were never measured hardly fits into a job."""
    largest = max((len(block) for block in blocks), default=0)
    if largest < 2 or limit_seconds / largest >= TIGHT_SECONDS:
        return []
    return [
        f"{largest} trials that were never measured share a job of {limit_seconds:,.0f} s, which is"
        f" {limit_seconds / largest:.3g} s each; the job comes back after its limit as long as trials"
        " end in it. To have more jobs share them, cancel the sweep once a few trials are done and"
        " submit it again: what they took then decides"
    ]


def _shape(job: PackedJob, ranks_per_node: int, lanes: Mapping[str, int]) -> tuple[int, int]:
    """Return the number of nodes, and of ranks on each, that the job's trials need.

    That is what its largest trial needs, or more for trials that run side by side, which are no more than
    it has. Nodes are filled: five ranks on nodes of four are two nodes with four ranks each, of which
    three stay idle.
    """
    trials_by_lanes = Counter(lanes[trial.id] for trial in job.trials)
    ranks = 0
    for trial in job.trials:
        side_by_side = min(lanes[trial.id], trials_by_lanes[lanes[trial.id]])
        ranks = max(ranks, trial.cell.axes.world_size * side_by_side)
    nodes = -(-ranks // ranks_per_node)  # rounded up
    return nodes, min(ranks, ranks_per_node)


@dataclass
class _Load:
    """How long trials take that run one after the other, those of one size side by side."""

    # By how many of a size may run at a time: how many there are, and their seconds.
    counts: dict[int, int] = field(default_factory=dict)
    sums: dict[int, float] = field(default_factory=dict)
    longest: float = 0.0

    def with_trial(self, lanes: int, seconds: float) -> _Load:
        """Return the load with one more trial."""
        counts = self.counts | {lanes: self.counts.get(lanes, 0) + 1}
        sums = self.sums | {lanes: self.sums.get(lanes, 0.0) + seconds}
        return _Load(counts=counts, sums=sums, longest=max(self.longest, seconds))

    @property
    def seconds(self) -> float:
        """Return the seconds of all: no less than those of the longest trial."""
        shared = [self.sums[lanes] / min(lanes, count) for lanes, count in self.counts.items()]
        return max(self.longest, sum(shared))


def _split_block(
    block: Sequence[Trial],
    estimates: Mapping[str, float],
    usable_seconds: float,
    lanes: Mapping[str, int],
) -> list[PackedJob]:
    """Return the block as one job, or as several that each fit into `usable_seconds`.

    A trial that alone exceeds the limit gets a separate job: it saves at the limit, and
    continues when the job is back. A block with a trial of unknown duration is not split.
    """
    if any(trial.cell.id not in estimates for trial in block):
        return [PackedJob(trials=block, estimated_seconds=None)]
    parts: list[list[Trial]] = [[]]
    loads = [_Load()]
    for trial in block:
        seconds = estimates[trial.cell.id]
        load = loads[-1].with_trial(lanes[trial.id], seconds)
        if parts[-1] and load.seconds > usable_seconds:
            parts.append([])
            loads.append(_Load())
            load = loads[-1].with_trial(lanes[trial.id], seconds)
        parts[-1].append(trial)
        loads[-1] = load
    return [
        PackedJob(trials=trials, estimated_seconds=load.seconds)
        for trials, load in zip(parts, loads, strict=True)
    ]


def _merge(
    jobs: Sequence[PackedJob], usable_seconds: float, max_parallel_jobs: int
) -> list[PackedJob]:
    """Merge jobs of known duration until there are as many as may run at a time.

    Each job goes to the group that is shortest so far; it opens a further group where none has room
    for it. Jobs of unknown duration stay as they are, at the end.
    """
    groups: list[list[PackedJob]] = [[] for _ in range(max_parallel_jobs)]
    unknown = []
    for job in jobs:
        if job.estimated_seconds is None:
            unknown.append(job)
            continue
        shortest = min(groups, key=_total_seconds)
        if shortest and _total_seconds([*shortest, job]) > usable_seconds:
            groups.append([job])
        else:
            shortest.append(job)
    merged = []
    for group in groups:
        if group:
            trials = [trial for job in group for trial in job.trials]
            merged.append(PackedJob(trials=trials, estimated_seconds=_total_seconds(group)))
    return merged + unknown


def _total_seconds(jobs: Sequence[PackedJob]) -> float:
    """Return the estimated seconds of jobs whose durations are known."""
    return sum(job.estimated_seconds or 0.0 for job in jobs)
