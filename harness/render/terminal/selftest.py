"""The self-test as its user sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from harness.core.paths import Results, TrialFolder
from harness.launch import selftest
from harness.measure.selftest import TOLERANCE, check_record
from harness.records.record import Record
from harness.render.terminal.table import make_table, show
from harness.spec.cell import Trial
from harness.spec.cluster import Profile


class _Listener:
    """Says which trial is at work."""

    def __init__(self, console: Console) -> None:
        self.status = console.status("")
        self.trials = 0

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        self.status.start()

    def on_trial_start(self, trial: Trial) -> None:
        self.trials += 1
        self.status.update(f"self-test: {escape(trial.cell.label)}")

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None: ...

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None: ...


def run(results: Results, profile: Profile, ranks: Sequence[int]) -> bool:
    """Run the self-test and print what came back beside the truth; whether all of it is within the tolerance."""
    console = Console(highlight=False)
    listener = _Listener(console)
    try:
        records = selftest.run(results, profile, ranks, listener)
    finally:
        listener.status.stop()
    checks = []
    for record in records:
        if record.status == "done":
            checks += check_record(record)
        else:
            why = record.failure or "; ".join(record.violations)
            console.print(
                f"[red]✗[/] {escape(f'{record.trial.cell.label}: {why}')}", soft_wrap=True
            )
    table = make_table(
        ["ranks", "quantity", "truth", "measured", "error", ""],
        ["ranks", "truth", "measured", "error"],
    )
    for check in checks:
        measured = "–" if check.measured is None else f"{check.measured:.4f}"
        error = "–" if check.error is None else f"{check.error:+.2%}"
        verdict = "[green]✓[/]" if check.passed else "[red]✗[/]"
        table.add_row(
            str(check.ranks), check.quantity, f"{check.expected:.4f}", measured, error, verdict
        )
    show(console, table)
    passed = len(records) == sum(record.status == "done" for record in records) and all(
        c.passed for c in checks
    )
    limit, again = f"within {TOLERANCE:.0%} of the truth", listener.trials - len(records)
    console.print(
        f"[green]All {limit}{f', {again} of {listener.trials} trials run again' if again else ''}.[/]"
        if passed
        else f"[red]Not all {limit}: this machine's figures are not to be believed.[/]"
    )
    return passed
