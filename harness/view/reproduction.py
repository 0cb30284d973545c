"""Says what came of a reproduction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.core.errors import one_line
from harness.records.differences import shown
from harness.reproduce.reproduction import ReproductionVerdict, TrialVerdict
from harness.reproduce.rerun import Prepared
from harness.view.value import LOOKS, Styled
from harness.view.view import Table, View

LONGEST_VALUE = 50  # characters of a value in the table of conditions; verdict.json has all


def code_lines(prepared: Sequence[Prepared]) -> list[str]:
    """Return which code runs, each once, and what to know where it is not that of this checkout."""
    sources = dict.fromkeys(entry.source for entry in prepared)
    lines = [f"code of the workload: {source.choice} ({source.reason})" for source in sources]
    if any(source.choice == "recorded" for source in sources):
        lines.append(
            "the code that the record names runs with your rights: reproduce records of people whose"
            " code you would run"
        )
    return lines


def verdict_view(verdict: ReproductionVerdict, folder: Path) -> View:
    """Return the conditions that differ, what came of each trial, and where the records are."""
    table = Table(["condition", "recorded", "here"])
    for entry in dict.fromkeys(entry for trial in verdict.trials for entry in trial.differences):
        recorded = one_line(shown(entry.a), LONGEST_VALUE)
        table.add_row(entry.field, recorded, one_line(shown(entry.b), LONGEST_VALUE))
    lines = [Styled(trial_line(trial), LOOKS[trial.outcome]) for trial in verdict.trials]
    return View(
        result={"verdict": verdict, "folder": folder},
        tables=[table],
        lines=[*lines, f"records: {folder}"],
    )


def trial_line(trial: TrialVerdict) -> str:
    """Return what a trial that ran again comes to, in one line."""
    start = f"{trial.trial}: {trial.outcome}: "
    if trial.agreement is None:
        return f"{start}{trial.failure}"
    text = f"{start}{_rung_text(trial)}"
    if trial.outcome in ("repeated", "reproduced"):
        fields = [difference.field for difference in trial.differences]
        if not fields:
            return f"{text}, under the same conditions"
        subject = f"{fields[0]} differs" if len(fields) == 1 else f"{len(fields)} conditions differ"
        return f"{text}, though {subject}"
    if trial.exact_failure is not None:
        text += f"; the run in double precision failed: {trial.exact_failure}"
    elif trial.agreement.fp64_problem is not None:
        text += f"; runs in double precision can't judge it: {trial.agreement.fp64_problem}"
    first = trial.agreement.first_difference
    if first is not None:
        moment = "" if first.step is None else f" at step {first.step}"
        again, recorded = shown(first.again), shown(first.recorded)
        text += f"; first in {first.subject}{moment} ({again}, recorded {recorded})"
    cause = _cause_text(trial)
    return f"{text}; {cause}" if cause else text


def _rung_text(trial: TrialVerdict) -> str:
    """Return the rung of a trial, with how far its numbers are apart."""
    agreement = trial.agreement
    assert agreement is not None
    has_distance = agreement.has_series and agreement.max_relative != 0
    if trial.rung != "bitwise" and not has_distance:
        return "digests differ, and no recorded number does"
    text = str(trial.rung or "beyond rounding errors")
    if trial.rung != "bitwise" and agreement.max_relative:
        text += f" (up to {agreement.max_relative:.2g} relative)"
    return text


def _cause_text(trial: TrialVerdict) -> str:
    """Return what most likely explains a difference, such as `numpy (2.2.0, recorded 2.1.0)`."""
    cause = trial.cause
    if trial.rung == "rounding" and not trial.differences:
        return "nothing that chooses kernels differs, so these are no rounding errors"
    if cause is not None:
        here, recorded = shown(cause.b), shown(cause.a)
        return f"most likely because of {cause.field} ({here}, recorded {recorded})"
    if trial.agreement is None or trial.agreement.fp64_problem is not None:
        return ""
    return (
        "no recorded condition differs, so the trial is not deterministic, or what differs is not"
        " recorded"
    )
