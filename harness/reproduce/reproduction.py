"""`harness reproduce`: from trials on record to a verdict on whether they can be had again.

All trials run again, and each is compared with what it computed before. Where numbers differ although
the same is computed, a trial runs twice more, in double precision: the first run shows how large
rounding errors are, the second one whether anything but them varies.

A result obtained again in the same set-up is repeated; one obtained in another set-up is reproduced
(ACM, Artifact Review and Badging 1.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from harness.analysis.rungs import (
    Agreement,
    Rung,
    at_least,
    compare_evidence,
    evidence_of_record,
    lowest,
)
from harness.core.paths import Results, write_atomically
from harness.launch.attempts import COMPLETE
from harness.records.differences import Difference, differences
from harness.records.format import sealed_text
from harness.records.record import Record
from harness.reproduce.conditions import (
    fields_of_record,
    has_other_kernels,
    is_same_computation,
    most_likely_cause,
)
from harness.reproduce.rebuild import cell_in_fp64
from harness.reproduce.rerun import MakeListener, Original, Prepared, prepare, run_again
from harness.reproduce.source import Choice
from harness.sweep.cell import Cell, placeholders_of

VERDICT_FILE = "verdict.json"
RESULTS_FOLDER = "results"
EXACT_FOLDER = "exact"  # not in RESULTS_FOLDER: a trial of fp64 has the same id in its exact run
CONTROL_FOLDER = "control"
Outcome = Literal["repeated", "reproduced", "different", "inconclusive", "failed"]
EXIT_CODES: Mapping[Outcome, int] = {
    "repeated": 0,
    "reproduced": 0,
    "different": 1,
    "failed": 1,
    "inconclusive": 3,
}
# The verdict of several trials is the first of these that one of them has.
WORST_FIRST: Sequence[Outcome] = ("failed", "different", "inconclusive", "reproduced", "repeated")


@dataclass(frozen=True, kw_only=True)
class TrialVerdict:
    """The verdict on one trial that ran again."""

    trial: str  # the id on record
    again: str  # the id of the rerun: another one where settings or code have changed
    code: str  # which code ran and why
    outcome: Outcome = "failed"
    rung: Rung | None = None  # None where it is undecided, and where the trial failed
    agreement: Agreement | None = None  # None where the trial failed
    differences: Sequence[Difference] = ()  # of the conditions, the likeliest cause first
    cause: Difference | None = None  # that most likely explains another result
    failure: str | None = None  # why the trial failed
    exact_failure: str | None = None  # why runs in double precision judge nothing


@dataclass(frozen=True, kw_only=True)
class ReproductionVerdict:
    """The verdict of a reproduction: the content of `verdict.json`."""

    subject: str  # the trials to reproduce, as the user named them
    demanded: Rung
    outcome: Outcome
    trials: Sequence[TrialVerdict]

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        return EXIT_CODES[self.outcome]

    @property
    def rung(self) -> Rung | None:
        """Return the rung that all trials reach, None where that of one is undecided."""
        reached = [trial.rung for trial in self.trials if trial.rung is not None]
        if len(reached) < len(self.trials):
            return None
        return lowest(reached)


def reproduce(
    subject: str,
    originals: Sequence[Original],
    code: Choice | None,
    data: Sequence[str],
    demanded: Rung,
    folder: Path,
    make_listener: MakeListener,
    on_prepared: Callable[[Sequence[Prepared]], None],
) -> ReproductionVerdict:
    """Run trials again, leave their records and the verdict in `folder`, and return the verdict.

    `on_prepared` is called once it is known which code runs, before anything does. Raises BadInput for
    code, data or ranks that are unavailable here.
    """
    with ExitStack() as stack:
        prepared = prepare(originals, code, data, stack)
        on_prepared(prepared)
        again = run_again(prepared, Results(folder / RESULTS_FOLDER), make_listener)
        undecided = _find_undecided(prepared, again, demanded)
        exact = run_again(undecided, Results(folder / EXACT_FOLDER), make_listener)
        completed = [entry for entry in undecided if _is_complete(entry, exact)]
        control = run_again(completed, Results(folder / CONTROL_FOLDER), make_listener)
    trials = []
    for entry in prepared:
        trial_id = entry.original.record.trial.id
        exact_runs = []
        for records in (exact, control):
            if trial_id in records:
                exact_runs.append(records[trial_id])
        trial = _judge_trial(entry, again.get(trial_id), exact_runs, demanded)
        trials.append(trial)
    outcomes = [trial.outcome for trial in trials]
    verdict = ReproductionVerdict(
        subject=subject,
        demanded=demanded,
        outcome=min(outcomes, key=WORST_FIRST.index),
        trials=trials,
    )
    write_atomically(folder / VERDICT_FILE, sealed_text(asdict(verdict)))
    return verdict


def _find_undecided(
    prepared: Sequence[Prepared], again: Mapping[str, Record], demanded: Rung
) -> list[Prepared]:
    """Return the trials that only runs in double precision can judge, in that precision.

    Those are trials whose numbers differ under conditions that let operations round otherwise, if
    rounding is demanded. With other code or data, a run in double precision
    says nothing about the recorded trial.
    """
    if demanded != "rounding":
        return []
    undecided = []
    for entry in prepared:
        if not _is_complete(entry, again):
            continue
        recorded = entry.original.record
        record = again[recorded.trial.id]
        evidence = evidence_of_record(recorded)
        agreement = compare_evidence(evidence, evidence_of_record(record))
        if agreement.rung is not None or not agreement.has_series:
            continue
        if _ignores_precision(entry.trial.cell):
            continue
        entries = _differences(recorded, record)
        if has_other_kernels(entries) and is_same_computation(entries):
            trial = replace(entry.trial, cell=cell_in_fp64(entry.trial.cell))
            undecided.append(replace(entry, trial=trial))
    return undecided


def _ignores_precision(cell: Cell) -> bool:
    """Return whether a cell's script is not told its precision, so that nothing has it compute in fp64."""
    workload = cell.workload
    return workload.is_script and "precision" not in placeholders_of(workload.arguments or ())


def _is_complete(entry: Prepared, records: Mapping[str, Record]) -> bool:
    """Return whether a trial has a new record with a result."""
    record = records.get(entry.original.record.trial.id)
    return record is not None and record.status in COMPLETE


def _differences(recorded: Record, again: Record) -> list[Difference]:
    """Return the conditions that differ, the likeliest cause of another result first."""
    return differences(fields_of_record(recorded), fields_of_record(again))


def _judge_trial(
    prepared: Prepared, again: Record | None, exact_runs: Sequence[Record], demanded: Rung
) -> TrialVerdict:
    """Return the verdict on one trial.

    `again` is its new record, None where the command was stopped before it. `exact_runs` are those in
    double precision: two, one if it failed, or none.
    """
    recorded = prepared.original.record
    code = f"{prepared.source.choice}: {prepared.source.reason}"
    verdict = TrialVerdict(
        trial=recorded.trial.id,
        again=prepared.trial.id,
        code=code,
    )
    if again is None:
        return replace(verdict, failure="it was not run")
    if again.status not in COMPLETE:
        return replace(verdict, failure=str(again.failure))
    exact_failure = _exact_failure(exact_runs)
    exact = []
    if exact_failure is None:
        exact = [evidence_of_record(record) for record in exact_runs]
    entries = _differences(recorded, again)
    agreement = compare_evidence(
        evidence_of_record(recorded),
        evidence_of_record(again),
        exact,
        has_other_kernels=has_other_kernels(entries),
    )
    is_undecided = agreement.rung is None and agreement.has_series and demanded == "rounding"
    if is_undecided and is_same_computation(entries) and _ignores_precision(again.trial.cell):
        exact_failure = "no argument tells its script the precision"
    return replace(
        verdict,
        outcome=outcome_of(agreement, demanded, entries, exact_failure),
        rung=agreement.rung,
        agreement=agreement,
        differences=entries,
        cause=most_likely_cause(entries, agreement.first_difference),
        exact_failure=exact_failure,
    )


def _exact_failure(exact: Sequence[Record]) -> str | None:
    """Return why runs in double precision judge nothing, None if both ended or none was needed."""
    for record in exact:
        if record.status not in COMPLETE:
            return str(record.failure)
    return "stopped before the control" if len(exact) == 1 else None


def outcome_of(
    agreement: Agreement,
    demanded: Rung,
    entries: Sequence[Difference],
    exact_failure: str | None = None,
) -> Outcome:
    """Return the outcome of one trial; `entries` are the conditions that differ.

    Where none of them lets operations round otherwise, other bits are no rounding errors. The fp64 rule
    is undecided where the runs in double precision failed or drew other random numbers, and where
    digests differ and no numbers were recorded.
    """
    rung = agreement.rung
    if rung == "bitwise":
        return "reproduced" if entries else "repeated"
    if not has_other_kernels(entries):
        return "different"
    if rung is not None:
        return "reproduced" if at_least(rung, demanded) else "different"
    is_undecided = exact_failure is not None or agreement.fp64_problem == "other random numbers"
    if demanded == "rounding" and is_undecided:
        return "inconclusive"
    if demanded == "bitwise" or agreement.has_series:
        return "different"
    return "inconclusive"
