"""`harness status`: the trials of a sweep and how far they are."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.core.errors import HarnessError, one_line
from harness.core.paths import Results
from harness.launch.sweep import read_recorded_sweep
from harness.records.record import read_record
from harness.render.format import counted, duration
from harness.render.terminal.table import STATUS_STYLE, make_table
from harness.render.terminal.table import show as show_table
from harness.slurm.status import OPEN, Status, TrialState, look
from harness.spec.sweep import Sweep

STYLE = STATUS_STYLE | {
    "running": "cyan",
    "queued": "dim",
    "interrupted": "yellow",
    "lost": "red",
    "cancelled": "dim",
}
FIRST = ("running", "failed", "lost", "invalid", "interrupted", "queued")  # and last what is over
MOST_ROWS = 100  # trials that are shown one by one unless all are asked for
TELLING = set(FIRST[:-1])  # shown one by one all the same
INTERVAL = 5.0  # seconds between two looks
LAG = (
    70.0  # seconds that a shared folder may take to show a record that was left: man nfs, acdirmax
)


def show(sweep: Sweep, results: Results, *, as_json: bool, every: bool) -> Status:
    """Print the state of every trial once; of a large sweep by cell, unless `every`, with the trials that matter."""
    (found,) = look([(sweep, results.sweep_folder(sweep.name))])
    if as_json:
        trials = [asdict(one) for one in found.trials]
        about = {"sweep": sweep.name, "trouble": found.trouble, "bad_nodes": dict(found.bad_nodes)}
        print(json.dumps({**about, "trials": trials}, indent=1))
        return found
    console = Console(highlight=False)
    rows = found.trials
    if not every and len(rows) > MOST_ROWS:
        show_table(console, cell_table(rows))
        rows = [one for one in rows if one.state in TELLING][:MOST_ROWS]
        console.print()
    if rows:
        show_table(console, table(rows))
    console.print(headline(found), soft_wrap=True)
    return found


def summary(sweeps: Sequence[Sweep], results: Results) -> list[Status]:
    """Print a line for each sweep."""
    console = Console(highlight=False)
    if not sweeps:
        console.print(
            f"no sweeps in {escape(str(results.runs))}; --results or HARNESS_RESULTS says where",
            soft_wrap=True,
        )
    every = look([(sweep, results.sweep_folder(sweep.name)) for sweep in sweeps])
    for found in every:
        console.print(headline(found), soft_wrap=True)
    return every


def watch(
    sweeps: Sequence[Sweep],
    results: Results,
    tracking_uri: str | None,
    *,
    interval: float = INTERVAL,
) -> list[Status]:
    """Show the trials at work until nothing is left to wait for, then the results if it was one sweep; records of
    jobs go to MLflow as they come. Where nobody looks, a line says what has changed."""
    console = Console(highlight=False)
    courier, said, live_at = _Courier(results, tracking_uri), "", -math.inf
    with (
        Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live
    ):
        while True:
            found = look([(sweep, results.sweep_folder(sweep.name)) for sweep in sweeps])
            at_work = found if len(found) == 1 else [one for one in found if not one.over]
            news = [headline(one) for one in at_work or found]
            if live:
                room = max(3, console.height // max(1, len(at_work)) - 5)
                live.update(
                    Group(*(panel(one, room) for one in at_work), *courier.news()), refresh=True
                )
            elif "\n".join(news) != said:
                said = "\n".join(news)
                console.print(said, soft_wrap=True)
            for one in at_work:
                courier.deliver(one)
            over, now = all(one.over for one in at_work), time.monotonic()
            live_at = live_at if over else now
            lost = any(trial.state == "lost" for one in found for trial in one.trials)
            if over and (not lost or now > live_at + LAG):
                break
            time.sleep(interval)
    if len(sweeps) == 1:
        from harness.render.terminal.run import show_results

        show_results(
            *read_recorded_sweep(results, sweeps[0].name), results, trouble=courier.trouble
        )
    return found


class _Courier:
    """Brings records of jobs to MLflow; who runs trials here does that for them. Of a tracker that is down it tells."""

    def __init__(self, results: Results, tracking_uri: str | None) -> None:
        from harness.tracking import (
            Tracker,  # one look needs neither this nor `show_results`: they take longer than it does
        )

        self.results, self.tracker = results, Tracker(results, tracking_uri)
        self.trouble: str | None = None
        self.delivered: set[str] = set()

    def deliver(self, found: Status) -> None:
        folder = self.results.sweep_folder(found.sweep.name)
        over = {one.trial for one in found.trials if one.job and one.over}
        new = {str(folder.trial_folder(trial).record_path) for trial in over} - self.delivered
        if not new or self.trouble:
            return
        try:
            self.tracker.deliver(folder, [read_record(Path(path)) for path in new])
            self.delivered |= new
        except Exception as error:  # records are on disk: trouble with the tracker costs none
            self.trouble = escape(
                str(error) if isinstance(error, HarnessError) else f"MLflow: {one_line(error)}"
            )

    def news(self) -> list[Text]:
        return [Text.from_markup(self.trouble, style="yellow")] if self.trouble else []


def panel(found: Status, room: int) -> Group:
    """What of a sweep is worth a look now, in `room` rows, and how far all of it is."""
    rows = sorted(
        found.trials, key=lambda one: FIRST.index(one.state) if one.state in FIRST else len(FIRST)
    )
    ended = sum(one.state not in OPEN for one in found.trials)
    left = "" if found.left is None else f", about {duration(found.left)} left"
    bar = ProgressBar(total=len(found.trials), completed=ended, width=40)
    progress = Columns([bar, f"{ended}/{len(found.trials)}{left}"])
    return Group(table(rows[:room]), Text.from_markup(headline(found)), progress)


def table(rows: Sequence[TrialState]) -> Table:
    """A row a trial; columns that say nothing are left out."""
    columns: dict[str, Callable[[TrialState], str | Text]] = {
        "trial": lambda one: _short(one.trial),
        "cell": lambda one: _short(one.label),
        "seed": lambda one: str(one.seed),
        "repeat": lambda one: str(one.repeat) if repeated else "",
        "state": lambda one: Text(one.state, style=STYLE.get(one.state, "")),
        "step": lambda one: "" if one.step is None else f"{one.step:,}/{one.steps:,}",
        "samples/s": lambda one: "" if one.rate is None else f"{one.rate:,.0f}",
        "left": lambda one: "" if one.left is None else duration(one.left),
        "job": lambda one: one.job or "",
        "nodes": lambda one: one.nodes,
        "": lambda one: _short(one.detail),
    }
    repeated = any(one.repeat for one in rows)
    shown = {
        name: texts for name, say in columns.items() if any(texts := [say(one) for one in rows])
    }
    made = make_table(shown, NUMBERS)
    for column in made.columns:
        column.no_wrap = column.header not in SHORTENED
    for row in zip(*shown.values(), strict=True):
        made.add_row(*row)
    return made


def _short(text: str) -> Text:
    """What is cut off first where a terminal is narrow."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def cell_table(rows: Sequence[TrialState]) -> Table:
    """How many trials of each cell are in which state."""
    counts: dict[str, Counter[str]] = {}
    for one in rows:
        counts.setdefault(one.label, Counter())[one.state] += 1
    seen = [state for state in STYLE if any(state in found for found in counts.values())]
    made = make_table(["cell", *seen], seen)
    for label, found in counts.items():
        made.add_row(
            label,
            *(
                Text(f"{found[state]:,}" if found[state] else "", style=STYLE[state])
                for state in seen
            ),
        )
    return made


SHORTENED = ("trial", "cell", "")
NUMBERS = ["seed", "repeat", "step", "samples/s", "left"]


def headline(found: Status) -> str:
    """As in `my sweep: 24 trials: 20 done, 2 running, 2 queued`."""
    counts = Counter(one.state for one in found.trials)
    listed = ", ".join(
        f"[{STYLE.get(state, 'default')}]{count} {state}[/]"
        for state, count in counts.most_common()
    )
    text = f"[bold]{escape(found.sweep.name)}[/]: {counted(len(found.trials), 'trial')}: {listed}"
    for node, lost in sorted(found.bad_nodes.items()):
        text += f"\n[yellow]bad node {escape(node)}: {counted(lost, 'attempt')} lost with it[/]"
    return text + (
        f"\n[yellow]Slurm did not answer: {escape(found.trouble)}[/]" if found.trouble else ""
    )
