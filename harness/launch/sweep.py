"""Running a sweep on this machine: which trials are pending, and running them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.core.paths import SweepFolder
from harness.hardware import machine
from harness.launch import forkserver
from harness.launch.runner import Runner, TrialListener
from harness.launch.torchrun import Torchrun
from harness.records.record import Record, Status, read_record_if_exists
from harness.records.store import lock, write_spec
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

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
