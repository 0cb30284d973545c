"""Shows what `harness init` has found in a script, what it has written, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from harness.core.text import counted
from harness.preflight.script_facts import ScriptFacts
from harness.records.record import Record
from harness.render.console import TerminalConsole
from harness.render.format import duration, samples_per_second

REPORT = "harness.report(loss=loss, samples=len(batch))"


def show_first_sweep(
    facts: ScriptFacts | None,
    written: Sequence[Path],
    record: Record,
    *,
    trials: int,
    seconds: float,
) -> None:
    """Print a script's options, the files, the trial that was run, and the next command.

    `facts` is None without a script; `trials` of the sweep take about `seconds`.
    """
    console = TerminalConsole()
    if facts is not None:
        flags = [option.flag for option in facts.options]
        console.print_markup(f"  options    {escape(', '.join(flags) or 'none by argparse')}")
    for path in written:
        console.print_markup(f"[green]✓[/] wrote {escape(str(path))}")
    console.print_markup(f"[green]✓[/] tried it: {_describe_trial(record)}")
    if facts is not None and not facts.reports:
        console.print_markup(
            f"  to compare samples/s and losses too, add to the loop: {escape(REPORT)}"
        )
    sweep = next(path for path in written if path.suffix == ".yaml")
    command = escape(f"harness run {shlex.quote(str(sweep))}")
    console.print_markup(
        f"[bold]next[/]  {command}    {counted(trials, 'trial')}, about {duration(seconds)}"
    )


def _describe_trial(record: Record) -> str:
    """Return how many steps the trial has trained, and how fast."""
    steps = 0 if record.loss is None else len(record.loss)
    text = f"{counted(steps, 'step')} in {duration(record.ended - record.started)}"
    if record.summary is not None and record.summary.throughput is not None:
        rate = samples_per_second(record.summary.throughput)
        text += f", {rate} {record.summary.throughput_unit}"
    return text
