"""Runs recorded trials again, each with its own code and in its own results folder."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.analysis.evidence import (
    Evidence,
    evidence_of_baseline,
    evidence_of_record,
)
from harness.analysis.result import CellResult, TrialResult
from harness.analysis.selection import Named
from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder
from harness.hardware.machine import Device
from harness.launch.interrupt import deferred_interrupts
from harness.launch.provenance import Provenance, describe_launch
from harness.launch.runner import COMPLETE, Runner, TrialListener
from harness.launch.stack import ReadyStack, ready_stack
from harness.launch.torchrun import Torchrun
from harness.records.code import Code, describe_code
from harness.records.differences import Difference, trial_differences
from harness.records.environment import Environment
from harness.records.record import Record, RunSettings, TargetMetric
from harness.records.store import lock, write_spec
from harness.reproduce.conditions import (
    HARDWARE,
    baseline_differences,
    code_of_baseline,
    condition_differences,
    fields_here,
    fields_of_record,
)
from harness.reproduce.describe import environment_of_ranks
from harness.reproduce.rebuild import rebuild_cell, rebuild_profile, rebuild_sweep, run_fields
from harness.reproduce.source import (
    ARGUMENT,
    ChangesDoNotApply,
    CheckedOut,
    Choice,
    SourceChoice,
    choose_harness,
    choose_workload,
    locate_base,
    read_diff,
    recorded_workload,
    sources_checked_out,
)
from harness.spec.cell import Cell, Trial, is_named
from harness.spec.cluster import Profile, check_fits
from harness.spec.sweep import Sweep
from workloads.catalog import BUILT_IN, imported_distributions
from workloads.importing import forget

# Makes the listener that shows the progress of a sweep, as a context.
MakeListener = Callable[[Sweep], AbstractContextManager[TrialListener]]
MOST_PINS = 3  # of packages that an error lists


@dataclass(frozen=True, kw_only=True)
class Original:
    """A recorded trial."""

    trial: Trial
    evidence: Evidence
    target: TargetMetric | None
    sweep: str  # the name of its sweep
    record: Record | None = None  # None for a trial of a baseline
    result: TrialResult | None = None  # of a baseline's trial
    # Of a baseline: each value of each field of the environments of its trials.
    baseline_fields: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sweep_folder: SweepFolder | None = None  # with files that records only name: changes of code

    @property
    def settings(self) -> RunSettings | None:
        """Return its settings outside of its cell, None where they were not recorded."""
        return None if self.record is None else self.record.settings

    @property
    def environment(self) -> Environment | None:
        """Return its environment, None where that was not recorded."""
        return None if self.record is None else self.record.environment

    @property
    def code(self) -> Code | None:
        """Return the harness's code that it ran with, None where that was not recorded."""
        if self.environment is not None:
            return self.environment.code
        return code_of_baseline(self.baseline_fields)

    @property
    def base_folder(self) -> Path | None:
        """Return the folder that its workload's paths were relative to."""
        return None if self.settings is None else Path(self.settings.base_folder)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run trials again."""

    code: Choice | None = None  # None: here if it is the same, else recorded
    data: Sequence[str] = ()  # the texts after `--data`
    base: Path | None = None  # of the workload's paths, if the user sets it


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A trial that is ready to run again, and the differences from its record."""

    original: Original
    trial: Trial  # as planned here
    sources: Mapping[str, SourceChoice]  # by `harness` and `workload`
    checked_out: CheckedOut
    profile: Profile
    differences: Sequence[Difference]
    stack: ReadyStack | None  # that the trial runs under


def originals(named: Named, seeds: Sequence[int], cell: str) -> list[Original]:
    """Return the trials of a name, limited to seeds and a cell if any are given.

    Raises BadInput if none of them has a result.
    """
    complete = []
    for record in named.records:
        if record.status in COMPLETE:
            complete.append(_of_record(record, named.folder))
    for baseline in named.baselines:
        complete += _of_baseline(baseline)
    if not complete:
        statuses = ", ".join(sorted({record.status for record in named.records}))
        raise BadInput(f"found trials that are {statuses or 'not there'}; allowed: done or invalid")
    chosen = complete
    if seeds:
        chosen = [original for original in chosen if original.trial.seed in seeds]
    if cell:
        chosen = [original for original in chosen if is_named(original.trial.cell, cell)]
    if not chosen:
        names = ", ".join(sorted({original.trial.id for original in complete})[:10])
        raise BadInput(f"--seed and --cell name no trial; allowed: those of {names}")
    return chosen


def _of_record(record: Record, folder: Path | None) -> Original:
    """Return the trial of a record that has a result."""
    return Original(
        trial=record.trial,
        evidence=evidence_of_record(record),
        target=record.rank0.target if record.rank0 is not None else None,
        sweep=record.sweep,
        record=record,
        sweep_folder=None if folder is None else SweepFolder(folder),
    )


def _of_baseline(baseline: CellResult) -> list[Original]:
    """Return the trials of a baseline."""
    fields: Mapping[str, Sequence[str]] = {}  # unknown if its schema is older
    if baseline.environment:
        fields = {**baseline.environment, HARDWARE: baseline.conditions["hardware"]}
    trials = []
    for trial in baseline.trials:
        original = Original(
            trial=Trial(cell=baseline.cell, seed=trial.seed, repeat=trial.repeat),
            evidence=evidence_of_baseline(trial),
            target=baseline.target,
            sweep=trial.sweep,
            result=trial,
            baseline_fields=fields,
        )
        trials.append(original)
    return trials


def read_packages(original: Original) -> str | None:
    """Return the list of packages that were installed for a trial, None if it is missing.

    The sweep's folder has the list. A list whose digest differs from the record is ignored.
    """
    environment = original.environment
    if environment is None or environment.installed is None or original.sweep_folder is None:
        return None
    try:
        text = original.sweep_folder.packages_path(environment.installed).read_text("utf-8")
    except (OSError, ValueError):
        return None
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text if digest == environment.installed else None


def recorded_stack(original: Original, cell: Cell, base: Path) -> ReadyStack | None:
    """Return the stack that a cell runs under here, None for the harness's interpreter.

    Raises BadInput for a stack that ranks can't run under, and for one whose packages differ from the
    record: it would be another experiment under the same name.
    """
    if cell.stack is None:
        return None
    ready = ready_stack(cell, base)
    environment = original.environment
    if environment is None or environment.installed in (None, ready.installed):
        return ready
    recorded = (read_packages(original) or "").split()
    present = ready.pins.split()
    gone = [pin for pin in recorded if pin not in present]
    new = [pin for pin in present if pin not in recorded] if recorded else []
    found = ", ".join(new[:MOST_PINS]) or "other packages"
    allowed = ", ".join(gone[:MOST_PINS]) or "those that were recorded"
    raise BadInput(
        f"{original.trial.id}: stack {ready.name} at {cell.stack}: found {found}; allowed: {allowed}"
    )


class Preparer:
    """Checks out code and finds differences, each once for all trials that share it."""

    def __init__(self, options: Options, stack: ExitStack) -> None:
        """Prepare with `options`; what is checked out stays until `stack` is closed."""
        self._options = options
        self._stack = stack
        self._checkouts: dict[tuple[object, ...], CheckedOut] = {}
        self._unusable: dict[tuple[object, ...], ChangesDoNotApply] = {}  # each tried once
        self._environments: dict[tuple[object, ...], Environment] = {}
        self._launches: dict[tuple[object, ...], Provenance] = {}

    def prepare(self, original: Original) -> Prepared:
        """Return a trial ready to run; raises BadInput for unavailable code, data or ranks."""
        base = self._base(original)
        planned: Trial | None = None
        problem: BadInput | None = None
        try:
            planned = self._rebuild(original, base)
        except BadInput as error:
            # The workload here may have lost an option that the recorded one has. That is no error
            # where the recorded code is available.
            problem = error
        sources = self._available(self._choose(original, planned, base), base)
        if problem is not None and sources["workload"].choice == "here":
            raise problem
        checked_out = self._check_out(sources, base)
        trial = planned
        if trial is None or checked_out.base_folder != base:
            trial = self._rebuild(original, checked_out.base_folder)
        if sources["harness"].choice == "recorded" and trial.cell.workload.uses in BUILT_IN:
            # Built-in workloads are part of the harness, so the planned trial has this harness's code.
            # The ranks import the recorded one's, and check it.
            recorded = replace(trial.cell.workload, code=original.trial.cell.workload.code)
            trial = replace(trial, cell=replace(trial.cell, workload=recorded))
        profile = rebuild_profile(original.settings, trial.cell.axes.world_size)
        check_fits(profile, [trial.cell])
        stack = recorded_stack(original, trial.cell, base)
        return Prepared(
            original=original,
            trial=trial,
            sources=sources,
            checked_out=checked_out,
            profile=profile,
            differences=self._differences(original, trial, profile, sources, stack),
            stack=stack,
        )

    def _base(self, original: Original) -> Path:
        """Return the folder here that the paths of the trial's workload are relative to."""
        workload = original.trial.cell.workload
        base = self._options.base or locate_base(workload, original.base_folder, Path.cwd())
        return base.absolute()

    def _rebuild(self, original: Original, base: Path) -> Trial:
        """Return the trial as planned from the files at `base`."""
        cell = rebuild_cell(original.trial.cell, base, self._options.data, original.base_folder)
        return replace(original.trial, cell=cell)

    def _choose(
        self, original: Original, planned: Trial | None, base: Path
    ) -> dict[str, SourceChoice]:
        """Choose the code that the trial runs with."""
        environment = original.environment
        repository = environment.repository if environment is not None else None
        source = recorded_workload(repository, read_diff(repository, original.sweep_folder))
        commits = original.baseline_fields.get("repository.commit", [])
        if len(commits) == 1:
            source = replace(source, commit=commits[0])
        recorded = original.trial.cell.workload
        present = None if planned is None else planned.cell.workload
        return {
            "workload": choose_workload(source, recorded, present, base, self._options.code),
            "harness": choose_harness(original.code, self._options.code),
        }

    def _available(
        self, sources: Mapping[str, SourceChoice], base: Path
    ) -> Mapping[str, SourceChoice]:
        """Return the chosen code, but the workload here where its recorded changes don't apply.

        Raises BadInput if the recorded code is demanded.
        """
        try:
            self._check_out(sources, base)
        except ChangesDoNotApply as error:
            if self._options.code == "recorded":
                raise BadInput(f"{ARGUMENT}: workload: {error}; allowed: --code here") from None
            reason = f"not the recorded one: {error}"
            here = replace(sources["workload"], choice="here", reason=reason, repository=None)
            return {**sources, "workload": here}
        return sources

    def _check_out(self, sources: Mapping[str, SourceChoice], base: Path) -> CheckedOut:
        """Return the folders of the chosen code."""
        key = (base, *((name, chosen.choice, chosen.source) for name, chosen in sources.items()))
        if key in self._unusable:
            raise self._unusable[key]
        if key not in self._checkouts:
            try:
                checked_out = self._stack.enter_context(sources_checked_out(sources, base))
            except ChangesDoNotApply as error:
                self._unusable[key] = error
                raise
            if checked_out.base_folder != base:
                # Its modules are imported for planning, and its files are deleted later.
                self._stack.callback(forget, checked_out.base_folder)
            self._checkouts[key] = checked_out
        return self._checkouts[key]

    def _differences(
        self,
        original: Original,
        trial: Trial,
        profile: Profile,
        sources: Mapping[str, SourceChoice],
        stack: ReadyStack | None,
    ) -> list[Difference]:
        """Return the differences from the record."""
        environment = self._environment(original, trial, profile, sources, stack)
        if original.record is None:
            device: Device = "cuda" if profile.gpus else "cpu"
            of_trial = trial_differences(original.trial, trial)
            return of_trial + baseline_differences(original.baseline_fields, environment, device)
        run = run_fields(original.settings, profile) if original.settings is not None else None
        return condition_differences(
            fields_of_record(original.record), fields_here(trial, environment, run)
        )

    def _environment(
        self,
        original: Original,
        trial: Trial,
        profile: Profile,
        sources: Mapping[str, SourceChoice],
        stack: ReadyStack | None,
    ) -> Environment:
        """Return the environment that rank 0 will have."""
        launched = self._describe_launch(original, trial, sources)
        assigned, code = trial.cell.environment, trial.cell.workload.code
        threads = trial.cell.axes.num_threads
        packages = launched.packages.get(trial.cell.workload.uses, ())
        key = (
            trial.cell.axes.stack,
            threads,
            tuple(packages),
            tuple(code.variables) if code else (),
            *sorted(assigned.items()),
            *sorted(profile.environment.items()),
        )
        if key not in self._environments:
            launcher = Torchrun(environment=profile.environment, stack=stack)
            variables = launcher.variables(threads, assigned)
            self._environments[key] = environment_of_ranks(variables, trial.cell, packages, stack)
        recorded = original.environment
        return replace(
            self._environments[key],
            code=code_of_ranks(original, sources),
            mlflow=launched.mlflow,
            repository=launched.repository,
            installed=launched.installed if stack is None else stack.installed,
            # Only ranks know which files they import by names that are computed.
            dynamic_files={} if recorded is None else recorded.dynamic_files,
        )

    def _describe_launch(
        self, original: Original, trial: Trial, sources: Mapping[str, SourceChoice]
    ) -> Provenance:
        """Return the provenance of the trial's launch, computed once for trials of the same code.

        The files that it writes for records are written again when the trial runs.
        """
        base = self._check_out(sources, self._base(original)).base_folder
        key = (base, trial.cell.workload.uses)
        if key not in self._launches:
            sweep = rebuild_sweep([trial], original.settings, original.sweep, base)
            folder = self._stack.enter_context(tempfile.TemporaryDirectory())
            self._launches[key] = describe_launch(sweep, SweepFolder(Path(folder)))
        return self._launches[key]


def code_of_ranks(original: Original, sources: Mapping[str, SourceChoice]) -> Code:
    """Return which harness the ranks of a trial import: the recorded one, or this one."""
    if sources["harness"].choice == "here" or original.code is None:
        return describe_code()
    return original.code


def run_again(
    prepared: Sequence[Prepared], results: Results, make_listener: MakeListener
) -> dict[str, Record]:
    """Run trials again, one after the other; return their new records by the original's id.

    `results` is a folder for them alone. Trials with the same code share a sweep there.
    """
    records: dict[str, Record] = {}
    groups: dict[tuple[object, ...], list[Prepared]] = {}
    for entry in prepared:
        key = (entry.original.sweep, entry.checked_out, repr(entry.profile))
        groups.setdefault(key, []).append(entry)
    for group in groups.values():
        again = _run_group(group, results, make_listener)
        for entry in group:
            if entry.trial.id in again:
                records[entry.original.trial.id] = again[entry.trial.id]
    return records


def _run_group(
    group: Sequence[Prepared], results: Results, make_listener: MakeListener
) -> dict[str, Record]:
    """Run trials that share sweep, code and profile; return their records by id."""
    trials = [entry.trial for entry in group]
    leader = group[0]
    settings, profile = leader.original.settings, leader.profile
    sweep = rebuild_sweep(trials, settings, leader.original.sweep, leader.checked_out.base_folder)
    launcher = Torchrun.of(profile, leader.checked_out.python_path)
    for uses in {trial.cell.workload.uses for trial in trials}:
        # From here, in case other folders were added later.
        imported_distributions(uses, sweep.base_folder)
    folder = results.sweep_folder(sweep.name)
    records: dict[str, Record] = {}
    with ExitStack() as stack:
        stack.enter_context(lock(folder))
        write_spec(sweep, folder)
        listener = stack.enter_context(make_listener(sweep))
        listener.on_plan(trials, ())
        stop_reason = stack.enter_context(deferred_interrupts(listener.on_message))
        runner = Runner(
            sweep=sweep,
            profile=profile,
            folder=folder,
            launcher=launcher,
            listener=listener,
            peaks={},
            rank_code=code_of_ranks(leader.original, leader.sources),
            stop_reason=stop_reason,
            stacks={entry.stack.name: entry.stack for entry in group if entry.stack is not None},
        )
        for record in runner.run(trials):
            records[record.trial.id] = record
    return records
