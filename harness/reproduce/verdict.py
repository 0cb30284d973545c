"""Judges trials that ran again: the rung that each reaches, and the verdict.

In the terms of the ACM (Artifact Review and Badging 1.1), a result obtained again in the same set-up
is repeated; one obtained in another set-up is reproduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.evidence import Agreement
from harness.analysis.questions import metric_difference
from harness.analysis.result import CellResult
from harness.analysis.rungs import Rung, at_least, lowest
from harness.records.bounds import Amount, Moment, Number
from harness.records.differences import Difference
from harness.statistics.verdict import judge

SCHEMA = "3.0"
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
class CodeUsed:
    """Which code of one repository a trial ran again with."""

    choice: Literal["recorded", "here"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrialVerdict:
    """The verdict on one trial that ran again."""

    trial: str  # the id on record
    label: str  # of its cell
    seed: Number
    again: str  # the id of the rerun: another one where settings or code have changed
    outcome: Outcome
    rung: Rung | None  # None where it is undecided, and where the trial failed
    agreement: Agreement | None  # None where the trial failed
    differences: Sequence[Difference]  # of the conditions, the likeliest cause first
    cause: Difference | None  # that most likely explains another result
    failure: str | None  # why the trial failed
    code: Mapping[str, CodeUsed]  # by repository: `harness`, `workload`
    seconds: Amount  # that it took to run again
    source: str  # file of the bundle with what was recorded
    result: str | None  # file of the bundle with the new record
    # And with those of two runs in double precision, the second one as a control; None for none.
    exact: str | None = None
    control: str | None = None
    exact_failure: str | None = None  # why a run in double precision failed


@dataclass(frozen=True, kw_only=True)
class SeedVerdict:
    """The comparison of a cell's target metric over seeds."""

    cell: str  # id
    label: str
    metric: str
    seeds: Number  # that both have
    mean_recorded: float
    mean_again: float
    shows: Literal["same", "different", "nothing"]
    margin: Amount  # the smallest difference that matters, in the metric's unit
    interval: tuple[float, float] | None  # of the difference, by the test that decided


@dataclass(frozen=True, kw_only=True)
class ReproductionVerdict:
    """The verdict of a reproduction: the content of a bundle's `verdict.json`."""

    schema: str = SCHEMA
    subject: str  # the trials to reproduce, as the user named them
    demanded: Rung
    rung: Rung | None  # that all trials reach
    outcome: Outcome
    made: Moment  # seconds since the epoch
    version: str  # of the harness
    commands: Sequence[str]  # that repeat it
    trials: Sequence[TrialVerdict]
    seeds: Sequence[SeedVerdict]

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        return EXIT_CODES[self.outcome]


def seed_verdict(recorded: CellResult, again: CellResult, margin: float) -> SeedVerdict | None:
    """Compare a cell's target metric, paired by seed.

    `margin` is the smallest difference that matters, in the metric's unit. None where the two have
    no metric in common.
    """
    difference = metric_difference(recorded, again, margin)
    if difference is None:
        return None
    (judged,) = judge([difference.question])
    shows: Literal["same", "different", "nothing"] = "nothing"
    if judged.outcome == "same":
        shows = "same"
    elif judged.outcome != "inconclusive":
        shows = "different"
    return SeedVerdict(
        cell=recorded.cell.id,
        label=recorded.cell.label,
        metric=difference.question.metric.name,
        seeds=difference.question.estimate.count,
        mean_recorded=difference.mean_a,
        mean_again=difference.mean_b,
        shows=shows,
        margin=margin,
        interval=judged.interval,
    )


def rung_with_seeds(agreement: Agreement, seeds: SeedVerdict | None) -> Rung | None:
    """Return the rung of a trial, which its cell's seeds decide where its numbers do not."""
    if agreement.rung is not None or seeds is None:
        return agreement.rung
    rungs: Mapping[str, Rung | None] = {"same": "equivalent", "different": "different"}
    return rungs.get(seeds.shows)


def outcome_of(
    agreement: Agreement,
    rung: Rung | None,
    demanded: Rung,
    differences: Sequence[Difference],
    exact_failure: str | None = None,
) -> Outcome:
    """Return the outcome of one trial.

    Where only seeds could decide and there are too few of them, numbers that differ by more than the
    fp64 rule allows are different if that rule was demanded. The rule is undecided where the runs in
    double precision failed or drew other random numbers. Digests alone, as in a baseline, do not
    tell how much numbers differ.
    """
    if rung is not None and at_least(rung, demanded):
        return "reproduced" if differences else "repeated"
    is_undecided = exact_failure is not None or agreement.fp64_problem == "other random numbers"
    if demanded == "fp64" and is_undecided and rung in (None, "equivalent"):
        return "inconclusive"
    if rung is not None or demanded == "bitwise":
        return "different"
    if demanded != "equivalent" and agreement.has_series:
        return "different"
    return "inconclusive"


def overall(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of several trials: the worst of them."""
    return min(outcomes, key=WORST_FIRST.index)


def overall_rung(rungs: Sequence[Rung | None]) -> Rung | None:
    """Return the rung that all trials reach, None where that of one is undecided."""
    reached = [rung for rung in rungs if rung is not None]
    if len(reached) < len(rungs):
        return None
    return lowest(reached)
