"""Shows `harness run`: a progress bar, a line for each trial, then results and verdicts.

`show_results` is also what `harness show` prints, and `harness status --watch` at the end of a
sweep.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from harness.analysis.cells import shown_seeds
from harness.analysis.stopping import summarize_stops
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import one_line
from harness.core.paths import Results, TrialFolder
from harness.core.text import counted
from harness.measure.steady import MIN_STEPS_TO_SETTLE
from harness.records.record import Record, Status, Summary
from harness.records.store import OtherCode, RecordedSweep, trials_of_other_code
from harness.render.findings import mixture_sentences
from harness.render.format import (
    duration,
    interruption_note,
    nondeterminism_notes,
    stop_counts,
    stop_note,
)
from harness.render.results import marks_legend, result_table
from harness.render.roofline import with_measured_peaks
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.plan import conflict_lines
from harness.render.terminal.roofline import roofline_lines
from harness.render.terminal.table import show as show_table
from harness.render.terminal.verdicts import show_verdicts
from harness.spec.cell import Trial
from harness.spec.code import changed_parts
from harness.spec.sweep import Sweep

STRAGGLER_SKEW = 0.1  # share of their time that the other ranks wait, from which a rank is named
MORE_SEEDS = 2  # that are suggested: one trial has no interval, and three have a usable one
MOST_SEEDS = 12  # that a suggestion lists; of a sweep with more, it is a further repeat
COMMAND_INDENT = 6  # columns, as wide as `next` and two blanks


class RunView:
    """Shows a running sweep: a progress bar, and a line for each trial that has ended."""

    def __init__(
        self,
        sweep: Sweep,
        results: Results,
        console: TerminalConsole | None = None,
    ) -> None:
        self.sweep = sweep
        self.results = results
        self.console = console or TerminalConsole()
        self.planned_count = 0  # trials to run
        self.started_count = 0
        self.finished_count = 0
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

    def __enter__(self) -> RunView:
        """Start to draw the bar."""
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar; the trials' lines stay."""
        self.progress.stop()

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        """Show how many trials will run, and how many have a record already.

        With `--until` there is a plan for each further repeat, whose trials are added.
        """
        self.planned_count += len(pending)
        self.progress.update(self.bar, total=self.planned_count)
        trials = counted(len(pending), "trial")
        cells = counted(len(self.sweep.cells), "cell")
        already_done = f", {len(finished)} already there" if finished else ""
        self._print(f"[bold]{escape(self.sweep.name)}[/]: {trials} of {cells}{already_done}")
        if self.planned_count == len(pending):  # not again for further repeats
            for line in conflict_lines(self.sweep.whole()):
                self._print(escape(line))
        folder = self.results.sweep_folder(self.sweep.name)
        other_code = trials_of_other_code(folder, folder.recorded_ids(), self.sweep.cells)
        for line in other_code_lines(self.sweep, other_code):
            self._print(f"[dim]{escape(line)}[/]")
        untraced_count = self._count_untraced(finished)
        if self.sweep.profile and untraced_count:
            self._print(
                f"profile: {counted(untraced_count, 'finished trial')} without a trace;"
                " --force runs them again, with one"
            )

    def on_trial_start(self, trial: Trial) -> None:
        """Name the trial next to the bar, or in a row below it if others run too."""
        self.started_count += 1
        if self.started_count > self.planned_count:  # an invalid trial runs again
            self.planned_count = self.started_count
            self.progress.update(self.bar, total=self.planned_count)
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
        news = f"step {progress['step']}/{progress['steps']}"
        if "rate" in progress:
            news += f" · {progress['rate']:,.0f} samples/s · loss {progress['loss']:.3f}"
        self.shares_done[trial.id] = progress["step"] / max(1, progress["steps"])
        time_left = f"{duration(self._estimate_seconds_left())} left"
        row = self.rows[trial.id]
        self.progress.update(row, completed=progress["step"], total=progress["steps"], news=news)
        if len(self.rows) > 1:
            self.progress.update(self.bar, news=time_left)
        else:
            self.progress.update(self.bar, news=f"{news} · {time_left}")

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Print the trial's line."""
        self.finished_count += 1
        self.progress.advance(self.bar)
        self.shares_done.pop(record.trial.id, None)
        if record.trial.id in self.rows:
            self.progress.remove_task(self.rows.pop(record.trial.id))
            self._show_rows()
        self._print(trial_line(record, folder, self.finished_count, self.planned_count))

    def _show_rows(self) -> None:
        """Show a row for each running trial if there are several, and none for a single one."""
        several = len(self.rows) > 1
        for row in self.rows.values():
            self.progress.update(row, visible=several)
        if several:
            self.progress.update(self.bar, description=f"{len(self.rows)} trials side by side")

    def on_message(self, text: str) -> None:
        """Print it above the bar."""
        self._print(f"[yellow]{escape(text)}[/]")

    def on_delivery(self) -> None:
        """Show that records are being delivered."""
        self.progress.update(self.bar, news="recording in MLflow")

    def _count_untraced(self, records: Sequence[Record]) -> int:
        """Return how many of the trials have left no profiler trace."""
        sweep_folder = self.results.sweep_folder(self.sweep.name)
        count = 0
        for record in records:
            trial_folder = sweep_folder.trial_folder(record.trial.id)
            if not trial_folder.trace_folder.exists():
                count += 1
        return count

    def _estimate_seconds_left(self) -> float:
        """Estimate the seconds until the sweep is done, from the time that its trials took so far.

        Running trials count by the part of them that is done.
        """
        trials_done = self.finished_count + sum(self.shares_done.values())
        if not trials_done:
            return 0.0
        seconds_per_trial = (time.monotonic() - self.start_time) / trials_done
        return seconds_per_trial * (self.planned_count - trials_done)

    def _print(self, text: str) -> None:
        """Print markup above the bar, whole: it is the terminal that breaks a long line."""
        self.console.print(text, soft_wrap=True)


def show_results(
    sweep: Sweep,
    records: Sequence[Record],
    results: Results,
    *,
    trouble: str | None = None,
    verbose: bool = False,
) -> None:
    """Print the table of a sweep's results, its verdicts, what to beware of, and what to do next.

    `trouble` is what MLflow failed with. `verbose` adds remarks on trials that are too short for a
    steady state, and the labels of those that never reached one.
    """
    console = TerminalConsole()
    records, peaks = with_measured_peaks(records, results)
    result = SweepResult.of_records(sweep, records)
    show_table(console, result_table(sweep, result))
    folder = escape(str(results.sweep_folder(sweep.name).path))
    has_intervals = max(Counter(_cells_of_trials(sweep, records)).values()) > 1
    means = "means over trials ± 95% interval" if has_intervals else "means over trials"
    lines = [
        f"\n{marks_legend(sweep)}{means}. Records: {folder}",
        *_stop_lines(records),
        *roofline_lines(sweep, records, results, peaks),
    ]
    _print_lines(console, lines + _earlier_lines(sweep, records))
    if has_intervals:
        show_verdicts(console, result)
    _show_parity(console, sweep, records, results)
    remarks = _status_lines(records)
    remarks += [f"[yellow]{escape(text)}[/]" for text in mixture_sentences(result.cells)]
    remarks += _steady_state_lines(records, verbose=verbose)
    if trouble:
        command = escape(f"harness collect {shlex.quote(sweep.name)}{results.flag}")
        remarks.append(f"[yellow]MLflow has not got everything[/]; deliver it later: {command}")
    _print_lines(console, remarks + _next_lines(sweep, records, results))


def _show_parity(
    console: Console, sweep: Sweep, records: Sequence[Record], results: Results
) -> None:
    """Print how alike the cells compute, if `harness parity` has measured it."""
    from harness.analysis.parity import read_parity, with_seeds
    from harness.analysis.result import aggregate

    parity = read_parity(results.sweep_folder(sweep.name))
    if parity is None:
        return
    # Only now, because it loads torch, which takes as long as many a sweep.
    from harness.render.terminal.parity import show_parity

    console.print()
    show_parity(console, with_seeds(parity, aggregate(records)))


def left_out_lines(recorded: RecordedSweep) -> list[str]:
    """Return what to print about records that are left out of all that is shown beside.

    Those that can't be read are named by their errors, those of other code by their cells.
    """
    other_code = other_code_lines(recorded.sweep, recorded.other_code)
    return unreadable_lines(recorded.unreadable) + other_code


def unreadable_lines(unreadable: Sequence[str]) -> list[str]:
    """Return what to print about records that can't be read: each by its error, and how many."""
    if not unreadable:
        return []
    count = counted(len(unreadable), "record")
    return [*map(one_line, unreadable), f"{count} left out, because of the above"]


def other_code_lines(sweep: Sweep, other_code: Sequence[OtherCode]) -> list[str]:
    """Return a line for each cell that has trials of other code, with the files that differ.

    It names the two ids, by which `harness compare` compares before with after.
    """
    cells = {cell.settings_id: cell for cell in sweep.cells}
    lines = []
    for other in other_code:
        cell = cells[other.cell.settings_id]
        trials = counted(len(other.trials), "trial")
        changed = "recorded before code was part of ids"
        if other.cell.workload.code and cell.workload.code:
            changed = ", ".join(changed_parts(other.cell.workload.code, cell.workload.code))
        lines.append(
            f"{cell.label}: {trials} of other code left out ({changed});"
            f" harness compare {other.cell.id} {cell.id}"
        )
    return lines


def _cells_of_trials(sweep: Sweep, records: Sequence[Record]) -> list[str]:
    """Return the cell's id of every trial that the sweep asks for or that has a record."""
    cells_by_trial = {trial.id: trial.cell.id for trial in sweep.trials()}
    for record in records:
        cells_by_trial[record.trial.id] = record.trial.cell.id
    return list(cells_by_trial.values())


def _earlier_lines(sweep: Sweep, records: Sequence[Record]) -> list[str]:
    """Return which of the trials the last command asked for, if earlier ones have left others."""
    asked_for = {trial.id for trial in sweep.trials()}
    earlier = [record.trial for record in records if record.trial.id not in asked_for]
    if not earlier:
        return []
    latest = [record.trial for record in records if record.trial.id in asked_for]
    return [
        f"{counted(len(records), 'trial')}: {len(latest)} of the last command ({_seeds(latest)}),"
        f" {len(earlier)} of earlier ones ({_seeds(earlier)})"
    ]


def _stop_lines(records: Sequence[Record]) -> list[str]:
    """Return how to read trials of different lengths, if a rule for stopping has made some."""
    summary = summarize_stops(record for record in records if record.status == "done")
    if summary is None:
        return []
    return [
        f"Ended: {stop_counts(summary)}. Throughput is that of steady steps, however many there"
        " were; metrics are those of the parameters that each trial ended with."
    ]


def _seeds(trials: Sequence[Trial]) -> str:
    """Return the seeds of trials, and their repeats if there are any besides the first."""
    seeds = ",".join(str(seed) for seed in sorted({trial.seed for trial in trials}))
    repeats = sorted({trial.repeat for trial in trials})
    text = f"seeds={seeds or 'none'}"
    if repeats not in ([], [0]):
        text += f", repeats {','.join(map(str, repeats))}"
    return text


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print lines of markup."""
    for line in lines:
        console.print(line, soft_wrap=True)


def _status_lines(records: Sequence[Record]) -> list[str]:
    """Return a line for each status that calls for another run, with the number of its trials."""
    remarks: dict[Status, str] = {
        "failed": "[red]{} failed[/]; run or submit the sweep again to retry them",
        "interrupted": "[yellow]{} interrupted[/]; run or submit the sweep again to resume them",
        "invalid": "[magenta]{} invalid[/], left out of all means;"
        " run or submit the sweep again to repeat them",
    }
    counts = Counter(record.status for record in records)
    lines: list[str] = []
    for status, remark in remarks.items():
        if counts[status]:
            lines.append(remark.format(counts[status]))
    return lines


def _steady_state_lines(records: Sequence[Record], *, verbose: bool) -> list[str]:
    """Return what to know about trials whose step times never settled, once for all of them.

    A trial with too few steps after its warm-up can't show a steady state, so nothing is said of it
    unless `verbose`.
    """
    measured = [record for record in records if record.summary is not None]
    unsettled: list[Record] = []
    short: list[Record] = []
    for record in measured:
        assert record.summary is not None
        if record.summary.window_steps < MIN_STEPS_TO_SETTLE and not record.summary.settled:
            short.append(record)
        elif record.summary.settled is False:
            unsettled.append(record)
    lines: list[str] = []
    if unsettled:
        lines.append(
            f"{len(unsettled)} of {counted(len(measured), 'trial')} never reached a steady state:"
            " their step times kept changing, so their means depend on how long they ran;"
            " train longer (length), or start to measure later (warmup)"
        )
        if verbose:
            lines += _label_lines(unsettled)
    if short and verbose:
        lines.append(
            f"{len(short)} of {counted(len(measured), 'trial')} are too short to show a steady state:"
            f" fewer than {MIN_STEPS_TO_SETTLE} steps after the warm-up"
        )
        lines += _label_lines(short)
    return lines


def _label_lines(records: Sequence[Record]) -> list[str]:
    """Return a line for each trial with the label of its cell and its seed."""
    lines: list[str] = []
    for record in records:
        lines.append(f"    {escape(record.trial.cell.label)} seed {record.trial.seed}")
    return lines


def _next_lines(sweep: Sweep, records: Sequence[Record], results: Results) -> list[str]:
    """Return the commands to try next, each with what it shows, as lines of markup."""
    name = shlex.quote(sweep.name)
    seeds = shown_seeds(sweep, records)
    seeds += [max(seeds) + number for number in range(1, MORE_SEEDS + 1)]
    more = f"repeats={sweep.repeats + 1}"
    if len(seeds) <= MOST_SEEDS:
        more = f"seeds={','.join(map(str, seeds))}"
    purposes = {
        f"harness ui{results.flag}": "curves and comparisons in MLflow",
        f"harness show {name} --phases{results.flag}": "where the time of a step goes",
        f"harness run … --set {more}": "more trials; finished ones are not repeated",
    }
    width = max(len(command) for command in purposes)
    lines: list[str] = []
    for command, purpose in purposes.items():
        heading = "" if lines else "next"
        lines.append(f"{heading:{COMMAND_INDENT}}{escape(f'{command:{width}}')}  [dim]{purpose}[/]")
    return lines


def trial_line(record: Record, folder: TrialFolder, number: int, count: int) -> str:
    """Return a finished trial's line: its numbers, or its error with rank, node and log.

    It is rich markup. `number` of `count` trials have finished. A trial that ran but whose
    measurement is invalid has its numbers too, with the violations below.
    """
    label = f"{escape(record.trial.cell.label)} seed {record.trial.seed}"
    heading = f"[dim]{number}/{count}[/] {label}"
    if record.failure is not None:
        log_path = folder.path / (record.failure.log or "")
        error = escape(str(record.failure))
        return f"[red]✗[/] {heading}: [red]{error}[/]\n    log: {escape(str(log_path))}"
    assert record.summary is not None
    numbers = _describe_numbers(record, record.summary)
    seconds = duration(record.ended - record.started)
    remarks = [*record.violations, *_remarks(record, record.summary)]
    remark_lines = "".join(f"\n    {escape(remark)}" for remark in remarks)
    details = f"[dim]({seconds}){remark_lines}[/]"
    if record.violations:
        return f"[magenta]![/] {heading}: [magenta]invalid[/]: {numbers} {details}"
    return f"[green]✓[/] {heading}: {numbers} {details}"


def _describe_numbers(record: Record, summary: Summary) -> str:
    """Return a trial's throughput, and its target metric after the last step."""
    speed = "speed not measured"
    if summary.throughput is not None:
        speed = f"{summary.throughput:,.0f} samples/s"
    if summary.final_metric is None:
        return speed
    assert record.rank0 is not None
    return f"{speed}, {record.rank0.target.name} {summary.final_metric:.4f}"


def _remarks(record: Record, summary: Summary) -> list[str]:
    """Return what a reader should know before believing this trial's numbers.

    These are when and why it was stopped, company that it lacked, its interruptions, with the
    seconds that each cost, checkpoints that it could not go on from, operations that may vary in
    spite of deterministic mode, and a rank that slows all others.
    """
    remarks: list[str] = []
    stop = stop_note(record)
    if stop is not None:
        remarks.append(stop)
    if record.company is not None and record.company.fell_away:
        remarks.append(
            f"less company than others: all {record.company.lane.count} lanes were full for"
            f" {record.company.full:.0%} of its time"
        )
    for interruption in record.ranks.across.interruptions:
        remarks.append(interruption_note(interruption))
    for refusal in record.ranks.across.refused_checkpoints:
        remarks.append(f"not resumed from {refusal}")
    remarks += nondeterminism_notes(record)
    slowest = summary.slowest
    if slowest and slowest.skew > STRAGGLER_SKEW:
        remarks.append(
            f"straggler: the other ranks wait {slowest.skew:.0%} of their time for"
            f" rank {slowest.rank} on {slowest.host}"
        )
    return remarks
