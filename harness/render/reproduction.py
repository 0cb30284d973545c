"""Says what came of a reproduction, for the terminal and a bundle's `verdict.md`."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from harness.analysis.evidence import Fp64Problem
from harness.analysis.rungs import Rung
from harness.core.errors import one_line
from harness.core.paths import Results
from harness.core.text import counted
from harness.launch.runner import TrialListener
from harness.records.differences import Difference, shown
from harness.render.console import TerminalConsole, print_json, show_table, styled
from harness.render.run import RunView
from harness.render.table import Look, Table, markdown_lines
from harness.reproduce.bundle import RESULTS_FOLDER
from harness.reproduce.rerun import Prepared
from harness.reproduce.verdict import Outcome, ReproductionVerdict, SeedVerdict, TrialVerdict
from harness.spec.sweep import Sweep

LONGEST_VALUE = 50  # characters of a value in the table of conditions; verdict.md has all
LOOKS: Mapping[Outcome, Look] = {
    "repeated": "better",
    "reproduced": "better",
    "inconclusive": "open",
}

RUNG_TEXTS: Mapping[Rung | None, str] = {
    "bitwise": "bitwise equal",
    "ulp": "within a few ULP",
    "fp64": "within the fp64 rule",
    "equivalent": "statistically equivalent",
    "different": "different",
    None: "beyond rounding errors",
}
# Of a trial whose numbers no run in double precision was compared with, or none that counts.
NOT_JUDGED = "other numbers"
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
# In the ACM's words, a result in the same set-up is repeated, and one in another is reproduced.
OUTCOME_TEXTS: Mapping[Outcome, str] = {
    "repeated": "repeated",
    "reproduced": "reproduced",
    "different": "not reproduced",
    "inconclusive": "inconclusive",
    "failed": "failed",
}
LONGEST_DIGEST = 12
SAFE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")  # of a variable or a package; no option of a command
LISTED_TRIALS = 50  # in the text of a bundle; verdict.json has all


def verdict_line(verdict: ReproductionVerdict) -> str:
    """Return what a reproduction comes to, in one line."""
    outcome = OUTCOME_TEXTS[verdict.outcome]
    decisive = _decisive(verdict)
    if verdict.outcome == "failed":
        return f"{outcome}: {decisive.trial}: {decisive.failure}"
    trials = "" if len(verdict.trials) == 1 else f" ({counted(len(verdict.trials), 'trial')})"
    text = f"{outcome}: {rung_text(decisive)}{trials}"
    conditions = conditions_text(verdict)
    if verdict.outcome in ("repeated", "reproduced"):
        return f"{text}, {conditions}"
    parts = [text, _fp64_text(decisive), _first_text(decisive), _cause_text(decisive)]
    return "; ".join(filter(None, parts))


def _decisive(verdict: ReproductionVerdict) -> TrialVerdict:
    """Return the trial that the outcome comes from."""
    for trial in verdict.trials:
        if trial.outcome == verdict.outcome and trial.rung == verdict.rung:
            return trial
    for trial in verdict.trials:
        if trial.outcome == verdict.outcome:
            return trial
    return verdict.trials[0]


def rung_text(trial: TrialVerdict) -> str:
    """Return the rung of a trial, with how far its numbers are apart."""
    text = RUNG_TEXTS[trial.rung]
    agreement = trial.agreement
    if agreement is None:
        return text
    if trial.rung is None and (trial.exact is None or agreement.fp64_problem is not None):
        text = NOT_JUDGED
    if trial.rung == "ulp" and not agreement.max_ulp:
        return "digests differ, and no recorded number does"
    if trial.rung == "ulp":
        return f"within {agreement.max_ulp or 0} ULP"
    if trial.rung in ("fp64", "equivalent", "different", None) and agreement.max_relative:
        return f"{text} (up to {agreement.max_relative:.2g} relative)"
    return text


def conditions_text(verdict: ReproductionVerdict) -> str:
    """Return in how many conditions the trials differ from what was recorded."""
    fields = {entry.field for trial in verdict.trials for entry in trial.differences}
    if not fields:
        return "under the same conditions"
    if len(fields) == 1:
        return f"though {next(iter(fields))} differs"
    return f"though {len(fields)} conditions differ"


def _first_text(trial: TrialVerdict) -> str:
    """Return where a trial differs first: `first in loss of rank 0 at step 3 (0.25, recorded 0.5)`.

    Empty if nothing differs.
    """
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
    if len(value) >= 32:
        return value[:LONGEST_DIGEST]
    return value


def _cause_text(trial: TrialVerdict) -> str:
    """Return what most likely explains a difference, such as `numpy (2.2.0, recorded 2.1.0)`."""
    cause = trial.cause
    if cause is not None:
        here, recorded = shown(cause.b), shown(cause.a)
        return f"most likely because of {cause.field} ({here}, recorded {recorded})"
    if trial.agreement is None or trial.agreement.fp64_problem == "not deterministic":
        return ""
    if trial.exact is not None and trial.rung is None:
        return "no recorded condition differs, and runs here agree, so what differs is not recorded"
    if trial.agreement.first_difference is not None:
        return (
            "no recorded condition differs, so the trial is not deterministic, or what differs is"
            " not recorded"
        )
    return ""


def remedies(differences: Sequence[Difference]) -> list[str]:
    """Return the commands that bring conditions back to what was recorded, where commands can.

    They are safe to paste, whoever has written the records.
    """
    packages = []
    variables = []
    for entry in differences:
        section, _, name = entry.field.partition(".")
        is_package = name.startswith("packages.")
        name = name.removeprefix("packages.")
        if not SAFE_NAME.fullmatch(name) or not str(entry.a).isprintable():
            continue  # somebody else's bundle may hold any text
        if is_package and entry.a is not None:
            packages.append(shlex.quote(f"{name}=={entry.a}"))
        elif section == "variables" and entry.a is None:
            variables.append(f"unset {shlex.quote(name)}")
        elif section == "variables" and not str(entry.a).startswith("[redacted"):
            variables.append(f"export {shlex.quote(f'{name}={entry.a}')}")
    commands = []
    if packages:
        commands.append(f"pip install {' '.join(packages)}")
    return commands + variables


def markdown(verdict: ReproductionVerdict) -> str:
    """Return the text of a bundle's `verdict.md`."""
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(verdict.made))
    lines = [
        f"# {OUTCOME_TEXTS[verdict.outcome].capitalize()}: {verdict.subject}",
        "",
        f"{verdict_line(verdict)}.",
        "",
        f"Demanded: at least {RUNG_TEXTS[verdict.demanded]}. Made on {made} with harness"
        f" {verdict.version}. {ACM[verdict.outcome]}".rstrip(),
        "",
    ]
    lines += _conditions_section(verdict)
    lines += ["## Trials", ""]
    for trial in verdict.trials[:LISTED_TRIALS]:
        lines.append(f"### {trial.trial}")
        lines += ["", f"{trial.label}, seed {trial.seed}: {OUTCOME_TEXTS[trial.outcome]}."]
        lines += [*_trial_lines(trial), ""]
    hidden = len(verdict.trials) - LISTED_TRIALS
    if hidden > 0:
        lines += [f"And {counted(hidden, 'more trial')}, in `verdict.json`.", ""]
    if verdict.seeds:
        seeds = [f"- {seeds_text(entry)}" for entry in verdict.seeds]
        lines += ["## Over seeds", "", *seeds, ""]
    lines += ["## Repeat it", "", "```console", *verdict.commands, "```", ""]
    lines += [
        "`harness reproduce --check FOLDER` verifies this bundle: every file against"
        " `manifest.json`, and the verdict against the records in `recorded/` and `results/`.",
        "",
    ]
    return "\n".join(lines)


ACM: Mapping[Outcome, str] = {
    "repeated": "In the ACM's words the result is repeatable: the same set-up gives it again.",
    "reproduced": "In the ACM's words the result is reproducible: another set-up gives it again.",
    "different": "",
    "inconclusive": "",
    "failed": "",
}


def _conditions_section(verdict: ReproductionVerdict) -> list[str]:
    """Return which code ran again, the conditions that differ, and how to bring them back."""
    code: dict[str, None] = {}  # each line once
    for trial in verdict.trials:
        for name, used in trial.code.items():
            code[f"- {name}: {used.choice}, {used.reason}"] = None
    lines = ["## Conditions", "", *code, ""]
    differences = unique_differences([trial.differences for trial in verdict.trials])
    if not differences:
        return [*lines, "Nothing that was recorded differs.", ""]
    table = Table(["field", "recorded", "here"])
    for entry in differences:
        table.add_row(entry.field, shown(entry.a), shown(entry.b))
    lines += [*markdown_lines(table), ""]
    commands = remedies(differences)
    if commands:
        lines += ["These commands bring some of it back:", "", "```console", *commands, "```", ""]
    return lines


def unique_differences(of_trials: Sequence[Sequence[Difference]]) -> list[Difference]:
    """Return the differences of several trials, each once."""
    return list(dict.fromkeys(entry for of_trial in of_trials for entry in of_trial))


def _trial_lines(trial: TrialVerdict) -> list[str]:
    """Return what is known of a trial as items of a list."""
    agreement = trial.agreement
    if agreement is None:
        return ["", f"- {trial.failure}"]
    compared = ", ".join(agreement.compared)
    differing = "nothing differs"
    if agreement.differing:
        differing = f"{', '.join(agreement.differing)} differ"
    lines = ["", f"- {rung_text(trial)}", f"- compared: {compared}; {differing}"]
    for text in (_fp64_text(trial), _first_text(trial), _cause_text(trial)):
        if text:
            lines.append(f"- {text}")
    if trial.again != trial.trial:
        lines.append(f"- it ran again as {trial.again}, because what its id hashes has changed")
    lines.append(f"- recorded: `{trial.source}`, again: `{trial.result}`")
    return lines


def seeds_text(entry: SeedVerdict) -> str:
    """Return what the seeds of a cell show about its metric."""
    shows = {
        "same": "equivalent",
        "different": "different",
        "nothing": "not shown to be either",
    }[entry.shows]
    text = (
        f"{entry.label}: {entry.metric} {entry.mean_again:.4f}, recorded"
        f" {entry.mean_recorded:.4f}, over {entry.seeds} seeds: {shows} within"
        f" {entry.margin:g}"
    )
    if entry.interval is not None:
        low, high = entry.interval
        text += f" (difference {low:+.2g} to {high:+.2g})"
    return text


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

    def show_conditions(self, prepared: Sequence[Prepared]) -> None:
        """Print which code runs, and every condition that differs from what was recorded."""
        code: dict[str, None] = {}
        for entry in prepared:
            for name, source in entry.sources.items():
                code[f"{name}: {source.choice} ({source.reason})"] = None
        for line in code:
            self._console.print_text(f"code of the {line}")
        differences = unique_differences([entry.differences for entry in prepared])
        if not differences:
            self._console.print_text("conditions: the same as recorded")
            return
        self._console.print_text(
            f"conditions: {counted(len(differences), 'difference')}, the likeliest cause first"
        )
        table = Table(["condition", "recorded", "here"], [])
        for difference in differences:
            recorded = one_line(shown(difference.a), LONGEST_VALUE)
            here = one_line(shown(difference.b), LONGEST_VALUE)
            table.add_row(difference.field, recorded, here)
        show_table(self._console, table)
        for command in remedies(differences):
            self._console.print_text(f"  as recorded: {command}")

    def show_verdict(self, verdict: ReproductionVerdict) -> None:
        """Print what came of it, and where the bundle is."""
        for entry in verdict.seeds:
            self._console.print_text(seeds_text(entry))
        look = LOOKS.get(verdict.outcome, "failed")
        self._console.print_markup(styled(verdict_line(verdict), look))
        self._console.print_text(f"bundle: {self._folder}")


def print_verdict_json(verdict: ReproductionVerdict, folder: Path) -> None:
    """Print a verdict as JSON, with the folder of its bundle."""
    print_json({**asdict(verdict), "bundle": str(folder)})
