"""Says what came of a reproduction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.analysis.evidence import Fp64Problem
from harness.analysis.rungs import Rung
from harness.core.errors import one_line
from harness.core.paths import Results
from harness.core.text import counted
from harness.launch.runner import TrialListener
from harness.records.differences import shown
from harness.render.console import TerminalConsole, print_json, show_table, styled
from harness.render.run import RunView
from harness.render.table import Look, Table
from harness.reproduce.reproduction import (
    RESULTS_FOLDER,
    Outcome,
    ReproductionVerdict,
    TrialVerdict,
)
from harness.reproduce.rerun import Prepared
from harness.spec.sweep import Sweep

LONGEST_VALUE = 50  # characters of a value in the table of conditions; verdict.json has all
LONGEST_DIGEST = 12
LOOKS: Mapping[Outcome, Look] = {
    "repeated": "better",
    "reproduced": "better",
    "inconclusive": "open",
}
RUNG_TEXTS: Mapping[Rung | None, str] = {
    "bitwise": "bitwise equal",
    "rounding": "within rounding errors",
    "different": "different",
    None: "beyond rounding errors",
}
FP64_PROBLEM_TEXTS: Mapping[Fp64Problem, str] = {
    "not deterministic": (
        "two runs in double precision differ by more than rounding errors, so the trial is not"
        " deterministic"
    ),
    "other random numbers": (
        "the run in double precision draws other random numbers, so it can't tell rounding errors"
        " from them"
    ),
}
OUTCOME_TEXTS: Mapping[Outcome, str] = {
    "repeated": "repeated",
    "reproduced": "reproduced",
    "different": "not reproduced",
    "inconclusive": "inconclusive",
    "failed": "failed",
}


def trial_line(trial: TrialVerdict) -> str:
    """Return what a trial that ran again comes to, in one line."""
    outcome = OUTCOME_TEXTS[trial.outcome]
    if trial.agreement is None:
        return f"{trial.trial}: {outcome}: {trial.failure}"
    text = f"{trial.trial}: {outcome}: {_rung_text(trial)}"
    if trial.outcome in ("repeated", "reproduced"):
        return f"{text}, {_conditions_text(trial)}"
    parts = [text, _fp64_text(trial), _first_text(trial), _cause_text(trial)]
    return "; ".join(filter(None, parts))


def _rung_text(trial: TrialVerdict) -> str:
    """Return the rung of a trial, with how far its numbers are apart."""
    agreement = trial.agreement
    assert agreement is not None
    if trial.rung != "bitwise" and not (agreement.has_series and agreement.max_relative != 0):
        return "digests differ, and no recorded number does"
    text = RUNG_TEXTS[trial.rung]
    if trial.rung != "bitwise" and agreement.max_relative:
        text += f" (up to {agreement.max_relative:.2g} relative)"
    return text


def _conditions_text(trial: TrialVerdict) -> str:
    """Return in how many conditions a trial differs from what was recorded."""
    if not trial.differences:
        return "under the same conditions"
    if len(trial.differences) == 1:
        return f"though {trial.differences[0].field} differs"
    return f"though {len(trial.differences)} conditions differ"


def _first_text(trial: TrialVerdict) -> str:
    """Return where a trial differs first: `first in loss of rank 0 at step 3 (0.25, recorded 0.5)`."""
    if trial.agreement is None or trial.agreement.first_difference is None:
        return ""
    difference = trial.agreement.first_difference
    moment = "" if difference.step is None else f" at step {difference.step}"
    again, recorded = _short(difference.again), _short(difference.recorded)
    return f"first in {difference.subject}{moment} ({again}, recorded {recorded})"


def _fp64_text(trial: TrialVerdict) -> str:
    """Return why runs in double precision judge nothing; empty if they do, or none was needed."""
    if trial.exact_failure is not None:
        return f"the run in double precision failed: {trial.exact_failure}"
    if trial.agreement is None or trial.agreement.fp64_problem is None:
        return ""
    return FP64_PROBLEM_TEXTS[trial.agreement.fp64_problem]


def _short(value: str) -> str:
    """Return a number as it is, and the head of a digest."""
    return value[:LONGEST_DIGEST] if len(value) >= 32 else value


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


class ReproductionView:
    """Shows a reproduction on the terminal; with `quiet`, on stderr, as the output is JSON."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self._folder = folder
        self._console = TerminalConsole(stderr=quiet)

    @contextmanager
    def listener(self, sweep: Sweep) -> Iterator[TrialListener]:
        """Show the progress of a sweep while the block lasts, as `harness run` does."""
        results = Results(self._folder / RESULTS_FOLDER)
        with RunView(sweep, results, self._console) as view:
            yield view

    def show_code(self, prepared: Sequence[Prepared]) -> None:
        """Print which code runs, before it does."""
        for source in dict.fromkeys(entry.source for entry in prepared):
            self._console.print_text(f"code of the workload: {source.choice} ({source.reason})")
        if any(entry.source.choice == "recorded" for entry in prepared):
            self._console.print_text(
                "the code that the record names runs with your rights: reproduce records of people"
                " whose code you would run"
            )

    def show_verdict(self, verdict: ReproductionVerdict) -> None:
        """Print the conditions that differ, what came of each trial, and where the records are."""
        differing = dict.fromkeys(entry for trial in verdict.trials for entry in trial.differences)
        if differing:
            verb = "differs" if len(differing) == 1 else "differ"
            self._console.print_text(f"{counted(len(differing), 'condition')} {verb}:")
            table = Table(["condition", "recorded", "here"], [])
            for entry in differing:
                recorded = one_line(shown(entry.a), LONGEST_VALUE)
                table.add_row(entry.field, recorded, one_line(shown(entry.b), LONGEST_VALUE))
            show_table(self._console, table)
        for trial in verdict.trials:
            look = LOOKS.get(trial.outcome, "failed")
            self._console.print_markup(styled(trial_line(trial), look))
        self._console.print_text(f"records: {self._folder}")


def print_verdict_json(verdict: ReproductionVerdict, folder: Path) -> None:
    """Print a verdict as JSON, with the folder of its records."""
    print_json({"verdict": verdict, "folder": folder})
