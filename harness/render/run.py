"""Shows `harness run` while trials run: a progress bar, and a line for each trial.

What they come to is shown by `harness.render.results`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from harness.core.errors import one_line
from harness.core.paths import Results, TrialFolder
from harness.core.text import counted
from harness.launch.runner import TrialListener
from harness.records.record import Record, Summary
from harness.records.store import RecordedSweep
from harness.render.console import TerminalConsole
from harness.render.format import (
    checkpoint_notes,
    duration,
    is_contended,
    samples_per_second,
    stop_note,
)
from harness.render.plan import QUIET_MACHINE, conflict_lines
from harness.spec.cell import Trial
from harness.spec.sweep import Sweep

STRAGGLER_SKEW = 0.1  # share of their time that the other ranks wait, from which a rank is named


class RunView(TrialListener):
    """Shows a running sweep: a progress bar, and a line for each trial that has ended."""

    def __init__(self, sweep: Sweep, results: Results, console: TerminalConsole) -> None:
        self.sweep = sweep
        self.results = results
        self.console = console
        self.has_plan = False
        self.planned_count = 0  # trials to run
        self.numbers: dict[str, int] = {}  # of the trials that have ended, by id, from 1
        self.skipped_cells: set[str] = set()  # ids of those with a trial that was not needed
        self.has_advised = False  # what to do about other programs
        self.start_time = time.monotonic()  # seconds
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}", markup=False),
        )
        self.progress = Progress(*columns, console=self.console, transient=True)
        self.bar = self.progress.add_task("trials", total=None, news="")
        self.rows: dict[str, TaskID] = {}  # by running trial; seen where several run side by side
        self.shares_done: dict[str, float] = {}  # of each running trial, from 0 to 1

    def __enter__(self) -> Self:
        """Start to draw the bar."""
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar; the trials' lines stay."""
        self.progress.stop()

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        """Show how many trials will run, for how long, and how many have a record already.

        Further lines say what is left out, and whether other programs use the machine. With `--until`
        there is a plan for each further repeat, whose trials are added.
        """
        self.planned_count += len(pending)
        self.progress.update(self.bar, total=self.planned_count)
        trials = counted(len(pending), "trial")
        cells = counted(len(self.sweep.cells), "cell")
        already_done = f", {len(finished)} already there" if finished else ""
        self.console.print_markup(
            f"[bold]{escape(self.sweep.name)}[/]: {trials} of {cells}{already_done}"
            f"{self.describe_time(pending)}"
        )
        if not self.has_plan:  # not again for further repeats
            self.has_plan = True
            for line in conflict_lines(self.sweep.whole()):
                self.console.print_text(line)
            for line in self.machine_lines(pending):
                self.console.print_text(line, "open")
        folder = self.results.sweep_folder(self.sweep.name)
        untraced_count = 0
        for record in finished:
            if not folder.trial_folder(record.trial.id).trace_folder.exists():
                untraced_count += 1
        if self.sweep.profile and untraced_count:
            self.console.print_markup(
                f"profile: {counted(untraced_count, 'finished trial')} without a trace;"
                " --force runs them again, with one"
            )

    def describe_time(self, pending: Sequence[Trial]) -> str:
        """Return the end of the first line: how long the trials will take, if that is known."""
        return ""

    def machine_lines(self, pending: Sequence[Trial]) -> list[str]:
        """Return what to know of the machine before the trials run on it."""
        return []

    def on_trial_start(self, trial: Trial) -> None:
        """Name the trial next to the bar, or in a row below it if others run too."""
        self.shares_done[trial.id] = 0.0
        row = self.progress.add_task(trial.cell.label, total=None, news="starting", visible=False)
        self.rows[trial.id] = row
        self.progress.update(self.bar, description=trial.cell.label, news="starting")
        self._show_rows()

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        """Show the step, the throughput and the loss that rank 0 has reported, and the time left.

        `progress` is the last report. It is empty before the first, and has no rate before steps
        were timed.
        """
        if not progress:
            return
        news, steps = f"step {progress['step']}", progress["steps"]
        if steps is not None:
            news += f"/{steps}"
            self.shares_done[trial.id] = progress["step"] / max(1, steps)
        if "rate" in progress:
            news += f" · {progress['rate']:,.0f} {trial.cell.throughput_unit}"
        if progress.get("loss") is not None:  # a script may report none
            news += f" · loss {progress['loss']:.3f}"
        time_left = f"{duration(self._estimate_seconds_left())} left"
        row = self.rows[trial.id]
        self.progress.update(row, completed=progress["step"], total=steps, news=news)
        if len(self.rows) > 1:
            self.progress.update(self.bar, news=time_left)
        else:
            self.progress.update(self.bar, news=f"{news} · {time_left}")

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Print the trial's line, and once what to do where other programs make trials invalid.

        A trial that was invalid and runs again keeps its number.
        """
        number = self.numbers.setdefault(record.trial.id, len(self.numbers) + 1)
        self.progress.update(self.bar, completed=len(self.numbers))
        self.shares_done.pop(record.trial.id, None)
        if record.trial.id in self.rows:
            self.progress.remove_task(self.rows.pop(record.trial.id))
            self._show_rows()
        self.console.print_markup(trial_line(record, folder, number, self.planned_count))
        if not self.has_advised and is_contended(record):
            self.has_advised = True
            self.on_message(f"other programs use the cores, and trials run again: {QUIET_MACHINE}")

    def _show_rows(self) -> None:
        """Show a row for each running trial if there are several, and none for a single one."""
        several = len(self.rows) > 1
        for row in self.rows.values():
            self.progress.update(row, visible=several)
        if several:
            self.progress.update(self.bar, description=f"{len(self.rows)} trials side by side")

    def on_message(self, text: str) -> None:
        """Print it above the bar."""
        self.console.print_text(text, "open")

    def show_delivery(self) -> None:
        """Show that records are being delivered."""
        self.progress.update(self.bar, news="recording in MLflow")

    def _estimate_seconds_left(self) -> float:
        """Estimate the seconds until the sweep is done, from the time that its trials took so far.

        Running trials count by the part of them that is done, but for those that run again.
        """
        shares = [share for id_, share in self.shares_done.items() if id_ not in self.numbers]
        trials_done = len(self.numbers) + sum(shares)
        if not trials_done:
            return 0.0
        seconds_per_trial = (time.monotonic() - self.start_time) / trials_done
        return seconds_per_trial * (self.planned_count - trials_done)


def left_out_lines(recorded: RecordedSweep) -> list[str]:
    """Return the lines on records that are left out of the results.

    Those that can't be read are named by their errors; those of other code, or of settings that the
    sweep no longer has, are counted.
    """
    lines = unreadable_lines(recorded.unreadable)
    if recorded.other_count:
        lines.append(
            f"{counted(recorded.other_count, 'recorded trial')} of other code or settings left out:"
            f" the last command asked for {counted(len(recorded.sweep.cells), 'cell')}"
        )
    return lines


def unreadable_lines(unreadable: Sequence[str]) -> list[str]:
    """Return what to print about records that can't be read: each by its error, and how many."""
    if not unreadable:
        return []
    count = counted(len(unreadable), "record")
    return [*map(one_line, unreadable), f"{count} left out, because of the above"]


def trial_line(record: Record, folder: TrialFolder, number: int, count: int) -> str:
    """Return a finished trial's line: its numbers, or its error with rank, node and log.

    The numbers are the throughput, and the target metric after the last step. It is rich markup.
    `number` of `count` trials have finished. A trial that ran but whose measurement is invalid has
    its numbers too, with the violations below.
    """
    label = f"{escape(record.trial.cell.label)} seed {record.trial.seed}"
    heading = f"[dim]{number}/{count}[/] {label}"
    if record.failure is not None:
        log_path = folder.path / (record.failure.log or "")
        error = escape(str(record.failure))
        return f"[red]✗[/] {heading}: [red]{error}[/]\n    log: {escape(str(log_path))}"
    assert record.summary is not None
    numbers = "speed not measured"
    if record.summary.throughput is not None:
        speed = samples_per_second(record.summary.throughput)
        numbers = f"{speed} {record.summary.throughput_unit}"
    if record.summary.final_metric is not None:
        assert record.rank0 is not None
        numbers += f", {record.rank0.target.name} {record.summary.final_metric:.4f}"
    seconds = duration(record.ended - record.started)
    remarks = [*record.violations, *_remarks(record, record.summary)]
    remark_lines = "".join(f"\n    {escape(remark)}" for remark in remarks)
    details = f"[dim]({seconds}){remark_lines}[/]"
    if record.violations:
        return f"[magenta]![/] {heading}: [magenta]invalid[/]: {numbers} {details}"
    return f"[green]✓[/] {heading}: {numbers} {details}"


def _remarks(record: Record, summary: Summary) -> list[str]:
    """Return what a reader should know before believing this trial's numbers.

    These are when and why it was stopped, its interruptions, with the seconds that each cost, checkpoints
    that it could not resume from, what to know of a script, and a rank that slows all others.
    """
    remarks: list[str] = []
    stop = stop_note(record)
    if stop is not None:
        remarks.append(stop)
    remarks += [*checkpoint_notes(record), *record.notes]
    slowest = summary.slowest
    if slowest and slowest.skew > STRAGGLER_SKEW:
        remarks.append(
            f"straggler: the other ranks wait {slowest.skew:.0%} of their time for"
            f" rank {slowest.rank} on {slowest.host}"
        )
    return remarks
