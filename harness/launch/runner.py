"""Runs trials, each in fresh processes and with one record, and again if an attempt does not count."""

from __future__ import annotations

import time
from collections.abc import (
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from harness.core.control_groups import oom_kills
from harness.core.errors import HarnessError
from harness.core.paths import SweepFolder, TrialFolder
from harness.hardware.machine import Machine
from harness.launch.attempts import begin_attempt, continued_since, end_attempt, failures_before
from harness.launch.lanes import Arrange, Group, one_by_one
from harness.launch.launcher import Launcher, describe_end
from harness.launch.provenance import Provenance, describe_launch, write_once
from harness.launch.retries import runs_again
from harness.launch.stack import ReadyStack
from harness.launch.watch import POLL, file_size, launcher_output, watch
from harness.records.assignment import Assignment, Lane, write_assignment
from harness.records.files import write_record
from harness.records.record import Failure, Record, RunSettings
from harness.records.running import read_progress_file
from harness.records.settings import run_settings
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
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


class StopRequest:
    """Why running trials are to save their state and stop: what `source` says, or was noted here."""

    def __init__(self, source: Callable[[], str | None]) -> None:
        self._source = source
        self._noted: str | None = None

    def note(self, reason: str) -> None:
        """Have the trials stop; the reason that was noted before any other counts."""
        self._noted = self._noted or reason

    def reason(self) -> str | None:
        """Return why to stop, None as long as there is no reason."""
        return self._source() or self._noted


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
    peaks: Mapping[str, Machine]  # by the machine's key
    arrange: Arrange = one_by_one  # says which trials run side by side
    # Attempts that began before do not count when a trial is to run again, seconds since the epoch.
    since: float = field(default_factory=time.time)
    poll_seconds: float = POLL
    resumes: int = 10  # how often an interrupted trial resumes at once
    stacks: Mapping[str, ReadyStack] = field(default_factory=dict)  # by name
    stop: StopRequest  # why running trials are to save their state, and why no other one begins

    @cached_property
    def provenance(self) -> Provenance:
        """Return what trials are launched from.

        It is found out once and handed to the ranks, which then need no git.
        """
        for stack in self.stacks.values():
            write_once(self.folder.packages_path(stack.installed), stack.pins)
        return describe_launch(self.sweep, self.folder)

    @cached_property
    def settings(self) -> RunSettings:
        """Return the settings that the records of all trials have."""
        return run_settings(self.sweep, self.profile)

    def run(self, pending: Sequence[Trial], *, fresh: bool = False) -> Iterator[Record]:
        """Give each trial's record once it is on disk and the listener has been called.

        A trial whose measurement is invalid runs again at the end of its block, as often as the
        profile says, and then gives another record. One whose ranks were interrupted resumes at
        once. `fresh` removes what earlier attempts left. Whoever stops to iterate ends all trials
        that still run, and those leave no record. Raises HarnessError where a trial can't be run or
        recorded, once the trials in other lanes have saved their state.
        """
        for group in self.arrange(pending):
            yield from self._run_group(group, fresh=fresh)

    def _run_group(self, group: Group, *, fresh: bool) -> Iterator[Record]:
        """Run trials, as many at a time as there are lanes, and give the record of each."""
        begun: set[str] = set()  # ids
        queue = list(group.trials)
        free_lanes = list(group.lanes)
        running: list[tuple[Trial, Lane, Life]] = []
        errors: list[HarnessError] = []
        try:
            while True:
                while queue and free_lanes and not self.stop.reason():
                    trial = queue.pop(0)
                    lane = free_lanes.pop(0)
                    self.listener.on_trial_start(trial)
                    is_fresh = fresh and trial.id not in begun
                    begun.add(trial.id)
                    life = self._run_with_resumes(trial, lane, fresh=is_fresh)
                    running.append((trial, lane, life))
                if not running:
                    break
                for trial, lane, life in list(running):
                    record = _advance(life)
                    if record is None:
                        continue
                    running.remove((trial, lane, life))
                    if isinstance(record, HarnessError):
                        errors.append(record)
                        self.stop.note(f"{trial.id}: {record}")
                        continue
                    free_lanes.append(lane)
                    self.listener.on_trial_end(record, self.folder.trial_folder(trial.id))
                    yield record
                    if self.runs_again(record):
                        if record.status == "failed":
                            self.listener.on_message(f"runs again: {trial.cell.label}, {trial.id}")
                        queue.insert(_end_of_block(queue, trial), trial)
        finally:
            for _, _, life in running:
                life.close()
        if errors:
            raise errors[0]

    def runs_again(self, record: Record) -> bool:
        """Return whether a trial runs again that has left this record."""
        trial_folder = self.folder.trial_folder(record.trial.id)
        return runs_again(record, trial_folder, self.since, self.profile.validity.reruns)

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
        """Start the ranks, wait until they have ended, and write the record.

        The ranks are gone when this returns or is closed, however they ended. Raises HarnessError
        if another job has begun the same trial.
        """
        folder = begin_attempt(self.folder.trial_folder(trial.id), fresh=fresh)
        assignment = self._assignment(trial, attempt=folder.attempt, lane=lane)
        write_assignment(folder.assignment_path, assignment)
        cell = trial.cell
        launcher = self.launcher
        if cell.axes.stack is not None:
            launcher = launcher.in_stack(self.stacks[cell.axes.stack])
        command = launcher.command(
            "harness.training.worker", folder, cell.axes.world_size, ["--write-logs"]
        )
        variables = launcher.variables(cell.axes.num_threads, cell.environment)
        log_start = file_size(folder.launch_log)
        preload = heavy_modules(cell.workload.uses)
        process = launcher.start(command, variables, folder.launch_log, preload=preload)
        started = time.time()  # only now: the time that a forkserver takes to load is no trial's
        kills_before = oom_kills()
        try:
            ended_by = yield from watch(
                process,
                launcher,
                folder,
                cell.axes.world_size,
                self.sweep.timeout,
                log_start=log_start,
                stop_reason=self.stop.reason,
                poll_seconds=self.poll_seconds / lane.count,
                on_poll=lambda: self.listener.on_trial_progress(
                    trial, read_progress_file(folder.progress_path)
                ),
            )
            launcher_end = describe_end(process.poll(), oom_kills() > kills_before)
            # Before the end, as the launcher prints how the ranks end that are ended now.
            output = launcher_output(folder, log_start)
        finally:
            launcher.end(process, folder)
        record = self._assemble(
            folder,
            assignment,
            started=started,
            ended_by=ended_by,
            observed_failures=launcher.observed_failures(folder, output),
            launcher_end=launcher_end,
        )
        record = self._with_stop_reason(record)
        if self.folder.trial_folder(trial.id) != folder:
            raise HarnessError(f"{folder.path}: another job has taken it over")
        write_record(folder.record_path, record)
        end_attempt(folder, record)
        return record

    def _with_stop_reason(self, record: Record) -> Record:
        """Return the record with the reason of its interruption, if this runner had one.

        Ranks know only that a signal came, not why it was sent.
        """
        reason = self.stop.reason()
        if record.status != "interrupted" or record.failure is None or not reason:
            return record
        failure = replace(record.failure, message=f"{reason}: {record.failure.message}")
        return replace(record, failure=failure)

    def _assemble(
        self,
        folder: TrialFolder,
        assignment: Assignment,
        *,
        started: float,
        ended_by: Failure | None,
        observed_failures: Sequence[Failure],
        launcher_end: str,
    ) -> Record:
        """Return the record of an attempt that has just ended."""
        # Imported only now, because a process that only looks at trials needs no NumPy.
        from harness.launch.assemble import assemble

        previous_failures = failures_before(folder)
        return assemble(
            folder,
            self.sweep.name,
            assignment,
            started=started,
            ended=time.time(),
            previous_failures=previous_failures,
            ended_by=ended_by,
            rules=self.profile.validity,
            observed_failures=observed_failures,
            launcher_end=launcher_end,
            peaks=self.peaks,
            settings=self.settings,
            first_started=continued_since(previous_failures),
        )

    def _assignment(self, trial: Trial, attempt: int, lane: Lane) -> Assignment:
        """Return what the ranks of a trial read before anything else."""
        installed, interpreter = self.provenance.installed, None
        stack = self.stacks.get(trial.cell.axes.stack or "")
        if stack is not None:
            installed, interpreter = stack.installed, stack.executable
        return Assignment(
            trial=trial,
            base_folder=str(self.sweep.base_folder),
            checkpoint="best" if self.sweep.checkpoint.best else "none",
            saves=self.sweep.checkpoint.of(
                self.profile.launcher, is_script=trial.cell.workload.is_script
            ),
            profile=self.sweep.profile,
            fingerprints=self.sweep.fingerprints,
            device=self.profile.device,
            attempt=attempt,
            lane=lane,
            code=self.provenance.code,
            mlflow=self.provenance.mlflow,
            repository=self.provenance.repository,
            installed=installed,
            interpreter=interpreter,
            packages=self.provenance.packages.get(trial.cell.workload.uses, ()),
        )


def _advance(life: Life) -> Record | HarnessError | None:
    """Take another look at a trial; return its record if it has one now, None if it still runs.

    Where it can't have one, the error is returned.
    """
    try:
        next(life)
    except StopIteration as end:
        record: Record = end.value
        return record
    except HarnessError as error:
        return error
    return None


def _end_of_block(queue: Sequence[Trial], trial: Trial) -> int:
    """Return the place in the queue after the last trial of the same block as `trial`.

    A block has a trial of every cell, all with the same seed and repeat. The place is 0 where none
    of it is left.
    """
    end = 0
    for position, other in enumerate(queue):
        if (other.seed, other.repeat) == (trial.seed, trial.repeat):
            end = position + 1
    return end
