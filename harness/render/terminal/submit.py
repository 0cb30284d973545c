"""Shows `harness submit`: which jobs run which trials; with `--dry-run` also the batch scripts."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from harness.core.text import counted
from harness.render.format import duration
from harness.render.table import Table
from harness.render.terminal.plan import conflict_lines
from harness.render.terminal.table import show
from harness.slurm.submission import JobArray, Submission
from harness.slurm.submit import PreparedSubmission

COLUMNS = ("job", "jobs", "nodes", "ranks a node", "trials", "longest")
NUMBER_COLUMNS = ("jobs", "nodes", "trials")  # aligned to the right


def show_prepared(console: Console, prepared: PreparedSubmission) -> None:
    """Print how many trials are submitted, how many are not and why, and the remarks."""
    name = escape(prepared.submission.sweep.name)
    line = f"[bold]{name}[/]: {counted(prepared.new_trials, 'trial')}"
    if prepared.finished_trials:
        line += f"; {prepared.finished_trials} are done"
    if prepared.live_trials:
        line += f"; {prepared.live_trials} are in the queue already"
    console.print(line, soft_wrap=True)
    for line in conflict_lines(prepared.submission.sweep):
        console.print(line, markup=False, soft_wrap=True)
    for remark in prepared.remarks:
        console.print(remark, style="yellow", markup=False, soft_wrap=True)


def show_script(console: Console, script: str) -> None:
    """Print a batch script."""
    # Without markup: in a script, square brackets are the shell's.
    console.print(f"\n{script}", markup=False, soft_wrap=True)


def show_jobs(console: Console, submission: Submission) -> None:
    """Print a row for each array of jobs: its size, what each of its jobs asks for, and its trials.

    The id is a dash where Slurm has not given one, as in a dry run. Prints nothing without arrays.
    """
    if not submission.arrays:
        return
    table = Table(COLUMNS, NUMBER_COLUMNS)
    for array in submission.arrays:
        table.add_row(
            array.slurm_id or "–",
            str(len(array.trial_ids)),
            str(array.nodes),
            str(array.ranks_per_node),
            str(sum(len(trial_ids) for trial_ids in array.trial_ids)),
            _longest(array),
        )
    show(console, table)


def _longest(array: JobArray) -> str:
    """Return the estimated duration of the array's longest job.

    Unknown if that of any job is, since that job may be the longest.
    """
    estimates = [seconds for seconds in array.estimated_seconds if seconds is not None]
    if len(estimates) < len(array.estimated_seconds):
        return "unknown"
    return duration(max(estimates))
