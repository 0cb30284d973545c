"""Running trials: the ranks of each in fresh processes, one record each, invalid ones again."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from typing import Any, Protocol

from harness.core.errors import HarnessError
from harness.core.paths import SweepFolder, TrialFolder
from harness.core.processes import Process, end_process_group
from harness.hardware.machine import Machine
from harness.launch.launcher import Launcher
from harness.records.assignment import Assignment, read_assignment, write_assignment
from harness.records.environment import Code, describe_code
from harness.records.record import Failure, Record, read_record, read_record_if_exists, write_record
from harness.records.running import read_progress_file
from harness.records.settings import run_settings
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.training.interruption import SIGNAL

POLL = 0.1  # seconds between looks at a running trial
REMIND = 2.0  # seconds between signals to ranks that are to stop
RETRIED_FAILURES = {  # failures that are not the trial's own
    "Lost", "NodeFailure", "NotStarted", "CollectiveTimeout", "DistBackendError", "DistNetworkError", "DistStoreError",
}  # fmt: skip


class TrialListener(Protocol):
    """Told of everything that happens; shows it to somebody or delivers it somewhere."""

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None: ...

    def on_trial_start(self, trial: Trial) -> None: ...

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None: ...

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs trials of one sweep, one after the other."""

    sweep: Sweep
    profile: Profile
    folder: SweepFolder
    launcher: Launcher
    listener: TrialListener
    peaks: Mapping[str, Machine]
    first_attempts: Mapping[str, int] = field(
        default_factory=dict
    )  # the attempt that reruns count from, if not this run's own
    poll_seconds: float = POLL
    retries: int = 0  # how often a trial runs again that failed for one of RETRIED_FAILURES
    resumes: int = 10  # times that an interrupted trial is taken up again at once
    stop_reason: Callable[[], str | None] = lambda: (
        None
    )  # why a running trial is to save and stop, and no other begins

    @cached_property
    def code(self) -> Code:
        """The harness that runs here: ranks need no git."""
        return describe_code()

    def run(self, pending: Sequence[Trial], *, fresh: bool = False) -> Iterator[Record]:
        """Each trial's record once it is on disk and the listener has been told.

        A trial whose measurement is invalid runs again at the end of its block, as often as the
        profile says, and then yields another record. One whose ranks were interrupted goes on at
        once. `fresh` forgets what earlier attempts left.
        """
        queue, first = list(pending), dict(self.first_attempts)
        while queue and not self.stop_reason():
            trial = queue.pop(0)
            self.listener.on_trial_start(trial)
            found = self._run(trial, fresh=fresh and trial.id not in first)
            for _ in range(self.resumes):
                if found.status == "interrupted" and not self.stop_reason():
                    found = self._run(trial, fresh=False)
            self.listener.on_trial_end(found, self.folder.trial_folder(trial.id))
            yield found
            if self.runs_again(found, first.setdefault(trial.id, found.attempt)):
                queue.insert(_end_of_block(queue, trial), trial)

    def runs_again(self, found: Record, first: int) -> bool:
        """Whether a trial runs again by itself, its attempts counted from `first` on."""
        before = found.previous_failures[first - 1 :]
        if found.status == "invalid":
            return (
                sum(failure.kind == "Invalid" for failure in before) < self.profile.validity.reruns
            )
        lost = found.failure is not None and found.failure.kind in RETRIED_FAILURES
        return lost and sum(failure.kind in RETRIED_FAILURES for failure in before) < self.retries

    def _run(self, trial: Trial, *, fresh: bool) -> Record:
        """Start the ranks, wait for their end, and leave the record."""
        place = self.folder.trial_folder(trial.id)
        previous_failures = _clear(place, fresh=fresh)
        assignment = self._assign(trial, attempt=len(previous_failures) + 1)
        write_assignment(place.assignment_path, assignment)
        axes = trial.cell.axes
        arguments = self.launcher.command(
            "harness.training.worker", place, axes.world_size, ["--write-logs"]
        )
        said = place.launch_log.stat().st_size if place.launch_log.exists() else 0
        process = self.launcher.start(
            arguments, self.launcher.variables(axes.num_threads), place.launch_log
        )
        started = time.time()  # not before: what a forkserver takes to load is no trial's
        try:
            ended_by = self._watch(process, place, trial, started + self.sweep.timeout)
        finally:
            end_process_group(process)
        observed_failures = self.launcher.observed_failures(place, _words(place, said))
        found = self._assemble(
            place, assignment, started, previous_failures, ended_by, observed_failures
        )
        if found.status == "interrupted" and found.failure and (why := self.stop_reason()):
            found = replace(
                found, failure=replace(found.failure, message=f"{why}: {found.failure.message}")
            )
        if _attempt(place) != assignment.attempt:
            raise HarnessError(f"{place.path}: another job has taken it over")
        return _keep(place, found)

    def record_interruption(self, trial: Trial, why: str, host: str | None = None) -> None:
        """Record an attempt that ended with whoever ran it as interrupted, so that the next one is
        another attempt.
        """
        place = self.folder.trial_folder(trial.id)
        attempt, known = _attempt(place), read_record_if_exists(place.record_path)
        if attempt is None or (known is not None and known.attempt >= attempt):
            return
        previous_failures = _clear(place, fresh=False)
        assignment = self._assign(trial, attempt=attempt)
        ended_by = Failure(kind="Interrupted", message=why, host=host, at=time.time())
        _keep(place, self._assemble(place, assignment, ended_by.at, previous_failures, ended_by))

    def _assemble(
        self,
        place: TrialFolder,
        assignment: Assignment,
        started: float,
        previous_failures: Sequence[Failure],
        ended_by: Failure | None,
        observed_failures: Sequence[Failure] = (),
    ) -> Record:
        """The record of an attempt that has ended."""
        from harness.launch.assemble import (
            assemble,  # here, because what only looks at trials needs no NumPy
        )

        record = assemble(
            place,
            self.sweep.name,
            assignment,
            started=started,
            ended=time.time(),
            previous_failures=previous_failures,
            ended_by=ended_by,
            rules=self.profile.validity,
            observed_failures=observed_failures,
            peaks=self.peaks,
        )
        return replace(record, settings=run_settings(self.sweep, self.profile))

    def _assign(self, trial: Trial, attempt: int) -> Assignment:
        return Assignment(
            trial=trial,
            base_folder=str(self.sweep.base_folder),
            checkpoint=self.sweep.checkpoint,
            profile=self.sweep.profile,
            device=self.profile.device,
            attempt=attempt,
            code=self.code,
            mlflow=metadata.version("mlflow"),
        )

    def _watch(
        self, process: Process, place: TrialFolder, trial: Trial, deadline: float
    ) -> Failure | None:
        """Wait for the ranks to end; says why if they were ended for taking too long."""
        asked = 0.0
        while True:
            try:
                process.wait(self.poll_seconds)
                return None
            except subprocess.TimeoutExpired:
                progress = read_progress(place)
                self.listener.on_trial_progress(trial, progress)
            if (
                self.stop_reason() and time.time() > asked + REMIND
            ):  # a launcher that has just begun may miss it
                asked = time.time()
                process.send_signal(SIGNAL)
            if time.time() > deadline:
                reached = (
                    f"step {progress['step']} of {progress['steps']}" if progress else "no step"
                )
                log = str(place.rank_log(0).relative_to(place.path))
                message = f"took longer than its time-out; it had reached {reached}"
                return Failure(kind="Timeout", message=message, log=log)


def _attempt(place: TrialFolder) -> int | None:
    """The attempt that was begun last."""
    if not place.assignment_path.exists():
        return None
    return read_assignment(place.assignment_path).attempt


def _keep(place: TrialFolder, found: Record) -> Record:
    """Write the record and remove what only a trial needs that is not over."""
    write_record(place.record_path, found)
    _tidy(place)
    if found.status in ("done", "invalid"):
        shutil.rmtree(place.resume_checkpoints, ignore_errors=True)
    return found


def read_progress(place: TrialFolder) -> dict[str, Any]:
    """How far a running trial has come; empty before its first word."""
    return read_progress_file(place.progress_path)


def _words(place: TrialFolder, since: int) -> str:
    """What the launcher has written since its log had `since` bytes."""
    with place.launch_log.open("rb") as log:
        log.seek(since)
        return log.read().decode("utf-8", errors="replace")


def _clear(place: TrialFolder, *, fresh: bool) -> list[Failure]:
    """Make way for another attempt; returns why the earlier ones failed. A checkpoint stays unless
    `fresh`.

    The record of the attempt before stays until the next one replaces it; one that is invalid is
    kept beside it.
    """
    previous_failures: list[Failure] = []
    if place.record_path.exists() and not fresh:
        before = read_record(place.record_path)
        previous_failures = [*before.previous_failures, *filter(None, [before.failure])]
        if before.status == "invalid":
            previous_failures.append(
                Failure(kind="Invalid", message="; ".join(before.violations), at=before.ended)
            )
            shutil.copyfile(place.record_path, place.invalid_record_path(before.attempt))
            shutil.rmtree(
                place.best_checkpoints, ignore_errors=True
            )  # it finished: there is nothing to go on from
    for folder in (
        (place.trace_folder, place.best_checkpoints, place.resume_checkpoints, place.log_folder)
        if fresh
        else (place.trace_folder,)
    ):
        shutil.rmtree(folder, ignore_errors=True)
    if fresh:
        for aside in place.path.glob(place.invalid_record_path("*").name):
            aside.unlink()
    _tidy(place)
    return previous_failures


def _tidy(place: TrialFolder) -> None:
    """Remove what only a running trial needs."""
    for leftover in [place.progress_path, place.failures_path, *place.path.glob("rank*.json")]:
        leftover.unlink(missing_ok=True)
    for cache in place.path.glob("cache*"):
        shutil.rmtree(cache)


def _end_of_block(queue: Sequence[Trial], trial: Trial) -> int:
    """How many trials at the head of the queue are of the same block."""
    inside = itertools.takewhile(
        lambda other: (other.seed, other.repeat) == (trial.seed, trial.repeat), queue
    )
    return len(list(inside))
