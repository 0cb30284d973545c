"""Shows `harness status`: the trials of a sweep and how far they are, once or until it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.live import Live

from harness.core.text import counted
from harness.slurm.status import SweepStatus, TrialState
from harness.view.console import TerminalConsole, as_rich, as_text
from harness.view.value import Kind, Styled, styled
from harness.view.view import Table, View

# The order in which trials are listed while a sweep is watched, the most interesting first.
STATES = (
    "running", "failed", "lost", "unreadable", "invalid", "interrupted", "queued", "missing",
    "cancelled", "done",
)  # fmt: skip
LISTED = STATES[:6]  # trials in these are listed however large the sweep is
MAX_ROWS = 100  # trials that are listed by default
PANEL_FRAME_ROWS = 4  # of a panel without its trials: header, headline, remarks
# Shows the states of sweeps, and why records were not delivered, if so.
StatusDisplay = Callable[[Sequence[SweepStatus], str | None], None]


def status_view(status: SweepStatus, *, every: bool = False) -> View:
    """Return the state of every trial.

    Of a sweep with more than MAX_ROWS trials, the number of trials is shown by cell, and only those
    are listed that are running or went wrong; unless `every` asks for all.
    """
    tables = []
    trials = list(status.trials)
    if len(trials) > MAX_ROWS and not every:
        tables.append(cell_table(trials))
        trials = [trial for trial in trials if trial.state in LISTED][:MAX_ROWS]
    tables.append(trial_table(trials))
    result = {
        "sweep": status.sweep.name,
        "slurm_error": status.slurm_error,
        "trials": list(map(asdict, status.trials)),
    }
    return View(result=result, tables=tables, lines=headlines(status))


def headlines(status: SweepStatus) -> list[list[str | Styled]]:
    """Return a sweep's state: `my sweep: 24 trials: 20 done, 2 running`, and whether Slurm answers."""
    counts = Counter(trial.state for trial in status.trials)
    line: list[str | Styled] = [Styled(status.sweep.name, "strong")]
    line.append(f": {counted(len(status.trials), 'trial')}")
    for number, (state, count) in enumerate(counts.most_common()):
        line += [", " if number else ": ", f"{count} ", styled(state)]
    if status.slurm_error:
        return [line, [Styled(f"Slurm did not answer: {status.slurm_error}", "open")]]
    return [line]


def _under_way(statuses: Sequence[SweepStatus]) -> Sequence[SweepStatus]:
    """Return the sweeps that are not over; a single one in any case, as the user has asked for it."""
    if len(statuses) == 1:
        return statuses
    return [status for status in statuses if not status.is_over]


@contextmanager
def status_display() -> Iterator[StatusDisplay]:
    """Yield a function that shows the states of sweeps, and why records were not delivered, if so.

    A terminal shows a panel for each sweep that is under way; elsewhere, as in the log of a job, a
    line is printed when something has changed.
    """
    console = TerminalConsole()
    printed: list[list[str | Styled]] = []

    def print_changes(statuses: Sequence[SweepStatus], delivery_error: str | None) -> None:
        """Print the headlines; an error of the delivery is printed with the results."""
        nonlocal printed
        lines = [line for status in _under_way(statuses) or statuses for line in headlines(status)]
        if lines != printed:
            console.show(View(lines=lines))
            printed = lines

    if not console.is_terminal:
        yield print_changes
        return
    with Live(console=console, auto_refresh=False) as live:

        def show_panels(statuses: Sequence[SweepStatus], delivery_error: str | None) -> None:
            """Redraw the panels of the sweeps that are under way, which share the height."""
            shown = _under_way(statuses)
            rows = console.height // max(1, len(shown)) - PANEL_FRAME_ROWS
            parts: list[RenderableType] = [panel(status, max(3, rows)) for status in shown]
            if delivery_error:
                parts.append(as_text(Styled(delivery_error, "open")))
            live.update(Group(*parts), refresh=True)

        yield show_panels


def panel(status: SweepStatus, max_rows: int) -> Group:
    """Return what a terminal shows of a sweep: at most `max_rows` trials, those that matter most now."""
    trials = sorted(status.trials, key=lambda trial: STATES.index(trial.state))[:max_rows]
    rows = trial_table(trials).drawn()
    return Group(as_rich(rows, is_live=True), *map(as_text, headlines(status)))


def trial_table(trials: Sequence[TrialState]) -> Table:
    """Return a table with a row for each trial."""
    columns = ["trial", "cell", "seed", "repeat", "state", "step", "speed", "job", "nodes", ""]
    numbers: dict[str, Kind] = dict.fromkeys(["seed", "repeat", "step", "speed"], "count")
    table = Table(columns, numbers)
    # Repeats are counted from 0: in a sweep without further ones the column would be all zeros.
    is_repeated = any(trial.repeat for trial in trials)
    for trial in trials:
        step = ""
        if trial.step is not None:
            # A script that ends when it likes has no number of steps to come.
            step = f"{trial.step:,}" if trial.steps is None else f"{trial.step:,}/{trial.steps:,}"
        table.add_row(
            trial.trial,
            trial.label,
            trial.seed,
            trial.repeat if is_repeated else "",
            styled(trial.state),
            step,
            f"{trial.throughput:,.0f} {trial.throughput_unit}" if trial.throughput else "",
            trial.job or "",
            trial.nodes,
            trial.detail,
        )
    return table


def cell_table(trials: Sequence[TrialState]) -> Table:
    """Return a table of how many trials of each cell are in each state."""
    counts: dict[str, Counter[str]] = {}
    for trial in trials:
        counts.setdefault(trial.label, Counter())[trial.state] += 1
    table = Table(["cell", *STATES], dict.fromkeys(STATES, "count"))
    for label, by_state in counts.items():
        table.add_row(label, *(by_state[state] or "" for state in STATES))
    return table
