"""Shows `harness submit`: which jobs run which trials; with `--dry-run` also the batch scripts.

What is printed by a dry run is what a submission would do at this moment: both come from the same
preparation (`harness.slurm.submit.prepare`), which writes nothing.
"""

from __future__ import annotations

import shlex
import sys

from rich.console import Console
from rich.markup import escape

from harness.core.paths import Results, SweepFolder
from harness.core.text import counted
from harness.launch.sweep import Redo
from harness.render.format import duration
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.plan import conflict_lines, estimate_cells
from harness.render.terminal.table import make_table, show
from harness.slurm import submit
from harness.slurm.submission import JobArray, Submission
from harness.slurm.submit import PreparedSubmission
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

COLUMNS = ("job", "jobs", "nodes", "ranks a node", "trials", "longest")
NUMBER_COLUMNS = ("jobs", "nodes", "trials")  # aligned to the right


def run(sweep: Sweep, profile: Profile, results: Results, *, redo: Redo, dry_run: bool) -> None:
    """Submit the sweep and print what was submitted; with `dry_run`, print what would be.

    `redo` says which finished trials run again. Jobs are packed by what earlier trials of the same
    cells took, in any sweep among these results.

    Raises BadInput and HarnessError as `harness.slurm.submit` does.
    """
    console = TerminalConsole()
    sweep_folder = results.sweep_folder(sweep.name)
    submit.check_folder(profile, sweep_folder.path)
    estimates = estimate_cells(sweep, results)
    if dry_run:
        prepared = submit.prepare(sweep, profile, sweep_folder, redo=redo, estimates=estimates)
        show_prepared(console, prepared)
        show_scripts(console, sweep_folder, prepared.submission)
        return
    submission = submit.submit(
        sweep,
        profile,
        sweep_folder,
        redo=redo,
        estimates=estimates,
        # Printed before Slurm is called, so that the remarks are seen even if sbatch refuses.
        on_prepared=lambda prepared: show_prepared(console, prepared),
        on_wait=lambda text: print(f"harness: {text}", file=sys.stderr, flush=True),
    )
    if submission.arrays:
        show_jobs(console, submission)
        name = shlex.quote(sweep.name)
        command = f"harness status {name} --watch{results.flag}"
        console.print(f"\nnext  {command}", markup=False, soft_wrap=True)


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


def show_scripts(console: Console, sweep_folder: SweepFolder, submission: Submission) -> None:
    """Print the arrays that would be submitted, and the batch script of each.

    Raises BadInput if sbatch would refuse one, which Slurm is asked once it is printed.
    """
    if submission.arrays:
        show_jobs(console, submission)
    for number in range(len(submission.arrays)):
        script = submit.batch_script(sweep_folder, submission, number)
        # Without markup: in a script, square brackets are the shell's.
        console.print(f"\n{script}", markup=False, soft_wrap=True)
        submit.refuse_impossible(script)


def show_jobs(console: Console, submission: Submission) -> None:
    """Print a row for each array of jobs: its size, what each of its jobs asks for, and its trials.

    The id is a dash where Slurm has not given one, as in a dry run.
    """
    table = make_table(COLUMNS, NUMBER_COLUMNS)
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
