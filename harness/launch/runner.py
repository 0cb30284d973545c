"""Runs trials, each in fresh processes and with one record, and again if an attempt does not count."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import time
from typing import Any

from harness.core.errors import HarnessError
from harness.core.paths import SweepFolder, TrialFolder
from harness.hardware import machine
from harness.launch.attempts import begin_attempt, end_attempt, failures_before
from harness.launch.interrupt import StopRequest
from harness.launch.lanes import Group, arrange
from harness.launch.launcher import Launcher
from harness.launch.provenance import Provenance, describe_launch
from harness.launch.ranks import run_ranks
from harness.launch.retries import runs_again
from harness.launch.stack import ReadyStack
from harness.launch.watch import POLL
from harness.records.assignment import Assignment, Lane, read_progress_file, write_assignment
from harness.records.differences import run_settings
from harness.records.files import write_record
from harness.records.record import Record
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep
from workloads.catalog import heavy_modules


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
        for group in arrange(pending, self.profile):
            yield from self._run_group(group, fresh=fresh)

    def _run_group(self, group: Group, *, fresh: bool) -> Iterator[Record]:
        """Run trials, as many at a time as there are lanes, and give the record of each."""
        begun: set[str] = set()  # ids
        queue = list(group.trials)
        free_lanes = list(group.lanes)
        running: dict[Life, tuple[Trial, Lane]] = {}
        error: HarnessError | None = None
        try:
            while running or (queue and not self.stop.reason()):
                while queue and free_lanes and not self.stop.reason():
                    trial, lane = queue.pop(0), free_lanes.pop(0)
                    self.listener.on_trial_start(trial)
                    is_fresh = fresh and trial.id not in begun
                    begun.add(trial.id)
                    running[self._run_with_resumes(trial, lane, fresh=is_fresh)] = trial, lane
                for life, (trial, lane) in list(running.items()):
                    try:
                        next(life)
                        continue
                    except HarnessError as problem:
                        error = error or problem
                        self.stop.note(f"{trial.id}: {problem}")
                        del running[life]
                        continue
                    except StopIteration as end:
                        record: Record = end.value
                    del running[life]
                    free_lanes.append(lane)
                    self.listener.on_trial_end(record, self.folder.trial_folder(trial.id))
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
            if (other.seed, other.repeat) == (trial.seed, trial.repeat):
                end = position
        queue.insert(end, trial)

    def _run_with_resumes(self, trial: Trial, lane: Lane, *, fresh: bool) -> Life:
        """Run a trial, and resume it from its checkpoint while it is interrupted.

        Not if this process is to stop: then the checkpoint is for whoever runs the trial next.
        """
        record = yield from self._run(trial, lane, fresh=fresh)
        for _ in range(self.resumes):
            if record.status != "interrupted" or self.stop.reason():
                break
            record = yield from self._run(trial, lane, fresh=False)
        return record

    def _run(self, trial: Trial, lane: Lane, *, fresh: bool) -> Life:
        """Make an attempt at a trial: start its ranks, wait until they have ended, and write the record.

        The ranks are gone when this returns or is closed, however they ended. Raises HarnessError
        if another job has begun the same trial.
        """
        folder = begin_attempt(self.folder.trial_folder(trial.id), fresh=fresh)
        assignment = self._assignment(trial, folder.attempt, lane)
        write_assignment(folder.assignment_path, assignment)
        cell, launcher = trial.cell, self.launcher
        if cell.axes.stack is not None:
            launcher = launcher.in_stack(self.stacks[cell.axes.stack])
        ended = yield from run_ranks(
            launcher,
            folder,
            cell.axes.world_size,
            launcher.variables(cell.axes.num_threads, cell.environment),
            self.sweep.timeout,
            preload=heavy_modules(cell.workload.uses),
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

    def _assignment(self, trial: Trial, attempt: int, lane: Lane) -> Assignment:
        """Return what the ranks of a trial read before anything else."""
        sweep, launched, workload = self.sweep, self.provenance, trial.cell.workload
        stack = self.stacks.get(trial.cell.axes.stack or "")
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
