"""Runs recorded trials again, each with its own code and in its own results folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder
from harness.launch.attempts import COMPLETE
from harness.launch.interrupt import deferred_interrupts
from harness.launch.runner import Runner, TrialListener
from harness.launch.stack import ReadyStack, ready_stack
from harness.launch.torchrun import Torchrun
from harness.records.record import Record
from harness.records.store import lock, write_spec
from harness.reproduce.rebuild import rebuild_cell, rebuild_profile, rebuild_sweep
from harness.reproduce.source import (
    Choice,
    Source,
    choose_source,
    locate_base,
    read_diff,
    source_checked_out,
)
from harness.sweep.cell import Cell, Trial
from harness.sweep.cluster import Profile, check_fits
from harness.sweep.selected import select_trials
from harness.sweep.sweep import Sweep
from workloads.catalog import imported_distributions

# Makes the listener that shows the progress of a sweep, as a context.
MakeListener = Callable[[Sweep], AbstractContextManager[TrialListener]]


@dataclass(frozen=True, kw_only=True)
class Original:
    """A recorded trial that has a result."""

    record: Record
    sweep_folder: SweepFolder | None  # with files that records only name: changes of code

    @property
    def base_folder(self) -> Path | None:
        """Return the folder that its workload's paths were relative to."""
        settings = self.record.settings
        return None if settings is None else Path(settings.base_folder)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A trial that is ready to run again."""

    original: Original
    trial: Trial  # as planned here
    source: Source
    base_folder: Path  # of its code, that the paths of the workload are relative to
    profile: Profile
    stack: ReadyStack | None  # that the trial runs under


def originals(
    records: Sequence[Record], folder: Path | None, only: Sequence[str]
) -> list[Original]:
    """Return the recorded trials that have a result, limited as `--only` does.

    `folder` is that of their sweep. Raises BadInput if none of them has a result.
    """
    complete = [record for record in records if record.status in COMPLETE]
    if not complete:
        statuses = {record.status for record in records}
        found = ", ".join(sorted(statuses)) or "not there"
        raise BadInput(f"found trials that are {found}; allowed: done or invalid")
    chosen = complete
    if only:
        trials = [record.trial for record in complete]
        ids = {trial.id for trial in select_trials(trials, only)}
        chosen = [record for record in complete if record.trial.id in ids]
    sweep_folder = None if folder is None else SweepFolder(folder)
    return [Original(record=record, sweep_folder=sweep_folder) for record in chosen]


def recorded_stack(original: Original, cell: Cell, base: Path) -> ReadyStack | None:
    """Return the stack that a cell runs under here, None for the harness's interpreter.

    Raises BadInput for a stack that ranks can't run under, and for one whose packages differ from the
    record: it would be another experiment under the same name.
    """
    ready = ready_stack(cell, base, cell.label)
    environment = original.record.environment
    installed = None if environment is None else environment.installed
    if ready is None or installed in (None, ready.installed):
        return ready
    allowed = "those that were recorded"
    if original.sweep_folder is not None and installed is not None:
        allowed += f", as in {original.sweep_folder.packages_path(installed)}"
    raise BadInput(
        f"{original.record.trial.id}: stack {ready.name} at {ready.python}: found other packages;"
        f" allowed: {allowed}"
    )


def prepare(
    originals: Sequence[Original], code: Choice | None, data: Sequence[str], stack: ExitStack
) -> list[Prepared]:
    """Return trials ready to run; raises BadInput for unavailable code, data or ranks.

    `code` demands whose code runs, None takes that here if it is the same, else the recorded commit.
    `data` are the texts after `--data`. What is checked out, once for all trials that share it, stays
    until `stack` is closed.
    """
    prepared: list[Prepared] = []
    checkouts: dict[tuple[Path, Source], Path] = {}
    for original in originals:
        record = original.record
        recorded = record.trial.cell
        base = locate_base(recorded.workload, original.base_folder, Path.cwd())
        base = base.absolute()
        source, cell = _choose_code(original, base, code, data)
        if (base, source) not in checkouts:
            folder = stack.enter_context(source_checked_out(source, base))
            checkouts[base, source] = folder
        base_folder = checkouts[base, source]
        if cell is None or base_folder != base:
            cell = rebuild_cell(recorded, base_folder, data)
        profile = rebuild_profile(record.settings, cell.axes.world_size)
        check_fits(profile, [cell])
        prepared.append(
            Prepared(
                original=original,
                trial=replace(record.trial, cell=cell),
                source=source,
                base_folder=base_folder,
                profile=profile,
                stack=recorded_stack(original, cell, base),
            )
        )
    return prepared


def _choose_code(
    original: Original, base: Path, code: Choice | None, data: Sequence[str]
) -> tuple[Source, Cell | None]:
    """Return which code a trial runs with, and its cell as planned from the files at `base`.

    The cell is None where these can't plan it and the recorded code runs.
    """
    record = original.record
    recorded = record.trial.cell
    present: Cell | None = None
    problem: BadInput | None = None
    try:
        present = rebuild_cell(recorded, base, data)
    except BadInput as error:
        # The workload here may have lost an option that the recorded one has. That is no error
        # where the recorded code is available.
        problem = error
    environment = record.environment
    repository = None if environment is None else environment.repository
    source = choose_source(
        repository,
        read_diff(repository, original.sweep_folder),
        recorded.workload,
        None if present is None else present.workload,
        base,
        code,
    )
    if problem is not None and source.choice == "here":
        raise problem
    return source, present


def run_again(
    prepared: Sequence[Prepared], results: Results, make_listener: MakeListener
) -> dict[str, Record]:
    """Run trials again, one after the other; return their new records by the original's id.

    `results` is a folder for them alone. Trials with the same code and settings share a sweep there.
    """
    records: dict[str, Record] = {}
    groups: dict[tuple[object, ...], list[Prepared]] = {}
    for entry in prepared:
        record = entry.original.record
        key = (
            record.sweep,
            entry.base_folder,
            repr(entry.profile),
            repr(record.settings),
        )
        group = groups.setdefault(key, [])
        group.append(entry)
    for number, group in enumerate(groups.values(), start=1):
        name = group[0].original.record.sweep
        if number > 1:
            name += f"-{number}"  # a sweep's file has its own trials only
        again = _run_group(group, name, results, make_listener)
        for entry in group:
            record = entry.original.record
            if entry.trial.id in again:
                records[record.trial.id] = again[entry.trial.id]
    return records


def _run_group(
    group: Sequence[Prepared], name: str, results: Results, make_listener: MakeListener
) -> dict[str, Record]:
    """Run trials that share code, settings and profile as the sweep `name`; return their records by id."""
    trials = [entry.trial for entry in group]
    leader = group[0]
    settings = leader.original.record.settings
    profile = leader.profile
    sweep = rebuild_sweep(trials, settings, name, leader.base_folder)
    for uses in {trial.cell.workload.uses for trial in trials}:
        # From here, in case other folders were added later.
        imported_distributions(uses, sweep.base_folder)
    stacks = {}
    for entry in group:
        if entry.stack is not None:
            stacks[entry.stack.name] = entry.stack
    folder = results.sweep_folder(sweep.name)
    records: dict[str, Record] = {}
    with ExitStack() as stack:
        stack.enter_context(lock(folder))
        write_spec(sweep, folder)
        listener = stack.enter_context(make_listener(sweep))
        listener.on_plan(trials, ())
        runner = Runner(
            sweep=sweep,
            profile=profile,
            folder=folder,
            launcher=Torchrun.of(profile).start,
            listener=listener,
            stop=stack.enter_context(deferred_interrupts(listener.on_message)),
            stacks=stacks,
        )
        for record in runner.run(trials):
            records[record.trial.id] = record
    return records
