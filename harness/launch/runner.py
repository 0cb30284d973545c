"""Runs trials, each in fresh processes and with one record, and again if an attempt does not count."""

from __future__ import annotations

import shutil
import time
from collections.abc import (
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from harness.core.control_groups import oom_kills
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import SweepFolder, TrialFolder, remove_temporary_files
from harness.hardware.machine import Machine
from harness.launch.lanes import Arrange, Group, one_by_one
from harness.launch.launcher import Launcher, describe_end
from harness.launch.provenance import Provenance, describe_launch, write_once
from harness.launch.retries import failures_of, runs_again
from harness.launch.stack import ReadyStack
from harness.launch.watch import POLL, file_size, launcher_output, watch
from harness.records.assignment import Assignment, read_assignment, write_assignment
from harness.records.code import Code
from harness.records.files import (
    read_record,
    read_record_if_exists,
    remove_unused_arrays,
    write_record,
)
from harness.records.lane import Lane
from harness.records.record import Failure, Record, RunSettings
from harness.records.running import read_heartbeats, read_progress_file
from harness.records.settings import run_settings
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from workloads.catalog import heavy_modules

COMPLETE = ("done", "invalid")  # the status of trials that have got to their end


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

    An attempt is one start of a trial's ranks. A trial has one record, that of its last attempt,
    which also says why the earlier ones failed.
    """

    sweep: Sweep
    profile: Profile
    folder: SweepFolder
    launcher: Launcher
    listener: TrialListener
    peaks: Mapping[str, Machine]  # by the machine's key
    arrange: Arrange = one_by_one  # says which trials run side by side
    # The attempt that a trial's reruns are counted from, by its id; of others the first of this
    # run.
    first_attempts: Mapping[str, int] = field(default_factory=dict)
    poll_seconds: float = POLL
    resumes: int = 10  # how often an interrupted trial resumes at once
    rank_code: Code | None = None  # of the harness that ranks import, where it is another than this
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
        first_attempts = dict(self.first_attempts)
        for group in self.arrange(pending):
            yield from self._run_group(group, first_attempts, fresh=fresh)

    def _run_group(
        self, group: Group, first_attempts: dict[str, int], *, fresh: bool
    ) -> Iterator[Record]:
        """Run trials, as many at a time as there are lanes, and give the record of each.

        `first_attempts` are those that reruns are counted from, to which these trials' are added.
        """
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
                    is_fresh = fresh and trial.id not in first_attempts
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
                    first_attempt = first_attempts.setdefault(trial.id, record.attempt)
                    if self.runs_again(record, first_attempt):
                        if record.status == "failed":
                            self.listener.on_message(f"runs again: {trial.cell.label}, {trial.id}")
                        queue.insert(_end_of_block(queue, trial), trial)
        finally:
            for _, _, life in running:
                life.close()
        if errors:
            raise errors[0]

    def runs_again(self, record: Record, first_attempt: int) -> bool:
        """Return whether a trial runs again, its attempts counted from `first_attempt` on."""
        trial_folder = self.folder.trial_folder(record.trial.id)
        return runs_again(record, trial_folder, first_attempt, self.profile.validity.reruns)

    def record_interruption(self, trial: Trial, reason: str) -> None:
        """Record the last attempt as interrupted if it ended together with the process that ran it.

        Such an attempt has an assignment and no record. Once it is recorded, the next attempt
        has another number.
        """
        folder = self.folder.trial_folder(trial.id)
        attempt = _last_attempt(folder)
        if attempt is None:
            return
        record = read_record_if_exists(folder.record_path)
        if record is not None and record.attempt >= attempt:
            return
        started = folder.assignment_path.stat().st_mtime
        # It ended with the last sign of life: a job may wait for long before it goes on.
        died = max([started, *(beat.at for beat in read_heartbeats(folder.heartbeat_folder))])
        previous_failures = _prepare_folder(folder)
        ended_by = Failure(kind="Interrupted", message=reason, at=died)
        interrupted = self._assemble(
            folder,
            self._assignment(trial, attempt=attempt),
            started=started,
            ended=died,
            previous_failures=previous_failures,
            ended_by=ended_by,
        )
        _write(folder, interrupted)

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
        folder = self.folder.trial_folder(trial.id)
        assignment = self._assignment(trial, attempt=next_attempt(folder), lane=lane)
        if fresh:
            # Killed at any moment from here on, this attempt is one that has left no record.
            write_assignment(folder.assignment_path, assignment)
            remove_earlier_attempts(folder)
        previous_failures = _prepare_folder(folder)
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
            ended=time.time(),
            previous_failures=previous_failures,
            ended_by=ended_by,
            observed_failures=launcher.observed_failures(folder, output),
            launcher_end=launcher_end,
        )
        record = self._with_stop_reason(record)
        if _last_attempt(folder) != assignment.attempt:
            raise HarnessError(f"{folder.path}: another job has taken it over")
        _write(folder, record)
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
        ended: float,
        previous_failures: Sequence[Failure],
        ended_by: Failure | None,
        observed_failures: Sequence[Failure] = (),
        launcher_end: str = "its launcher ended with the command",
    ) -> Record:
        """Return the record of an attempt that has just ended."""
        # Imported only now, because a process that only looks at trials needs no NumPy.
        from harness.launch.assemble import assemble

        first_started = None
        previous = read_record_if_exists(folder.record_path) if assignment.attempt > 1 else None
        # One that has come to its end was only measured again: this attempt does not continue it.
        if previous is not None and previous.status not in COMPLETE:
            first_started = previous.first_started or previous.started
        return assemble(
            folder,
            self.sweep.name,
            assignment,
            started=started,
            ended=ended,
            previous_failures=previous_failures,
            ended_by=ended_by,
            rules=self.profile.validity,
            observed_failures=observed_failures,
            launcher_end=launcher_end,
            peaks=self.peaks,
            settings=self.settings,
            first_started=first_started,
        )

    def _assignment(self, trial: Trial, attempt: int, lane: Lane | None = None) -> Assignment:
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
            lane=lane or Lane(),
            code=self.rank_code or self.provenance.code,
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


def _last_attempt(folder: TrialFolder) -> int | None:
    """Return the number of the attempt that was begun last."""
    if not folder.assignment_path.exists():
        return None
    return read_assignment(folder.assignment_path).attempt


def _write(folder: TrialFolder, record: Record) -> None:
    """Write the record and remove what only an unfinished trial needs.

    The record comes first: without it, what is removed could not be told from what never was.
    """
    write_record(folder.record_path, record)
    remove_leftovers(folder)
    remove_unneeded_checkpoints(folder, record)


def remove_unneeded_checkpoints(folder: TrialFolder, record: Record) -> None:
    """Remove the checkpoints that a trial has no use for once it has this record."""
    if record.status in COMPLETE:
        shutil.rmtree(folder.resume_checkpoints, ignore_errors=True)


def next_attempt(folder: TrialFolder) -> int:
    """Return the number of a trial's next attempt, which none before it has had."""
    attempts = [0]
    with suppress(BadInput):  # of a file that is damaged, and is going to be replaced
        attempts.append(_last_attempt(folder) or 0)
    with suppress(BadInput):
        record = read_record_if_exists(folder.record_path)
        attempts.append(record.attempt if record is not None else 0)
    return max(attempts) + 1


def remove_earlier_attempts(folder: TrialFolder) -> None:
    """Remove what the attempts at a trial have left, the record first."""
    folder.record_path.unlink(missing_ok=True)
    for path in folder.path.glob(folder.invalid_record_path("*").name):
        path.unlink()
    for stale in (
        folder.best_checkpoints,
        folder.resume_checkpoints,
        folder.log_folder,
        folder.fingerprint_folder,
        folder.export_folder,
    ):
        shutil.rmtree(stale, ignore_errors=True)


def _prepare_folder(folder: TrialFolder) -> list[Failure]:
    """Make way for another attempt and return why the earlier ones failed.

    A checkpoint stays. The record of the last attempt stays until the next one replaces it; that of
    an invalid attempt is copied next to it.
    """
    previous_failures: list[Failure] = []
    if folder.record_path.exists():
        previous_failures = _set_last_attempt_aside(folder)
    shutil.rmtree(folder.trace_folder, ignore_errors=True)
    remove_leftovers(folder)
    return previous_failures


def _set_last_attempt_aside(folder: TrialFolder) -> list[Failure]:
    """Return why all attempts so far failed; copy the record of the last one if it is invalid."""
    record = read_record(folder.record_path)
    failures = failures_of(record)
    if record.status == "invalid":
        failures.append(
            Failure(
                kind="Invalid",
                message="; ".join(record.violations),
                at=record.ended,
                began_at=record.started,
                attempt=record.attempt,
            )
        )
        shutil.copyfile(folder.record_path, folder.invalid_record_path(record.attempt))
        # It finished, so there is nothing to resume, unless a later attempt has left no record.
        last_attempt: int | None = None
        with suppress(BadInput):
            last_attempt = _last_attempt(folder)
        if last_attempt == record.attempt:
            shutil.rmtree(folder.best_checkpoints, ignore_errors=True)
            shutil.rmtree(folder.export_folder, ignore_errors=True)
    return failures


def remove_leftovers(folder: TrialFolder) -> None:
    """Remove what only a running trial needs, and what a process that was killed had not removed."""
    remove_temporary_files(folder.path)
    results = [*folder.path.glob("rank*.json"), *folder.path.glob("rank*.npz")]
    for path in [folder.progress_path, folder.failures_path, *results]:
        path.unlink(missing_ok=True)
    remove_unused_arrays(folder.path)
    shutil.rmtree(folder.heartbeat_folder, ignore_errors=True)
    for cache in folder.path.glob("cache*"):
        shutil.rmtree(cache)


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
