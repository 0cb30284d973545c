"""Shows `harness run` while trials run: a progress bar, and a line for each trial.

What they come to is shown by `harness.view.sweep`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from harness.core.errors import one_line
from harness.core.paths import TrialFolder
from harness.core.text import counted
from harness.launch.runner import TrialListener
from harness.records.numbers import RATES, final_name
from harness.records.record import Record
from harness.records.store import RecordedSweep
from harness.sweep.cell import Trial
from harness.sweep.sweep import Sweep
from harness.view.console import TerminalConsole
from harness.view.plan import QUIET_MACHINE, conflict_lines, describe_duration
from harness.view.value import Styled, duration, three_digits


class RunView(TrialListener):
    """Shows a running sweep: a progress bar, and a line for each trial that has ended."""

    def __init__(
        self,
        sweep: Sweep,
        console: TerminalConsole,
        estimates: Mapping[str, float] | None = None,
    ) -> None:
        """Show a sweep; with `estimates` how long it will take, by the seconds of a trial of each cell."""
        self.sweep = sweep
        self.console = console
        self.estimates = estimates
        self.planned_count = 0  # trials to run
        self.numbers: dict[str, int] = {}  # of the trials that have ended, by id, from 1
        self.has_advised = False  # what to do about other programs
        self.progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
        )
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

        A further line says what is left out. With `--until` there is a plan for each further repeat,
        whose trials are added.
        """
        is_first = self.progress.tasks[0].total is None
        self.planned_count += len(pending)
        self.progress.update(self.bar, total=self.planned_count)
        trials = counted(len(pending), "trial")
        text = f": {trials} of {counted(len(self.sweep.cells), 'cell')}"
        if finished:
            text += f", {len(finished)} already there"
        if pending and self.estimates is not None:
            text += f"; {describe_duration(pending, self.estimates)}"
        self.console.say([Styled(self.sweep.name, "strong"), text])
        if not is_first:  # not again for further repeats
            return
        for line in conflict_lines(self.sweep.whole()):
            self.console.say(line)

    def on_trial_start(self, trial: Trial) -> None:
        """Name the trial next to the bar."""
        self._show_news(trial, "starting")

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        """Show the step, the throughput and the loss that rank 0 has reported.

        `progress` is the last report. It is empty before the first, and has no rate before steps
        were timed.
        """
        if not progress:
            return
        news = f"step {progress['step']}"
        if progress["steps"] is not None:
            news += f"/{progress['steps']}"
        if "rate" in progress:
            unit = progress.get("unit", trial.cell.throughput_unit)
            news += f" · {progress['rate']:,.0f} {unit}"
        if progress.get("loss") is not None:  # a script may report none
            news += f" · loss {progress['loss']:.3f}"
        self._show_news(trial, news)

    def _show_news(self, trial: Trial, news: str) -> None:
        """Show the trial that was heard of last."""
        description = f"{one_line(trial.cell.label)}: {news}"
        self.progress.update(self.bar, description=description)

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Print the trial's line, and once what to do where other programs make trials invalid.

        A trial that was invalid and runs again keeps its number.
        """
        next_number = len(self.numbers) + 1
        number = self.numbers.setdefault(record.trial.id, next_number)
        self.progress.update(self.bar, completed=len(self.numbers))
        line = trial_line(record, folder, number, self.planned_count)
        self.console.say(line, wraps=False)
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


def trial_line(
    record: Record,
    folder: TrialFolder,
    number: int,
    count: int,
) -> list[str | Styled]:
    """Return a finished trial's line: its numbers, or its error with rank, node and log.

    The numbers are the throughput, and the target metric after the last step. `number` of `count` trials
    have finished. A trial that ran but whose measurement is invalid has its numbers too, with the
    violations below.
    """
    heading: list[str | Styled] = [
        Styled(f" {number}/{count}", "quiet"),
        f" {record.trial.cell.label} seed {record.trial.seed}: ",
    ]
    failure = record.failure
    if not record.is_complete:
        log = ""
        if failure is not None:
            log = failure.log or ""
        error = Styled(str(failure), "failed")
        return [Styled("✗", "failed"), *heading, error, f"\n    log: {folder.path / log}"]
    numbers = "speed not measured"
    for unit, name in RATES.items():
        if name in record.numbers:
            numbers = f"{three_digits(record.numbers[name])} {unit}"
    if record.rank0 is not None and record.rank0.evaluations:
        target = record.rank0.target.name
        numbers += f", {target} {record.numbers[final_name(target)]:.4f}"
    notes = [*record.violations]
    stop = stop_note(record)
    if stop is not None:
        notes.append(stop)
    notes += checkpoint_notes(record)
    notes += record.notes
    seconds = duration(record.ended - record.started)
    details = Styled("\n    ".join([f" ({seconds})", *notes]), "quiet")
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
    stop = report.stop
    metric = report.target.name
    reason = f"stopped by {stop.reason} of {metric}"
    if stop.reason == "length":
        reason = "trained for its whole length"
    epochs = three_digits(stop.step / report.steps_per_epoch)
    best = three_digits(report.best_evaluation.step / report.steps_per_epoch)
    return f"{reason}: {epochs} epochs (step {stop.step}), best {metric} at {best}"


def is_contended(record: Record) -> bool:
    """Return whether a trial is invalid because other programs used its cores."""
    return any(violation.startswith("contention") for violation in record.violations)
