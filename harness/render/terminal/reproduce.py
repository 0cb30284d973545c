"""Shows `harness reproduce`: what is other here, progress, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from harness.core.errors import one_line
from harness.core.paths import Results
from harness.core.text import counted
from harness.launch.runner import TrialListener
from harness.records.differences import Value, shown
from harness.render.reproduction import remedies, seeds_text, unique_differences, verdict_line
from harness.render.table import Look, Table
from harness.render.terminal.console import TerminalConsole, styled
from harness.render.terminal.run import RunView
from harness.render.terminal.table import show as show_table
from harness.reproduce.bundle import RESULTS_FOLDER
from harness.reproduce.rerun import Prepared
from harness.reproduce.verdict import Outcome, ReproductionVerdict
from harness.spec.sweep import Sweep

LONGEST_VALUE = 50  # characters of a value in the table of conditions; verdict.md has all
LOOKS: Mapping[Outcome, Look] = {
    "repeated": "better",
    "reproduced": "better",
    "inconclusive": "open",
}


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
            self._print(f"code of the {line}")
        differences = unique_differences([entry.differences for entry in prepared])
        if not differences:
            self._print("conditions: the same as recorded")
            return
        self._print(
            f"conditions: {counted(len(differences), 'difference')}, the likeliest cause first"
        )
        table = Table(["condition", "recorded", "here"], [])
        for difference in differences:
            table.add_row(difference.field, _fitting(difference.a), _fitting(difference.b))
        show_table(self._console, table)
        for command in remedies(differences):
            self._print(f"  as recorded: {command}")

    def show_verdict(self, verdict: ReproductionVerdict) -> None:
        """Print what came of it, and where the bundle is."""
        for entry in verdict.seeds:
            self._print(seeds_text(entry))
        look = LOOKS.get(verdict.outcome, "failed")
        self._console.print(styled(verdict_line(verdict), look), soft_wrap=True)
        self._print(f"bundle: {self._folder}")

    def _print(self, text: str) -> None:
        """Print a line as it is."""
        self._console.print(text, soft_wrap=True, markup=False)


def _fitting(value: Value) -> str:
    """Return a value cut to the width of a column."""
    return one_line(shown(value), LONGEST_VALUE)


def print_json(verdict: ReproductionVerdict, folder: Path) -> None:
    """Print a verdict as JSON, with the folder of its bundle."""
    print(json.dumps({**asdict(verdict), "bundle": str(folder)}, indent=1))
