"""Running a sweep on this machine: which trials, in which order, what becomes of each."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal, Protocol

from harness import machine, record
from harness.assemble import assemble
from harness.cell import Assignment, Trial
from harness.cluster import Profile
from harness.environment import describe_code
from harness.errors import BadInput, did_you_mean, one_line
from harness.launch import torchrun
from harness.paths import Results, SweepFolder, TrialFolder, write_whole
from harness.processes import end_group
from harness.record import Failure, Record
from harness.restore import restore
from harness.spec import Sweep

POLL = 0.1  # seconds between looks at a running trial

Redo = Literal["missing", "failed", "all"]  # which trials run: those without a record, failed ones too, all


class Listener(Protocol):
    """Told of everything that happens; shows it to somebody or delivers it somewhere."""

    def planned(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None: ...

    def started(self, trial: Trial) -> None: ...

    def progressed(self, trial: Trial, progress: dict[str, Any]) -> None: ...

    def ended(self, record: Record, folder: TrialFolder) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run of a sweep has to do, given what is on disk."""

    pending: Sequence[Trial]
    finished: Sequence[Record]  # of this sweep's trials, that will not run again


def plan(sweep: Sweep, folder: SweepFolder, redo: Redo) -> Plan:
    """Raises BadInput for a record that can't be read."""
    pending, finished = [], []
    for trial in sweep.trials():
        path = folder.trial(trial.id).record
        found = record.read(path) if path.exists() else None
        keep = found is not None and (redo == "missing" or (redo == "failed" and found.status == "done"))
        if found is not None and keep:
            finished.append(found)
        else:
            pending.append(trial)
    return Plan(pending=pending, finished=finished)


def run(
    sweep: Sweep, profile: Profile, folder: SweepFolder, listener: Listener, *, redo: Redo, fail_fast: bool
) -> list[Record]:
    """Run what is pending, one trial after the other; returns the records of all the sweep's trials that have one.

    Every record is on disk before anybody is told. Raises BadInput if another process is at this sweep; on
    KeyboardInterrupt the running trial's processes are ended and nothing is recorded for it. A trial whose
    measurement is invalid runs again at the end of its block, as often as the profile says.
    """
    with lock(folder):
        todo = plan(sweep, folder, redo)
        asked = asdict(sweep) | {"trials": [trial.id for trial in sweep.trials()]}
        write_whole(folder.spec, json.dumps(asked, indent=1, default=str) + "\n")
        listener.planned(todo.pending, todo.finished)
        known = {"harness": describe_code(), "mlflow": metadata.version("mlflow")}
        runner = _Runner(sweep, profile, folder, listener, known, machine.read_all(folder.peaks))
        records = {found.trial.id: found for found in todo.finished}
        queue, attempts = list(todo.pending), Counter[str]()
        while queue:
            trial = queue.pop(0)
            listener.started(trial)
            found = runner.run(trial, fresh=redo == "all" and not attempts[trial.id])
            records[trial.id] = found
            attempts[trial.id] += 1
            listener.ended(found, folder.trial(trial.id))
            if fail_fast and found.status == "failed":
                break
            if found.status == "invalid" and attempts[trial.id] <= profile.validity.reruns:
                queue.insert(_end_of_block(queue, trial), trial)
    return list(records.values())


def _end_of_block(queue: Sequence[Trial], trial: Trial) -> int:
    """How many trials at the head of the queue are of the same block."""
    inside = itertools.takewhile(lambda other: (other.seed, other.repeat) == (trial.seed, trial.repeat), queue)
    return len(list(inside))


def recorded(results: Results, name: str) -> tuple[Sweep, list[Record]]:
    """A sweep that has run, as it was asked for, and its trials' records; raises BadInput."""
    folder = results.sweep(name)
    if not folder.spec.exists():
        known = {path.parent.name for path in results.runs.glob("*/sweep.json")}
        raise BadInput(f"{name}: no records of such a sweep in {results.runs}; {did_you_mean(name, known)}")
    try:
        asked = json.loads(folder.spec.read_text(encoding="utf-8"))
        del asked["trials"]  # they follow from the rest
        sweep = restore(Sweep, asked)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{folder.spec}: can't be read as a sweep: {one_line(error)}") from None
    paths = [folder.trial(trial.id).record for trial in sweep.trials()]
    return sweep, [record.read(path) for path in paths if path.exists()]


@dataclass(frozen=True)
class _Runner:
    """Runs the trials of one sweep."""

    sweep: Sweep
    profile: Profile
    folder: SweepFolder
    listener: Listener
    known: Mapping[str, Any]  # of the environment, what only this process knows
    peaks: Mapping[str, machine.Machine]

    def run(self, trial: Trial, *, fresh: bool) -> Record:
        """Start the ranks, wait for their end, and leave the record."""
        place = self.folder.trial(trial.id)
        earlier = _clear(place, fresh=fresh)
        assignment = self._assign(trial, attempt=len(earlier) + 1)
        write_whole(place.assignment, json.dumps(asdict(assignment), indent=1) + "\n")
        arguments = torchrun.command(place, trial.cell.axes.world_size)
        variables = torchrun.environment(os.environ, self.profile.environment, trial.cell.axes.threads)
        started = time.time()
        process = torchrun.start(arguments, variables, place.launch_log)
        try:
            stopped = self._watch(process, place, trial, started + self.sweep.timeout)
        finally:
            end_group(process)
        found = assemble(
            place,
            self.sweep.name,
            assignment,
            started=started,
            ended=time.time(),
            earlier=earlier,
            stopped=stopped,
            rules=self.profile.validity,
            peaks=self.peaks,
        )
        record.write(place.record, found)
        _tidy(place)
        return found

    def _assign(self, trial: Trial, attempt: int) -> Assignment:
        return Assignment(
            trial=trial,
            base=str(self.sweep.base),
            checkpoint=self.sweep.checkpoint,
            profile=self.sweep.profile,
            device=self.profile.device,
            attempt=attempt,
            environment=self.known,
        )

    def _watch(
        self, process: subprocess.Popen[bytes], place: TrialFolder, trial: Trial, deadline: float
    ) -> Failure | None:
        """Wait for the ranks to end; says why if they were ended for taking too long."""
        while True:
            try:
                process.wait(POLL)
                return None
            except subprocess.TimeoutExpired:
                progress = read_progress(place)
                self.listener.progressed(trial, progress)
            if time.time() > deadline:
                reached = f"step {progress['step']} of {progress['steps']}" if progress else "no step"
                log = str(place.log(0).relative_to(place.path))
                message = f"took longer than its time-out; it had reached {reached}"
                return Failure(kind="Timeout", message=message, log=log)


def read_progress(place: TrialFolder) -> dict[str, Any]:
    """How far a running trial has come; empty before its first word."""
    try:
        content: dict[str, Any] = json.loads(place.progress.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return content


def _clear(place: TrialFolder, *, fresh: bool) -> list[Failure]:
    """Make way for another attempt; returns why the earlier ones failed. A checkpoint stays unless `fresh`.

    The record of the attempt before stays until the next one replaces it; one that is invalid is kept beside it.
    """
    earlier: list[Failure] = []
    if place.record.exists() and not fresh:
        before = record.read(place.record)
        earlier = [*before.earlier, *filter(None, [before.failure])]
        if before.status == "invalid":
            earlier.append(Failure(kind="Invalid", message="; ".join(before.invalid), at=before.ended))
            shutil.copyfile(place.record, place.set_aside(before.attempt))
            shutil.rmtree(place.best, ignore_errors=True)  # it finished: there is nothing to go on from
    for folder in (place.profile, place.best, place.logs) if fresh else (place.profile,):
        shutil.rmtree(folder, ignore_errors=True)
    if fresh:
        for aside in place.path.glob(place.set_aside("*").name):
            aside.unlink()
    _tidy(place)
    return earlier


def _tidy(place: TrialFolder) -> None:
    """Remove what only a running trial needs."""
    for leftover in [place.progress, place.failures, *place.path.glob("rank*.json")]:
        leftover.unlink(missing_ok=True)
    for cache in place.path.glob("cache*"):
        shutil.rmtree(cache)


@contextmanager
def lock(folder: SweepFolder) -> Iterator[None]:
    """Only one process at a sweep; the kernel lets go of it however that process ends."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        file = folder.lock.open("a+", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--results: {folder.path}: can't be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise BadInput(
                f"{folder.path}: process {file.read().strip()} is at work on this sweep; wait for it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
