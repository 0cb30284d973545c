"""Runs a sweep on this machine: finds out which trials are pending, and runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder, remove_temporary_files
from harness.hardware import machine
from harness.launch.abandoned import kill_abandoned, remove_abandoned_blocks
from harness.launch.attempts import remove_unneeded_checkpoints
from harness.launch.host_lock import host_lock
from harness.launch.interrupt import deferred_interrupts
from harness.launch.lanes import MachineRoom, side_by_side
from harness.launch.runner import (
    Runner,
    StopRequest,
    TrialListener,
)
from harness.launch.stack import ready_stacks
from harness.launch.torchrun import Torchrun
from harness.records.files import read_record, read_record_if_exists
from harness.records.record import Record, Status
from harness.records.settings import profile_change, run_settings
from harness.records.store import lock, write_spec
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

# Which trials run: those that have not finished, those that failed too, or all.
Redo = Literal["missing", "failed", "all"]
# The trials that do not run again, by what became of them.
FINISHED: Mapping[Redo, Sequence[Status]] = {
    "missing": ("done", "invalid", "failed"),
    "failed": ("done",),
    "all": (),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run of a sweep has to do, given the records on disk."""

    pending: Sequence[Trial]
    finished: Sequence[Record]  # of the trials that will not run again
    resumed: Sequence[Record] = ()  # of those pending trials that continue from a checkpoint
    # Of the trials whose record can't be read, which and what to do: a line each. They don't run,
    # because that would replace a record that may only be of another version of the harness.
    unreadable: Sequence[str] = ()
    # Of trials of the sweep that are not selected, with which the others must be comparable.
    unselected: Sequence[Record] = ()


def plan(
    sweep: Sweep, folder: SweepFolder, redo: Redo, settled: Collection[str] = frozenset()
) -> Plan:
    """Return what is to do.

    `settled` are ids of trials that the same command has run before: `redo` is "missing" for these.
    """
    unselected = _records_left_out(sweep, folder)
    pending = []
    finished = []
    resumed = []
    unreadable = []
    for trial in sweep.trials():
        redo_trial = "missing" if trial.id in settled else redo
        if redo_trial == "all":
            pending.append(trial)
            continue
        try:
            record = read_record_if_exists(folder.trial_folder(trial.id).record_path)
        except BadInput as error:
            unreadable.append(str(error))
            continue
        if record is not None and _is_finished(record, folder, redo_trial):
            finished.append(record)
            continue
        pending.append(trial)
        if record is not None and record.status == "interrupted":
            resumed.append(record)
    return Plan(
        pending=pending,
        finished=finished,
        resumed=resumed,
        unreadable=unreadable,
        unselected=unselected,
    )


def _is_finished(record: Record, folder: SweepFolder, redo: Redo) -> bool:
    """Return whether a trial need not run again: a damaged file of arrays is moved away so that it does."""
    path = folder.trial_folder(record.trial.id).attempt_path
    has_arrays = any(path.glob("record-*.npz"))
    return has_arrays and record.status in FINISHED[redo]


def _records_left_out(sweep: Sweep, folder: SweepFolder) -> list[Record]:
    """Return the records of a sweep's trials that are not selected, as far as they can be read."""
    records = []
    for trial in sweep.trials_left_out():
        with suppress(BadInput):
            record = read_record_if_exists(folder.trial_folder(trial.id).record_path)
            if record is not None:
                records.append(record)
    return records


def refuse_changed_profile(
    planned: Plan, sweep: Sweep, profile: Profile, folder: SweepFolder
) -> None:
    """Refuse to add trials to others that ran with another profile: they would not compare.

    Trials that run again from the start do not count. Raises BadInput.
    """
    current = run_settings(sweep, profile)
    device = "cuda" if profile.gpus else "cpu"
    changes: list[str] = []
    for record in (*planned.finished, *planned.resumed, *planned.unselected):
        change = None
        if record.settings is not None:
            change = profile_change(record.settings, current)
        if change is None and record.summary is not None and record.device != device:
            change = f"device: found {device}, recorded {record.device}"
        if change is not None:
            changes.append(change)
    if changes:
        force = ", or harness run --force, which runs all trials again"
        if profile.launcher == "slurm":  # which harness submit runs
            force = ""
        raise BadInput(
            f"{folder.path}: {len(changes)} of its trials ran with another profile: {changes[0]};"
            " allowed: the profile that they ran with, another name for the sweep or another"
            f" --results{force}"
        )


def run(
    sweep: Sweep,
    profile: Profile,
    folder: SweepFolder,
    listener: TrialListener,
    *,
    redo: Redo,
    settled: Collection[str] = frozenset(),
    fail_fast: bool,
    check: Callable[[SweepFolder], None] = lambda folder: None,
) -> list[Record]:
    """Run the pending trials, as many at a time as the profile says; return the records of all the
    sweep's trials that have one.

    Every record is on disk before the listener is called. A trial whose measurement is invalid runs
    again at the end of its block, as often as the profile says. One whose ranks were interrupted
    resumes at once, as often as `Runner.resumes` says. With `fail_fast`, no trial begins once one
    has failed, and those that run save their state and stop. `check` is called once no other process can
    begin this sweep, and may raise what forbids it. `settled` are those of `plan`.
    Another sweep that runs trials on this machine is waited for, unless the profile allows any
    contention.

    Raises BadInput if another process runs this sweep, and for a stack that ranks can't run under.
    After Ctrl-C, running trials save their state and get a record as interrupted ones, before
    KeyboardInterrupt is raised. After a second Ctrl-C, their processes are ended at once and they
    get no record.
    """
    with ExitStack() as stack:
        stack.enter_context(lock(folder))
        check(folder)
        planned = plan(sweep, folder, redo, settled)
        refuse_changed_profile(planned, sweep, profile, folder)
        cells = [trial.cell for trial in planned.pending]
        stacks = ready_stacks(sweep, cells)
        _remove_leftovers(folder, planned)
        write_spec(sweep, folder)
        listener.on_plan(planned.pending, planned.finished)
        if planned.pending and profile.validity.contention is not None:
            activity = f"running trials of {sweep.name}"
            this_machine = host_lock(activity, on_message=listener.on_message)
            stack.enter_context(this_machine)
        stop = StopRequest(stack.enter_context(deferred_interrupts(listener.on_message)))
        records = {record.trial.id: record for record in planned.finished}
        runner = Runner(
            sweep=sweep,
            profile=profile,
            folder=folder,
            launcher=Torchrun.of(profile),
            listener=listener,
            peaks=machine.read_all(folder.results.peaks),
            arrange=side_by_side(MachineRoom.of(profile), profile.parallel),
            stop=stop,
            stacks=stacks,
        )
        for record in runner.run(planned.pending, fresh=redo == "all"):
            # As it is on the disk: the columns of all trials would fill the memory.
            path = folder.trial_folder(record.trial.id).record_path
            records[record.trial.id] = read_record(path)
            if fail_fast and record.status in ("failed", "interrupted"):
                stop.note(f"--fail-fast: {record.trial.cell.label} {record.status}")
    return list(records.values())


def _remove_leftovers(folder: SweepFolder, planned: Plan) -> None:
    """Remove what an earlier process left that was killed before it had tidied up."""
    kill_abandoned()
    remove_abandoned_blocks()
    remove_temporary_files(folder.path)
    for record in planned.finished:
        remove_unneeded_checkpoints(folder.trial_folder(record.trial.id), record)
