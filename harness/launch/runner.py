"""Runs trials, each in fresh processes and with one record, and again if an attempt does not count.

Trials that run side by side slow each other down, so what counts is that all trials of a comparison have as
many beside them. Each lane of a machine has its own CPU cores and GPUs, and all lanes have the same size,
however many trials are left for them. As soon as a lane is free, the next trial begins in it. Trials that
need another number of lanes wait until those have ended.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import time
from typing import Any

from harness.core.cores import SYSTEM, core_position, usable_cores
from harness.core.errors import HarnessError
from harness.core.paths import SweepFolder, TrialFolder
from harness.hardware import machine
from harness.launch.attempts import begin_attempt, end_attempt, failures_before, runs_again
from harness.launch.interrupt import StopRequest
from harness.launch.launcher import Launcher, RankProgram
from harness.launch.ranks import POLL, run_ranks
from harness.launch.stack import Provenance, ReadyStack, describe_launch
from harness.records.assignment import Assignment, Lane, read_progress_file, write_assignment
from harness.records.differences import run_settings
from harness.records.files import write_record
from harness.records.record import Record
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile, available_slots
from harness.sweep.sweep import Sweep


class TrialListener:
    """Shows somebody what happens to trials, or delivers it somewhere; this one does neither.

    All methods are called in the process that runs the trials, between two looks at the running
    ones: what they do must not take long.
    """

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        """`pending` trials are going to run; `finished` ones will not run again."""

    def on_trial_start(self, trial: Trial) -> None:
        """The ranks of a trial are going to be started."""

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        """A trial still runs; `progress` is empty before its first step."""

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """A trial has ended, and its record is on disk."""

    def on_message(self, text: str) -> None:
        """The user should know why nothing seems to happen; `text` is a sentence."""


# The life of a trial, from the start of its ranks to its record, which it returns. It yields
# between two looks at its ranks, so that the lives of several trials can take turns.
Life = Generator[None, None, Record]


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs trials of one sweep, one after the other, or side by side in the lanes of a machine.

    An attempt is one start of a trial's ranks. The record of a trial is that of its last attempt, which also
    says why the earlier ones failed.
    """

    sweep: Sweep
    profile: Profile
    folder: SweepFolder
    launcher: Launcher
    listener: TrialListener
    stop: StopRequest  # why running trials are to save their state, and why no other one begins
    # Attempts that began before do not count when a trial is to run again, seconds since the epoch.
    since: float = field(default_factory=time)
    poll_seconds: float = POLL
    resumes: int = 10  # how often an interrupted trial resumes at once
    stacks: Mapping[str, ReadyStack] = field(default_factory=dict)  # by name

    @cached_property
    def provenance(self) -> Provenance:
        """Return what trials are launched from.

        It is found out once and handed to the ranks, which then need no git.
        """
        return describe_launch(self.sweep, self.folder, self.stacks.values())

    def run(self, pending: Sequence[Trial], *, fresh: bool = False) -> Iterator[Record]:
        """Give each trial's record once it is on disk and the listener has been called.

        A trial whose measurement is invalid runs again at the end of its block, as often as the
        profile says, and then gives another record. One whose ranks were interrupted resumes at
        once. `fresh` removes what earlier attempts left. Whoever stops to iterate ends all trials
        that still run, and those leave no record. Raises HarnessError where a trial can't be run or
        recorded, once the trials in other lanes have saved their state.
        """
        for lanes, trials in arrange(pending, self.profile):
            yield from self._run_group(list(lanes), list(trials), fresh=fresh)

    def _run_group(
        self, free_lanes: list[Lane], queue: list[Trial], *, fresh: bool
    ) -> Iterator[Record]:
        """Run trials, as many at a time as there are lanes, and give the record of each."""
        begun: set[str] = set()  # ids
        running: dict[Life, Lane] = {}
        error: HarnessError | None = None
        try:
            while running or (queue and not self.stop.reason()):
                while queue and free_lanes and not self.stop.reason():
                    trial = queue.pop(0)
                    lane = free_lanes.pop(0)
                    self.listener.on_trial_start(trial)
                    is_fresh = fresh and trial.id not in begun
                    begun.add(trial.id)
                    life = self._run(trial, lane, fresh=is_fresh)
                    running[life] = lane
                for life in list(running):
                    try:
                        next(life)
                        continue
                    except StopIteration as end:
                        record: Record = end.value
                        free_lanes.append(running.pop(life))
                    except HarnessError as problem:
                        error = error or problem
                        self.stop.note(str(problem))
                        del running[life]
                        continue
                    self.listener.on_trial_end(record, self.folder.trial_folder(record.trial.id))
                    yield record
                    if self.runs_again(record):
                        self._queue_again(record, queue)
        finally:
            for life in running:
                life.close()
        if error is not None:
            raise error

    def runs_again(self, record: Record) -> bool:
        """Return whether a trial runs again that has left this record."""
        trial_folder = self.folder.trial_folder(record.trial.id)
        return runs_again(record, trial_folder, self.since, self.profile.validity.reruns)

    def _queue_again(self, record: Record, queue: list[Trial]) -> None:
        """Put a trial into the queue, after the last one of its block.

        A block has a trial of every cell, all with the same seed and repeat.
        """
        trial = record.trial
        if record.status == "failed":
            self.listener.on_message(f"runs again: {trial.cell.label}, {trial.id}")
        end = 0
        for position, other in enumerate(queue, start=1):
            if other.seed == trial.seed and other.repeat == trial.repeat:
                end = position
        queue.insert(end, trial)

    def _run(self, trial: Trial, lane: Lane, *, fresh: bool) -> Life:
        """Run a trial, and resume it from its checkpoint while it is interrupted.

        Not if this process is to stop: then the checkpoint is for whoever runs the trial next.
        """
        record = yield from self._attempt(trial, lane, fresh=fresh)
        for _ in range(self.resumes):
            if record.status != "interrupted" or self.stop.reason():
                break
            record = yield from self._attempt(trial, lane, fresh=False)
        return record

    def _attempt(self, trial: Trial, lane: Lane, *, fresh: bool) -> Life:
        """Make an attempt at a trial: start its ranks, wait until they have ended, and write the record.

        The ranks are gone when this returns or is closed, however they ended. Raises HarnessError
        if another job has begun the same trial.
        """
        folder = begin_attempt(self.folder.trial_folder(trial.id), fresh=fresh)
        stack = self.stacks.get(trial.cell.axes.stack or "")
        assignment = self._assignment(trial, folder.attempt, lane, stack)
        write_assignment(folder.assignment_path, assignment)
        ended = yield from run_ranks(
            self.launcher,
            RankProgram.of(trial.cell, folder, stack),
            self.sweep.timeout,
            stop_reason=self.stop.reason,
            poll_seconds=self.poll_seconds / lane.count,
            on_poll=lambda: self.listener.on_trial_progress(
                trial, read_progress_file(folder.progress_path)
            ),
        )
        # Imported only now, because a process that only looks at trials needs no NumPy.
        from harness.launch.assemble import assemble

        record = assemble(
            self.sweep.name,
            assignment,
            ended,
            self.profile.validity,
            previous_failures=failures_before(folder),
            peaks=machine.read_all(self.folder.results.peaks),
            settings=run_settings(self.sweep, self.profile),
        )
        reason = self.stop.reason()
        if record.status == "interrupted" and record.failure is not None and reason:
            # Ranks know only that a signal came, not why it was sent.
            failure = replace(record.failure, message=f"{reason}: {record.failure.message}")
            record = replace(record, failure=failure)
        if self.folder.trial_folder(trial.id) != folder:
            raise HarnessError(f"{folder.path}: another job has taken it over")
        write_record(folder.record_path, record)
        end_attempt(folder, record)
        return record

    def _assignment(
        self, trial: Trial, attempt: int, lane: Lane, stack: ReadyStack | None
    ) -> Assignment:
        """Return what the ranks of a trial read before anything else."""
        sweep, launched, workload = self.sweep, self.provenance, trial.cell.workload
        return Assignment(
            trial=trial,
            base_folder=str(sweep.base_folder),
            checkpoint="best" if sweep.checkpoint.best else "none",
            saves=sweep.checkpoint.of(self.profile.launcher, is_script=workload.is_script),
            profile=sweep.profile,
            device=self.profile.device,
            attempt=attempt,
            lane=lane,
            code=launched.code,
            repository=launched.repository,
            installed=launched.installed if stack is None else stack.installed,
            packages=launched.packages.get(workload.uses, ()),
        )


# Lanes


def arrange(
    trials: Sequence[Trial], profile: Profile
) -> list[tuple[Sequence[Lane], Sequence[Trial]]]:
    """Return trials with the lanes that they share, in the order in which they begin.

    Those that need the same number of lanes share them, the fewest lanes first. Without a number in the
    profile, that is as many as have GPUs or cores of their own.
    """
    if profile.parallel == 1:  # also under Slurm, where this is not the machine of the ranks
        return [([Lane()], trials)]
    slots, _ = available_slots(profile)
    gpus = range(profile.gpus)
    cores = neighboring_cores(usable_cores())
    by_count: dict[int, list[Trial]] = {}
    for trial in trials:
        axes = trial.cell.axes
        devices = len(gpus)
        needed = axes.world_size
        if not gpus:
            devices, needed = len(cores), needed * (axes.num_threads + axes.num_workers)
        count = min(slots // axes.world_size, devices // needed)
        if profile.parallel != "auto":
            count = min(profile.parallel, count)
        by_count.setdefault(max(1, count), []).append(trial)
    return [(make_lanes(count, cores, gpus), by_count[count]) for count in sorted(by_count)]


def make_lanes(count: int, all_cores: Sequence[int], all_gpus: Sequence[int]) -> list[Lane]:
    """Return lanes with equal shares of cores, of which neighbors share a physical one, and of GPUs."""
    if count == 1:
        return [Lane()]
    lanes = []
    cores_each, gpus_each = len(all_cores) // count, len(all_gpus) // count
    for number in range(count):
        cores = sorted(all_cores[number * cores_each :][:cores_each])
        gpus = all_gpus[number * gpus_each :][:gpus_each]
        lanes.append(Lane(number=number, count=count, cores=tuple(cores), gpus=tuple(gpus)))
    return lanes


def neighboring_cores(cores: Iterable[int], system: Path = SYSTEM) -> list[int]:
    """Return cores in an order in which the threads of a physical core are neighbors.

    Linux often numbers the second threads of all cores after the first ones. Lanes that share a
    physical core would take its caches and units from each other. Where Linux does not say, the order is
    that of their numbers.
    """
    cores = sorted(cores)
    try:
        return sorted(cores, key=lambda core: core_position(core, system))
    except OSError:
        return cores
