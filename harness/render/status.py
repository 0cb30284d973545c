"""Shows `harness status`: the trials of a sweep and how far they are, once or until it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from rich.columns import Columns
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.text import Text

from harness.core.text import counted
from harness.render.console import TerminalConsole, as_rich, print_json, show_table, styled
from harness.render.format import STATUS_LOOKS
from harness.render.table import Content, Look, Styled, Table
from harness.slurm.status import OPEN_STATES, SweepStatus, TrialState
from harness.spec.cell import THROUGHPUT_UNITS

STATE_LOOKS: Mapping[str, Look] = {  # by the state of a trial
    **STATUS_LOOKS,
    "running": "running",
    "queued": "quiet",
    "lost": "failed",
    "unreadable": "failed",
    "cancelled": "quiet",
}
# The order in which trials are listed while a sweep is watched, the most interesting first.
# Any other state follows.
ORDER = ("running", "failed", "lost", "unreadable", "invalid", "interrupted", "queued")
ALWAYS_LISTED = set(ORDER) - {"queued"}  # trials in these are listed however large the sweep is
MAX_ROWS = 100  # trials that are listed by default
MIN_PANEL_ROWS = 3  # trials in a panel, however small its share of the terminal is
PANEL_FRAME_ROWS = 5  # of a panel without its trials: header, headline, remarks, progress
# Shows the states of sweeps, and why records were not delivered, if so.
StatusDisplay = Callable[[Sequence[SweepStatus], str | None], None]

SHORTENED_COLUMNS = ("trial", "cell", "")  # that give way where a terminal is narrow
NUMBER_COLUMNS = ("seed", "repeat", "step", *THROUGHPUT_UNITS)  # aligned to the right


def show(status: SweepStatus, *, as_json: bool, every: bool) -> None:
    """Print the state of every trial once.

    Of a sweep with more than MAX_ROWS trials, the number of trials is shown by cell, and only those
    are listed that are running or went wrong; unless `every` asks for all. With `as_json`, every
    trial is printed with all that is known of it.
    """
    if as_json:
        content = {
            "sweep": status.sweep.name,
            "slurm_error": status.slurm_error,
            "trials": list(map(asdict, status.trials)),
        }
        print_json(content)
        return
    console = TerminalConsole()
    rows = list(status.trials)
    if len(rows) > MAX_ROWS and not every:
        show_table(console, cell_table(rows))
        rows = [trial for trial in rows if trial.state in ALWAYS_LISTED][:MAX_ROWS]
        console.print()
    if rows:
        show_table(console, trial_table(rows))
    console.print_markup(headline(status))


def show_summary(statuses: Sequence[SweepStatus]) -> None:
    """Print a line for each sweep."""
    console = TerminalConsole()
    for status in statuses:
        console.print_markup(headline(status))


def _under_way(statuses: Sequence[SweepStatus]) -> list[SweepStatus]:
    """Return the sweeps that are not over.

    A single sweep is returned in any case, as the user has asked for it.
    """
    if len(statuses) == 1:
        return list(statuses)
    return [status for status in statuses if not status.is_over]


@contextmanager
def status_display() -> Iterator[StatusDisplay]:
    """Yield a function that shows the states of sweeps, and why records were not delivered, if so.

    A terminal shows a panel for each sweep that is under way; elsewhere, as in the log of a job, a
    line is printed when something has changed.
    """
    console = TerminalConsole()
    if not console.is_terminal:
        yield _line_display(console)
        return
    with Live(console=console, auto_refresh=False) as live:

        def show_panels(statuses: Sequence[SweepStatus], delivery_error: str | None) -> None:
            """Redraw the panels of the sweeps that are under way, which share the height."""
            under_way = _under_way(statuses)
            max_rows = console.height // max(1, len(under_way)) - PANEL_FRAME_ROWS
            parts: list[Group | Text] = []
            for status in under_way:
                parts.append(panel(status, max(MIN_PANEL_ROWS, max_rows)))
            if delivery_error:
                parts.append(Text(delivery_error, style="yellow"))
            live.update(Group(*parts), refresh=True)

        yield show_panels


def _line_display(console: TerminalConsole) -> StatusDisplay:
    """Return what prints the headlines whenever they have changed."""
    printed = ""

    def print_changes(statuses: Sequence[SweepStatus], delivery_error: str | None) -> None:
        """Print the headlines; an error of the delivery is printed with the results."""
        nonlocal printed
        shown = _under_way(statuses) or statuses
        text = "\n".join(headline(status) for status in shown)
        if text != printed:
            console.print_markup(text)
            printed = text

    return print_changes


def panel(status: SweepStatus, max_rows: int) -> Group:
    """Return what a terminal shows of a sweep: trials, headline and progress.

    At most `max_rows` trials are shown, those that matter most now.
    """
    ranks = {state: number for number, state in enumerate(ORDER)}  # any other state comes last
    rows = sorted(status.trials, key=lambda trial: ranks.get(trial.state, len(ORDER)))[:max_rows]
    ended = sum(trial.state not in OPEN_STATES for trial in status.trials)
    text = f"{ended}/{len(status.trials)}"
    bar = ProgressBar(total=len(status.trials), completed=ended, width=40)
    return Group(
        as_rich(trial_table(rows)), Text.from_markup(headline(status)), Columns([bar, text])
    )


def trial_table(trials: Sequence[TrialState]) -> Table:
    """Return a table with a row for each trial.

    A column in which every cell is empty is left out, so that a sweep that runs locally has none
    for jobs and nodes.
    """
    rows = []
    # Repeats are counted from 0: in a sweep without further ones the column would be all zeros.
    is_repeated = any(trial.repeat for trial in trials)
    for trial in trials:
        row = _trial_row(trial)
        if not is_repeated:
            row["repeat"] = ""
        rows.append(row)
    columns: list[str] = []
    if rows:
        columns = [column for column in rows[0] if any(row[column] for row in rows)]
    table = Table(columns, NUMBER_COLUMNS, SHORTENED_COLUMNS)
    for row in rows:
        table.add_row(*[row[column] for column in columns])
    return table


def _trial_row(trial: TrialState) -> dict[str, Content]:
    """Return the cells of a trial's row by the name of their column; empty if unknown."""
    row: dict[str, Content] = {
        "trial": trial.trial,
        "cell": trial.label,
        "seed": str(trial.seed),
        "repeat": str(trial.repeat),
        "state": Styled(trial.state, STATE_LOOKS.get(trial.state, "plain")),
        "step": "",
        **dict.fromkeys(THROUGHPUT_UNITS, ""),
        "job": trial.job or "",
        "nodes": trial.nodes,
        "": trial.detail,
    }
    if trial.step is not None:
        # A script that ends when it likes has no number of steps to come.
        total = "" if trial.steps is None else f"/{trial.steps:,}"
        row["step"] = f"{trial.step:,}{total}"
    if trial.throughput is not None:
        row[trial.throughput_unit] = f"{trial.throughput:,.0f}"
    return row


def cell_table(trials: Sequence[TrialState]) -> Table:
    """Return a table of how many trials of each cell are in each state.

    It has a column for each state that any trial is in, in the order of STATE_LOOKS.
    """
    counts: dict[str, Counter[str]] = {}
    present: set[str] = set()
    for trial in trials:
        counts.setdefault(trial.label, Counter())[trial.state] += 1
        present.add(trial.state)
    states = [state for state in STATE_LOOKS if state in present]
    table = Table(["cell", *states], states)
    for label, by_state in counts.items():
        row: list[Content] = [label]
        for state in states:
            count = by_state[state]
            # Empty for none, so that the others stand out.
            row.append(Styled(f"{count:,}" if count else "", STATE_LOOKS[state]))
        table.add_row(*row)
    return table


def headline(status: SweepStatus) -> str:
    """Return a sweep's state in a line of markup.

    As in `my sweep: 24 trials: 20 done, 2 running, 2 queued`. A line follows for a Slurm that does not answer.

    """
    counts = Counter(trial.state for trial in status.trials)
    listed = []
    for state, count in counts.most_common():
        listed.append(styled(f"{count} {state}", STATE_LOOKS.get(state, "plain")))
    name = escape(status.sweep.name)
    lines = [f"[bold]{name}[/]: {counted(len(status.trials), 'trial')}: {', '.join(listed)}"]
    if status.slurm_error:
        lines.append(f"[yellow]Slurm did not answer: {escape(status.slurm_error)}[/]")
    return "\n".join(lines)
