"""Shows `harness run` while trials run: a progress bar, and a line for each trial.

What they come to is shown by `harness.view.sweep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from harness.core.errors import one_line
from harness.core.paths import Results, TrialFolder
from harness.core.text import counted
from harness.launch.runner import TrialListener
from harness.records.record import Record
from harness.records.store import RecordedSweep
from harness.sweep.cell import Trial
from harness.sweep.sweep import Sweep
from harness.view.console import TerminalConsole
from harness.view.plan import QUIET_MACHINE, conflict_lines
from harness.view.value import Styled, duration, three_digits

STRAGGLER_SKEW = 0.1  # share of their time that the other ranks wait, from which a rank is named


class RunView(TrialListener):
    """Shows a running sweep: a progress bar, and a line for each trial that has ended."""

    def __init__(self, sweep: Sweep, results: Results, console: TerminalConsole) -> None:
        self.sweep = sweep
        self.results = results
        self.console = console
        self.planned_count = 0  # trials to run
        self.numbers: dict[str, int] = {}  # of the trials that have ended, by id, from 1
        self.has_advised = False  # what to do about other programs
        self.shares_done: dict[str, float] = {}  # of each running trial, from 0 to 1
        columns = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self.progress = Progress(*columns, console=self.console, transient=True)
        self.bar = self.progress.add_task("", total=None)

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
        is_first = self.progress.tasks[0].total is None
        self.planned_count += len(pending)
        self.progress.update(self.bar, total=self.planned_count)
        counts = f": {counted(len(pending), 'trial')} of {counted(len(self.sweep.cells), 'cell')}"
        if finished:
            counts += f", {len(finished)} already there"
        name = Styled(self.sweep.name, "strong")
        self.console.say([name, f"{counts}{self.describe_time(pending)}"])
        if is_first:  # not again for further repeats
            for line in conflict_lines(self.sweep.whole()):
                self.console.say(line)
            for line in self.machine_lines(pending):
                self.console.say(Styled(line, "open"))

    def describe_time(self, pending: Sequence[Trial]) -> str:
        """Return the end of the first line: how long the trials will take, if that is known."""
        return ""

    def machine_lines(self, pending: Sequence[Trial]) -> list[str]:
        """Return what to know of the machine before the trials run on it."""
        return []

    def on_trial_start(self, trial: Trial) -> None:
        """Name the trial next to the bar, or say how many run side by side."""
        self.shares_done[trial.id] = 0.0
        self._show_news(trial, "starting")

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
        self._show_news(trial, news)

    def _show_news(self, trial: Trial, news: str) -> None:
        """Show the trial that was heard of last."""
        label = one_line(trial.cell.label)
        if len(self.shares_done) > 1:
            label = f"{len(self.shares_done)} trials side by side: {label}"
        # A trial that runs again counts already.
        shares = [share for id_, share in self.shares_done.items() if id_ not in self.numbers]
        done = len(self.numbers) + sum(shares)
        self.progress.update(self.bar, completed=done, description=f"{label}: {news}")

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Print the trial's line, and once what to do where other programs make trials invalid.

        A trial that was invalid and runs again keeps its number.
        """
        number = self.numbers.setdefault(record.trial.id, len(self.numbers) + 1)
        self.progress.update(self.bar, completed=len(self.numbers))
        self.shares_done.pop(record.trial.id, None)
        self.console.say(trial_line(record, folder, number, self.planned_count), wraps=False)
        if not self.has_advised and is_contended(record):
            self.has_advised = True
            self.on_message(f"other programs use the cores, and trials run again: {QUIET_MACHINE}")

    def on_message(self, text: str) -> None:
        """Print it above the bar."""
        self.console.say(Styled(text, "open"))

    def show_delivery(self) -> None:
        """Show that records are being delivered."""
        self.progress.update(self.bar, description="recording in MLflow")


def left_out_lines(recorded: RecordedSweep) -> list[str]:
    """Return the lines on records that are left out of the results.

    Those that can't be read are named by their errors; those of other code, or of settings that the
    sweep no longer has, are counted.
    """
    lines = list(map(one_line, recorded.unreadable))
    if lines:
        lines.append(f"{counted(len(lines), 'record')} left out, because of the above")
    if recorded.other_count:
        lines.append(
            f"{counted(recorded.other_count, 'recorded trial')} of other code or settings left out:"
            f" the last command asked for {counted(len(recorded.sweep.cells), 'cell')}"
        )
    return lines


def trial_line(record: Record, folder: TrialFolder, number: int, count: int) -> list[str | Styled]:
    """Return a finished trial's line: its numbers, or its error with rank, node and log.

    The numbers are the throughput, and the target metric after the last step. `number` of `count` trials
    have finished. A trial that ran but whose measurement is invalid has its numbers too, with the
    violations below.
    """
    heading: list[str | Styled] = [
        Styled(f" {number}/{count}", "quiet"),
        f" {record.trial.cell.label} seed {record.trial.seed}: ",
    ]
    summary = record.summary
    if record.failure is not None or summary is None:
        log_path = folder.path / (record.failure.log or "" if record.failure else "")
        error = Styled(str(record.failure), "failed")
        return [Styled("✗", "failed"), *heading, error, f"\n    log: {log_path}"]
    numbers = "speed not measured"
    if summary.throughput is not None:
        numbers = f"{three_digits(summary.throughput)} {summary.throughput_unit}"
    if summary.final_metric is not None and record.rank0 is not None:
        numbers += f", {record.rank0.target.name} {summary.final_metric:.4f}"
    notes = [*record.violations, *filter(None, [stop_note(record)]), *checkpoint_notes(record)]
    notes += record.notes
    slowest = summary.slowest
    if slowest and slowest.skew > STRAGGLER_SKEW:
        notes.append(
            f"straggler: the other ranks wait {slowest.skew:.0%} of their time for"
            f" rank {slowest.rank} on {slowest.host}"
        )
    seconds = f" ({duration(record.ended - record.started)})"
    details = Styled("".join([seconds, *(f"\n    {note}" for note in notes)]), "quiet")
    if record.violations:
        return [Styled("!", "invalid"), *heading, Styled("invalid: ", "invalid"), numbers, details]
    return [Styled("✓", "better"), *heading, numbers, details]


def checkpoint_notes(record: Record) -> list[str]:
    """Return a sentence for each interruption, and each checkpoint that was passed over or not saved.

    All ranks are interrupted at the same step.
    """
    notes = []
    for interruption in record.interruptions:
        cause = "ended without a signal"
        if interruption.signal:
            cause = f"interrupted by {interruption.signal}"
        notes.append(
            f"{cause} after step {interruption.step}: {interruption.lost_seconds:.1f} s lost"
        )
    return [*notes, *record.checkpoint_problems]


def stop_note(record: Record) -> str | None:
    """Say after how many epochs a trial was stopped, and why.

    None for a trial without a rule for stopping, or that says nothing that its length does not.
    """
    report = record.rank0
    if report is None or report.stop is None or report.best_evaluation is None:
        return None
    stop, best = report.stop, report.best_evaluation
    reason = f"stopped by {stop.reason} of {stop.metric.name}"
    if stop.reason == "length":
        reason = "trained for its whole length"
    epochs = three_digits(stop.step / report.steps_per_epoch)
    note = f"{reason}: {epochs} epochs (step {stop.step})"
    if stop.reason != "goal":
        note += f", best {stop.metric.name} at {three_digits(best.epoch)}"
    return note


def is_contended(record: Record) -> bool:
    """Return whether a trial is invalid because other programs used its cores."""
    return any(violation.startswith("contention") for violation in record.violations)
