"""Runs a sweep on this machine: finds out which trials are pending, and runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Literal

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder, remove_temporary_files
from harness.core.scratch import remove_abandoned
from harness.launch.attempts import end_attempt
from harness.launch.hold import hold_machine
from harness.launch.interrupt import deferred_interrupts
from harness.launch.runner import Runner, TrialListener
from harness.launch.stack import ready_stacks
from harness.launch.torchrun import Torchrun
from harness.records.differences import profile_change, run_settings
from harness.records.files import read_record, read_record_if_exists
from harness.records.record import Record, Status
from harness.records.store import lock, write_spec
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

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

    pending: list[Trial] = field(default_factory=list)
    finished: list[Record] = field(default_factory=list)  # of the trials that will not run again
    # With which those must be comparable too: of trials that continue from a checkpoint, or are not selected.
    others: list[Record] = field(default_factory=list)
    # Of the trials whose record can't be read, which and what to do: a line each. They don't run,
    # because that would replace a record that may only be of another version of the harness.
    unreadable: list[str] = field(default_factory=list)


def plan(sweep: Sweep, folder: SweepFolder, redo: Redo, from_repeat: int = 0) -> Plan:
    """Return what is to do; `redo` is "missing" for trials of repeats before `from_repeat`."""
    planned = Plan()
    for trial in sweep.trials():
        finished = FINISHED[redo if trial.repeat >= from_repeat else "missing"]
        if not finished:
            planned.pending.append(trial)
            continue
        trial_folder = folder.trial_folder(trial.id)
        try:
            record = read_record_if_exists(trial_folder.record_path)
        except BadInput as error:
            planned.unreadable.append(str(error))
            continue
        # A damaged file of arrays is moved away so that its trial runs again.
        has_arrays = any(trial_folder.attempt_path.glob("record-*.npz"))
        if record is not None and record.status in finished and has_arrays:
            planned.finished.append(record)
            continue
        planned.pending.append(trial)
        if record is not None and record.status == "interrupted":
            planned.others.append(record)
    for trial in sweep.trials_left_out():
        with suppress(BadInput):
            record = read_record_if_exists(folder.trial_folder(trial.id).record_path)
            if record is not None:
                planned.others.append(record)
    return planned


def refuse_changed_profile(
    planned: Plan, sweep: Sweep, profile: Profile, folder: SweepFolder
) -> None:
    """Refuse to add trials to others that ran with another profile: they would not compare.

    Trials that run again from the start do not count. Raises BadInput.
    """
    current = run_settings(sweep, profile)
    device = "cuda" if profile.gpus else "cpu"
    for record in (*planned.finished, *planned.others):
        change = None
        if record.settings is not None:
            change = profile_change(record.settings, current)
        if change is None and record.is_complete and record.device != device:
            change = f"device: found {device}, recorded {record.device}"
        if change is not None:
            raise BadInput(
                f"{folder.path}: {record.trial.id} ran with another profile: {change}; allowed: the profile"
                " that it ran with, another name for the sweep or another --results"
            )


def run(
    sweep: Sweep,
    profile: Profile,
    folder: SweepFolder,
    listener: TrialListener,
    *,
    redo: Redo,
    from_repeat: int = 0,
    fail_fast: bool,
    check: Callable[[SweepFolder], None] = lambda folder: None,
) -> list[Record]:
    """Run the pending trials, as many at a time as the profile says; return the records of all the
    sweep's trials that have one.

    Every record is on disk before the listener is called. A trial whose measurement is invalid runs
    again at the end of its block, as often as the profile says. One whose ranks were interrupted
    resumes at once, as often as `Runner.resumes` says. With `fail_fast`, no trial begins once one
    has failed, and those that run save their state and stop. `check` is called once no other process can
    begin this sweep, and may raise what forbids it. `from_repeat` is that of `plan`.
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
        planned = plan(sweep, folder, redo, from_repeat)
        refuse_changed_profile(planned, sweep, profile, folder)
        stacks = ready_stacks(sweep, [trial.cell for trial in planned.pending])
        # What a process has left that was killed before it had tidied up.
        remove_temporary_files(folder.path)
        remove_abandoned()
        for record in planned.finished:
            end_attempt(folder.trial_folder(record.trial.id), record)
        write_spec(sweep, folder)
        listener.on_plan(planned.pending, planned.finished)
        if planned.pending:
            activity = f"running trials of {sweep.name}"
            stack.enter_context(hold_machine(profile, activity, listener.on_message))
        runner = Runner(
            sweep=sweep,
            profile=profile,
            folder=folder,
            launcher=Torchrun.of(profile).start,
            listener=listener,
            stop=stack.enter_context(deferred_interrupts(listener.on_message)),
            stacks=stacks,
        )
        records = {record.trial.id: record for record in planned.finished}
        for record in runner.run(planned.pending, fresh=redo == "all"):
            # As it is on the disk: the columns of all trials would fill the memory.
            trial_id = record.trial.id
            records[trial_id] = read_record(folder.trial_folder(trial_id).record_path)
            if fail_fast and record.status in ("failed", "interrupted"):
                runner.stop.note(f"--fail-fast: {record.trial.cell.label} {record.status}")
    return list(records.values())
