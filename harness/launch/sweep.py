"""Running a sweep on this machine: which trials are pending, and what is there of a sweep that has run."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal, TextIO

from harness.core.errors import BadInput, did_you_mean, one_line
from harness.core.paths import Results, SweepFolder, write_atomically
from harness.hardware import machine
from harness.launch import forkserver
from harness.launch.runner import Runner, TrialListener
from harness.launch.torchrun import Torchrun
from harness.records.record import Record, Status, read_record_if_exists
from harness.records.restore import restore
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

LOOK = 0.5  # seconds that a look at who holds a sweep may take
Redo = Literal["missing", "failed", "all"]  # which trials run: those not over, failed ones too, all
KEPT: Mapping[Redo, Sequence[Status]] = {
    "missing": ("done", "invalid", "failed"),
    "failed": ("done",),
    "all": (),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run of a sweep has to do, given what is on disk."""

    pending: Sequence[Trial]
    finished: Sequence[Record]  # of this sweep's trials, that will not run again


def plan(sweep: Sweep, folder: SweepFolder, redo: Redo) -> Plan:
    """Raises BadInput for a record that can't be read, unless all trials are to run again."""
    pending, finished = [], []
    for trial in sweep.trials():
        found = (
            read_record_if_exists(folder.trial_folder(trial.id).record_path) if KEPT[redo] else None
        )
        if found is not None and found.status in KEPT[redo]:
            finished.append(found)
        else:
            pending.append(trial)
    return Plan(pending=pending, finished=finished)


def run(
    sweep: Sweep,
    profile: Profile,
    folder: SweepFolder,
    listener: TrialListener,
    *,
    redo: Redo,
    fail_fast: bool,
    check: Callable[[SweepFolder], None] = lambda folder: None,
) -> list[Record]:
    """Run what is pending, one trial after the other; returns the records of all the sweep's trials that have one.

    Every record is on disk before anybody is told. Raises BadInput if another process is at this sweep; on
    KeyboardInterrupt the running trial's processes are ended and nothing is recorded for it. A trial whose
    measurement is invalid runs again at the end of its block, as often as the profile says; one whose ranks were
    interrupted goes on at once, as often as `Runner.resumes` says. `check` may raise what forbids it, once nobody else
    can begin.
    """
    fork = profile.forkserver and forkserver.AVAILABLE and not profile.gpus
    with lock(folder):
        check(folder)
        todo = plan(sweep, folder, redo)
        write_spec(sweep, folder)
        listener.on_plan(todo.pending, todo.finished)
        runner = Runner(
            sweep=sweep,
            profile=profile,
            folder=folder,
            launcher=Torchrun(environment=profile.environment, fork=fork),
            listener=listener,
            peaks=machine.read_all(folder.peaks_folder),
        )
        records = {found.trial.id: found for found in todo.finished}
        for found in runner.run(todo.pending, fresh=redo == "all"):
            records[found.trial.id] = found
            if fail_fast and found.status in ("failed", "interrupted"):
                break
    return list(records.values())


def write_spec(sweep: Sweep, folder: SweepFolder) -> None:
    """Leave what the sweep asks for."""
    asked = asdict(sweep) | {"trials": [trial.id for trial in sweep.trials()]}
    write_atomically(folder.spec_path, json.dumps(asked, indent=1, default=str) + "\n")


def read_recorded_sweep(results: Results, name: str) -> tuple[Sweep, list[Record]]:
    """A sweep that has run, as it was asked for, and its trials' records; raises BadInput."""
    sweep, folder = read_recorded_spec(results, name), results.sweep_folder(name)
    found = [
        read_record_if_exists(folder.trial_folder(trial.id).record_path) for trial in sweep.trials()
    ]
    return sweep, [one for one in found if one]


def recorded_sweep_names(results: Results) -> list[str]:
    """Of all sweeps that have run or were submitted."""
    return sorted(
        json.loads(path.read_bytes()).get("name", path.parent.name)
        for path in results.runs.glob("*/sweep.json")
    )


def read_recorded_spec(results: Results, name: str) -> Sweep:
    """A sweep that has run, as it was asked for; raises BadInput."""
    folder = results.sweep_folder(name)
    if not folder.spec_path.exists():
        names = recorded_sweep_names(results)
        allowed = (
            did_you_mean(name, names)
            if names
            else "there are none; --results or HARNESS_RESULTS says where"
        )
        raise BadInput(f"{name}: no records of such a sweep in {results.runs}; {allowed}")
    try:
        asked = json.loads(folder.spec_path.read_text(encoding="utf-8"))
        del asked["trials"]  # they follow from the rest
        return restore(Sweep, asked)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{folder.spec_path}: can't be read as a sweep: {one_line(error)}") from None


@contextmanager
def lock(folder: SweepFolder) -> Iterator[None]:
    """Only one process at a sweep; the kernel lets go of it however that process ends."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        file = folder.lock_path.open("a+", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--results: {folder.path}: can't be written: {error.strerror}") from None
    with file:
        _take(file, folder)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _take(file: TextIO, folder: SweepFolder) -> None:
    """Raises BadInput if another process keeps it for longer than one that only looks at it."""
    deadline = time.monotonic() + LOOK
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.seek(0)
                owner = file.read().strip()
                raise BadInput(
                    f"{folder.path}: process {owner} is at work on this sweep; wait for it"
                ) from None
        except OSError as error:
            raise BadInput(f"--results: {folder.path}: can't be locked: {error.strerror}") from None
        time.sleep(LOOK / 10)


def is_locked(folder: SweepFolder) -> bool:
    """Whether a process of this machine is at the sweep."""
    if not folder.lock_path.exists():
        return False
    with folder.lock_path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks: `lock` has told whoever ran trials here
            return False
    return False
