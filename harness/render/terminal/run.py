"""`harness run` as its user sees it: a progress bar, a line for each trial, a table, and delivery to MLflow."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harness.core.errors import HarnessError, one_line
from harness.core.paths import Results, TrialFolder
from harness.records.record import Record, Summary
from harness.render.format import counted, duration
from harness.render.terminal.roofline import roofline_lines, with_measured_peaks
from harness.render.terminal.table import result_table, show
from harness.spec.cell import Trial
from harness.spec.sweep import Sweep
from harness.tracking import Tracker

STRAGGLING = 0.1  # the skew from which on a straggler is named


class RunView:
    """Listens to a running sweep. A tracker that is down is told of once and costs no trial."""

    def __init__(self, sweep: Sweep, results: Results, tracking_uri: str | None) -> None:
        self.sweep, self.results = sweep, results
        self.console = Console(highlight=False)
        self.tracker = Tracker(results, tracking_uri)  # connects when the first record is there
        self.trouble: str | None = None
        self.count = self.begun = self.done = 0
        self.began = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
        )
        self.progress = Progress(*columns, console=self.console, transient=True)
        self.bar = self.progress.add_task("trials", total=None, news="")

    def __enter__(self) -> RunView:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        self.count += len(pending)  # more come if repeats go on until intervals are narrow
        self.progress.update(self.bar, total=self.count)
        told = f"{counted(len(pending), 'trial')} of {counted(len(self.sweep.cells), 'cell')}"
        told += f", {len(finished)} already there" if finished else ""
        self.say(f"[bold]{escape(self.sweep.name)}[/]: {told}")
        folder = self.results.sweep_folder(self.sweep.name)
        untraced = sum(
            not folder.trial_folder(record.trial.id).trace_folder.exists() for record in finished
        )
        if self.sweep.profile and untraced:
            self.say(
                f"profile: {untraced} of those there have no trace; --force runs them again, with one"
            )

    def on_trial_start(self, trial: Trial) -> None:
        self.begun += 1
        if self.begun > self.count:  # an invalid trial runs again
            self.count = self.begun
            self.progress.update(self.bar, total=self.count)
        self.progress.update(self.bar, description=escape(trial.cell.label), news="starting")

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        if not progress:
            return
        news = f"step {progress['step']}/{progress['steps']}"
        if "rate" in progress:
            news += f" · {progress['rate']:,.0f} samples/s · loss {progress['loss']:.3f}"
        within = progress["step"] / max(1, progress["steps"])
        self.progress.update(self.bar, news=f"{news} · {self._left(within)}")

    def _left(self, within: float) -> str:
        """The time that the rest will take if trials go on taking what they took so far."""
        so_far = self.done + within
        left = (time.monotonic() - self.began) / so_far * (self.count - so_far) if so_far else 0.0
        return f"{duration(left)} left"

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        self.done += 1
        self.progress.advance(self.bar)
        self.say(trial_line(record, folder, self.done, self.count))
        self.deliver([record])

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def deliver(self, records: Sequence[Record]) -> None:
        """Bring records to MLflow; those that are there already cost one query."""
        if self.trouble:
            return
        self.progress.update(self.bar, news="recording in MLflow")
        try:
            self.tracker.deliver(self.results.sweep_folder(self.sweep.name), records)
        except Exception as error:  # the record is on disk; no trouble with the tracker may cost the trials to come
            known = isinstance(error, HarnessError)
            self.trouble = (
                str(error) if known else f"MLflow: {type(error).__name__}: {one_line(error)}"
            )
            self.say(f"[yellow]{escape(self.trouble)}[/]")


def show_results(
    sweep: Sweep,
    records: Sequence[Record],
    results: Results,
    *,
    trouble: str | None = None,
    verbose: bool = False,
) -> None:
    """The table of a sweep's results, and what to do next."""
    console = Console(highlight=False)
    records, peaks = with_measured_peaks(records, results)
    show(console, result_table(sweep, records))
    counts = Counter(record.status for record in records)
    name = shlex.quote(sweep.name)
    hints = [
        ("harness ui", "curves and comparisons in MLflow"),
        (f"harness show {name} --phases", "where the time of a step goes"),
        ("harness run … --set seeds=0,1,2", "more seeds; what is done is not repeated"),
    ]
    intervals = " ± 95% interval" if len(sweep.seeds) * sweep.repeats > 1 else ""
    width = max(len(command) for command, _ in hints)
    place = escape(str(results.sweep_folder(sweep.name).path))
    lines = [f"\n★ best of its workload; means over trials{intervals}. Records: {place}"]
    lines += roofline_lines(sweep, records, results, peaks)
    if failed := counts["failed"]:
        lines.append(f"[red]{failed} failed[/]; run or submit the sweep again to retry them")
    if interrupted := counts["interrupted"]:
        lines.append(
            f"[yellow]{interrupted} interrupted[/]; run or submit the sweep again to go on with them"
        )
    if invalid := counts["invalid"]:
        lines.append(
            f"[magenta]{invalid} invalid[/], left out of all means; run or submit the sweep again to repeat them"
        )
    if trouble:
        lines.append(
            f"[yellow]MLflow has not got everything[/]; deliver it later: harness collect {name}"
        )
    lines += [
        *(
            f"{'next' if n == 0 else '':6}{command:{width}}  [dim]{what}[/]"
            for n, (command, what) in enumerate(hints)
        ),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


def trial_line(record: Record, folder: TrialFolder, number: int, count: int) -> str:
    """What became of a trial: its numbers, or its error with rank, node and log."""
    head = f"[dim]{number}/{count}[/] {escape(record.trial.cell.label)} seed {record.trial.seed}"
    if record.failure is not None:
        log = folder.path / (record.failure.log or "")
        return (
            f"[red]✗[/] {head}: [red]{escape(str(record.failure))}[/]\n    log: {escape(str(log))}"
        )
    summary, learned = record.summary, record.rank0
    assert summary is not None
    assert learned is not None
    speed = (
        "speed not measured"
        if summary.throughput is None
        else f"{summary.throughput:,.0f} samples/s"
    )
    metric = (
        ""
        if summary.final_metric is None
        else f", {learned.target.name} {summary.final_metric:.4f}"
    )
    remarks = "".join(
        f"\n    {remark}" for remark in [*record.violations, *_remarks(record, summary)]
    )
    mark = "[magenta]![/]" if record.violations else "[green]✓[/]"
    verdict = "[magenta]invalid[/]: " if record.violations else ""
    return f"{mark} {head}: {verdict}{speed}{metric} [dim]({duration(record.ended - record.started)}){remarks}[/]"


def _remarks(record: Record, summary: Summary) -> list[str]:
    """What a reader should know before believing the numbers."""
    found = [
        f"interrupted by {one.signal or 'its end'} after step {one.step}: {duration(one.lost_seconds)} lost"
        for one in record.ranks[0].interruptions
    ]
    if summary.settled is False:
        found.append("its steps never settled: no steady state was found")
    slowest = summary.slowest
    if slowest and slowest.skew > STRAGGLING:
        found.append(
            f"straggler: the others wait {slowest.skew:.0%} of their time for rank {slowest.rank} on {slowest.host}"
        )
    return found
