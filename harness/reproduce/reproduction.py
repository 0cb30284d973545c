"""`harness reproduce`: from trials on record to a verdict on whether they can be had again.

The conditions are compared before anything runs, so that nothing does if they have to be the same
and are not. Then all trials run again, and each is compared with what it computed before. Where
numbers differ although the same is computed, a trial runs twice more, in double precision: the
first run shows how large rounding errors are, the second one whether anything but them varies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import harness
from harness.analysis.evidence import compare_evidence, evidence_of_record
from harness.analysis.questions import ACCURACY_MARGIN
from harness.analysis.result import CellResult, join, of_trial
from harness.analysis.rungs import Rung
from harness.core.errors import BadInput
from harness.core.packages import installed_packages, pins
from harness.core.paths import Results, write_atomically
from harness.core.text import counted
from harness.launch.runner import COMPLETE
from harness.records.differences import Difference, Value, differences
from harness.records.files import write_record
from harness.records.record import Record
from harness.records.seal import sealed_text
from harness.reproduce.bundle import (
    CONTROL_FOLDER,
    EXACT_FOLDER,
    RECORD_SUFFIX,
    RECORDED_FOLDER,
    RESULTS_FOLDER,
)
from harness.reproduce.conditions import (
    fields_of_record,
    has_other_kernels,
    is_same_computation,
    most_likely_cause,
)
from harness.reproduce.rerun import (
    MakeListener,
    Options,
    Original,
    Prepared,
    Preparer,
    read_packages,
    run_again,
)
from harness.reproduce.verdict import (
    CodeUsed,
    ReproductionVerdict,
    SeedVerdict,
    TrialVerdict,
    outcome_of,
    overall,
    overall_rung,
    rung_with_seeds,
    seed_verdict,
)
from harness.spec.cell import Cell, placeholders_of

HERE_FILE = "requirements-here.txt"
RECORDED_FILE = "requirements-recorded.txt"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The rung that a reproduction has to reach, and its conditions."""

    rung: Rung = "fp64"
    same_conditions: bool = False  # whether nothing runs unless all conditions are the same
    margin: float = ACCURACY_MARGIN  # difference of the target metric that matters, in its unit


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The trials to reproduce, and how they are named."""

    name: str  # as the user called it
    originals: Sequence[Original]
    commands: Sequence[str]  # that repeat it


def reproduce(
    subject: Subject,
    options: Options,
    demand: Demand,
    folder: Path,
    make_listener: MakeListener,
    on_prepared: Callable[[Sequence[Prepared]], None],
) -> ReproductionVerdict:
    """Run trials again, write the evidence into `folder`, and return the verdict.

    `on_prepared` is called once the differences from here are known, before anything runs. Raises
    BadInput for code, data or ranks that are unavailable here, and for conditions that differ where
    they must be the same.
    """
    with ExitStack() as stack:
        preparer = Preparer(options, stack)
        prepared = [preparer.prepare(original) for original in subject.originals]
        differing = dict.fromkeys(str(entry) for trial in prepared for entry in trial.differences)
        if demand.same_conditions and differing:
            raise BadInput(
                f"--strict: found {counted(len(differing), 'difference')}:"
                f" {'; '.join(differing)}; allowed: none"
            )
        on_prepared(prepared)
        again = run_again(prepared, Results(folder / RESULTS_FOLDER), make_listener)
        undecided = _find_undecided(prepared, again, demand)
        exact = [run_again(undecided, Results(folder / EXACT_FOLDER), make_listener)]
        completed = [entry for entry in undecided if _is_complete(entry, exact[0])]
        exact.append(run_again(completed, Results(folder / CONTROL_FOLDER), make_listener))
    write_environments(folder, subject.originals)
    return _judge(subject, prepared, again, exact, demand, folder)


def _find_undecided(
    prepared: Sequence[Prepared], again: Mapping[str, Record], demand: Demand
) -> list[Prepared]:
    """Return the trials that only runs in double precision can judge, in that precision.

    Those are trials whose numbers differ by more than a few ULP, if the fp64 rule is enough. With
    other code or data, a run in double precision says nothing about the recorded trial.
    """
    if demand.rung in ("bitwise", "ulp"):
        return []
    undecided = []
    for entry in prepared:
        if not _is_complete(entry, again):
            continue
        record = again[entry.original.trial.id]
        agreement = compare_evidence(entry.original.evidence, evidence_of_record(record))
        if agreement.rung is not None or not agreement.has_series:
            continue
        if _ignores_precision(entry.trial.cell):
            continue
        if is_same_computation(_all_differences(entry, record)):
            axes = replace(entry.trial.cell.axes, precision="fp64")
            # With the rule, it might stop at another evaluation.
            cell = replace(entry.trial.cell, axes=axes, stop=None)
            undecided.append(replace(entry, trial=replace(entry.trial, cell=cell)))
    return undecided


def _ignores_precision(cell: Cell) -> bool:
    """Return whether a cell's script is not told its precision, so that nothing has it compute in fp64."""
    workload = cell.workload
    return workload.is_script and "precision" not in placeholders_of(workload.arguments or ())


def _is_complete(entry: Prepared, records: Mapping[str, Record]) -> bool:
    """Return whether a trial has a new record with a result."""
    record = records.get(entry.original.trial.id)
    return record is not None and record.status in COMPLETE


def _judge(
    subject: Subject,
    prepared: Sequence[Prepared],
    again: Mapping[str, Record],
    exact: Sequence[Mapping[str, Record]],
    demand: Demand,
    folder: Path,
) -> ReproductionVerdict:
    """Return the verdict, and write the records into the bundle."""
    seeds = _seed_verdicts(prepared, again, demand.margin)
    trials = []
    for entry in prepared:
        trial_id = entry.original.trial.id
        exact_runs = [records[trial_id] for records in exact if trial_id in records]
        of_seeds = seeds.get(entry.original.trial.cell.id)
        record = again.get(trial_id)
        trials.append(_judge_trial(entry, record, exact_runs, demand, of_seeds, folder))
    return ReproductionVerdict(
        subject=subject.name,
        demanded=demand.rung,
        rung=overall_rung([trial.rung for trial in trials]),
        outcome=overall([trial.outcome for trial in trials]),
        made=time.time(),
        version=harness.__version__,
        commands=subject.commands,
        trials=trials,
        seeds=list(seeds.values()),
    )


def _seed_verdicts(
    prepared: Sequence[Prepared], again: Mapping[str, Record], margin: float
) -> dict[str, SeedVerdict]:
    """Return the verdicts of seeds by the id of the recorded cell.

    Only cells with several seeds have one, and only if all ran again with the same code: where the
    recorded code of a seed is unavailable, that seed runs with the code here.
    """
    recorded: dict[str, list[CellResult]] = {}
    results: dict[str, list[CellResult]] = {}
    for entry in prepared:
        if _is_complete(entry, again):
            record = again[entry.original.trial.id]
            cell_id = entry.original.trial.cell.id
            recorded.setdefault(cell_id, []).append(_result_of(entry.original))
            results.setdefault(cell_id, []).append(of_trial(_as_done(record)))
    verdicts = {}
    for cell_id, parts in recorded.items():
        joined = join(results[cell_id])
        has_several_seeds = len({trial.seed for part in parts for trial in part.trials}) > 1
        if has_several_seeds and len(joined) == 1:
            (before,), (now,) = join(parts), joined
            verdict = seed_verdict(before, now, margin)
            if verdict is not None:
                verdicts[cell_id] = verdict
    return verdicts


def _result_of(original: Original) -> CellResult:
    """Return the numbers of a recorded trial."""
    if original.record is not None:
        return of_trial(_as_done(original.record))
    assert original.result is not None
    return CellResult(
        cell=original.trial.cell,
        target=original.target,
        conditions={},
        trials=[original.result],
        left_out={},
    )


def _as_done(record: Record) -> Record:
    """Return a complete record as done: its bits are valid, whatever its speed."""
    return replace(record, status="done", violations=())


def _judge_trial(
    prepared: Prepared,
    again: Record | None,
    exact_runs: Sequence[Record],
    demand: Demand,
    seeds: SeedVerdict | None,
    folder: Path,
) -> TrialVerdict:
    """Return the verdict on one trial, and write its record into the bundle.

    `again` is its new record, None where the command was stopped before it. `exact_runs` are those in
    double precision: two, one if it failed, or none.
    """
    original = prepared.original
    code = {
        name: CodeUsed(choice=source.choice, reason=source.reason)
        for name, source in prepared.sources.items()
    }
    unknown = TrialVerdict(
        trial=original.trial.id,
        label=original.trial.cell.label,
        seed=original.trial.seed,
        again=prepared.trial.id,
        outcome="failed",
        rung=None,
        agreement=None,
        differences=prepared.differences,
        cause=None,
        failure="it was not run",
        code=code,
        seconds=0.0,
        source=_write_original(original, folder),
        result=None,
    )
    if again is None:
        return unknown
    finished = replace(
        unknown, seconds=max(0.0, again.ended - again.started), result=_path_of(again, folder)
    )
    if again.status not in COMPLETE:
        return replace(finished, failure=str(again.failure))
    exact = []
    failure = _exact_failure(exact_runs)
    if failure is not None:
        finished = replace(finished, exact_failure=failure)
    elif exact_runs:
        first, control = exact_runs
        finished = replace(
            finished,
            exact=_path_of(first, folder, EXACT_FOLDER),
            control=_path_of(control, folder, CONTROL_FOLDER),
        )
        exact = [evidence_of_record(first), evidence_of_record(control)]
    all_differences = _all_differences(prepared, again)
    agreement = compare_evidence(
        original.evidence,
        evidence_of_record(again),
        exact,
        has_other_kernels=has_other_kernels(all_differences),
    )
    rung = rung_with_seeds(agreement, seeds)
    is_undecided = rung is None and agreement.has_series and demand.rung not in ("bitwise", "ulp")
    is_same = is_same_computation(all_differences)
    if is_undecided and is_same and _ignores_precision(again.trial.cell):
        reason = "no argument tells its script the precision"
        finished = replace(finished, exact_failure=reason)
    return replace(
        finished,
        outcome=outcome_of(agreement, rung, demand.rung, all_differences, finished.exact_failure),
        rung=rung,
        agreement=agreement,
        differences=all_differences,
        cause=most_likely_cause(all_differences, agreement.first_difference),
        failure=None,
    )


def _exact_failure(exact: Sequence[Record]) -> str | None:
    """Return why runs in double precision judge nothing, None if both ended or none was needed."""
    for record in exact:
        if record.status not in COMPLETE:
            return str(record.failure)
    return "stopped before the control" if len(exact) == 1 else None


def _all_differences(prepared: Prepared, again: Record) -> Sequence[Difference]:
    """Return the differences between a record and the new one, which knows more than the plan did.

    Settings of the run are compared as planned: the new record has those of a rerun.
    """
    if prepared.original.record is None:
        return prepared.differences
    of_run = [entry for entry in prepared.differences if entry.field.startswith("run.")]
    recorded = fields_of_record(prepared.original.record)
    now = fields_of_record(again)
    compared = differences(_without_run(recorded), _without_run(now))
    return [*compared, *of_run]


def _without_run(fields: Mapping[str, Value]) -> dict[str, Value]:
    """Return a table without the settings of the run."""
    return {name: value for name, value in fields.items() if not name.startswith("run.")}


def _path_of(record: Record, folder: Path, results: str = RESULTS_FOLDER) -> str:
    """Return the path of a new record in the bundle, in its folder `results`."""
    sweep_folder = Results(folder / results).sweep_folder(record.sweep)
    path = sweep_folder.trial_folder(record.trial.id).record_path
    return path.relative_to(folder).as_posix()


def _write_original(original: Original, folder: Path) -> str:
    """Write the record of a trial, and return its path in the bundle."""
    if original.record is not None:
        name = f"{RECORDED_FOLDER}/{original.trial.id}{RECORD_SUFFIX}"
        write_record(folder / name, original.record)
        return name
    assert original.result is not None
    name = f"{RECORDED_FOLDER}/{original.trial.id}.baseline.json"
    content = {"cell": asdict(original.trial.cell), "trial": asdict(original.result)}
    write_atomically(folder / name, sealed_text(content))
    return name


def write_environments(folder: Path, originals: Sequence[Original]) -> None:
    """Write the packages of this environment and those of the records, pinned.

    These are all installed packages where the sweep's folder lists them, else those in the records.
    """
    write_atomically(folder / HERE_FILE, pins(installed_packages()))
    recorded: dict[str, str] = {}
    for original in originals:
        text = read_packages(original)
        if text is not None:
            write_atomically(folder / RECORDED_FILE, text)
            return
        if original.environment is not None:
            recorded |= original.environment.software.packages
    if recorded:
        write_atomically(folder / RECORDED_FILE, pins(recorded))
