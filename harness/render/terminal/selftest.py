"""Shows `harness machine selftest`: what was measured, next to what it must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from rich.markup import escape

from harness.core.paths import TrialFolder
from harness.measure.selftest import TOLERANCE, QuantityCheck, check_record
from harness.records.record import Record
from harness.render.format import MISSING
from harness.render.table import Styled, Table
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.table import show
from harness.spec.cell import Trial


class SelftestProgress:
    """Shows which trial is running, and counts the trials."""

    def __init__(self) -> None:
        self.status = TerminalConsole().status("")
        self.trials = 0  # that have started, each attempt counted

    def __enter__(self) -> Self:
        """Start the spinner."""
        self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the spinner, also after an error."""
        self.status.stop()

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None: ...

    def on_trial_start(self, trial: Trial) -> None:
        """Name the trial next to the spinner."""
        self.trials += 1
        self.status.update(f"self-test: {escape(trial.cell.label)}")

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None: ...

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None: ...

    def on_message(self, text: str) -> None:
        """Print it above the spinner."""
        self.status.console.print(escape(text), soft_wrap=True)


def show_selftest(records: Sequence[Record], attempts: int) -> bool:
    """Print what was measured next to the truth.

    `records` are the last attempts at each trial, `attempts` the number of all. Returns whether every
    trial is done and every quantity within the tolerance.
    """
    console = TerminalConsole()
    checks: list[QuantityCheck] = []
    all_done = True
    for record in records:
        if record.status == "done":
            checks += check_record(record)
        else:
            all_done = False
            reason = record.failure or "; ".join(record.violations)
            problem = escape(f"{record.trial.cell.label}: {reason}")
            console.print(f"[red]✗[/] {problem}", soft_wrap=True)
    show(console, _check_table(checks))
    passed = all_done and all(check.passed for check in checks)
    console.print(_conclusion(passed, attempts, attempts - len(records)))
    return passed


def _check_table(checks: Sequence[QuantityCheck]) -> Table:
    """Return a table with a row for each quantity of each number of ranks, ticked if it passed."""
    table = Table(
        ["ranks", "quantity", "truth", "measured", "error", ""],
        ["ranks", "truth", "measured", "error"],
    )
    for check in checks:
        measured = MISSING if check.measured is None else f"{check.measured:.4f}"
        error = MISSING if check.error is None else f"{check.error:+.2%}"
        mark = Styled("✗", "failed")
        if check.passed:
            mark = Styled("✓", "better")
        truth = f"{check.expected:.4f}"
        table.add_row(str(check.ranks), check.quantity, truth, measured, error, mark)
    return table


def _conclusion(passed: bool, trials: int, reruns: int) -> str:
    """Return the last line: the verdict, and how many of the trials had to run again."""
    tolerance = f"within {TOLERANCE:.0%} of the truth"
    if not passed:
        return f"[red]Not all {tolerance}: do not trust this machine's measurements.[/]"
    rerun_note = f", {reruns} of {trials} trials run again" if reruns else ""
    return f"[green]All {tolerance}{rerun_note}.[/]"
