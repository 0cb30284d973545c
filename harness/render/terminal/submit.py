"""`harness submit` as its user sees it: which jobs, of which trials; with --dry-run the batch scripts too."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.markup import escape

from harness.core.paths import Results
from harness.launch.sweep import Redo
from harness.render.format import counted, duration
from harness.render.terminal.plan import estimate_trial_seconds
from harness.render.terminal.table import make_table, show
from harness.slurm import submit
from harness.slurm.submission import Submission
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


def run(sweep: Sweep, profile: Profile, results: Results, *, redo: Redo, dry_run: bool) -> None:
    """Raises what `submit` raises."""
    console = Console(highlight=False)
    folder = results.sweep_folder(sweep.name)
    submit.check_folder(profile, folder.path)
    estimates = {
        cell.id: seconds
        for cell in sweep.cells
        if (seconds := estimate_trial_seconds(cell, results)) is not None
    }

    def told(prepared: submit.Prepared) -> None:
        left_out = f"; {prepared.finished} are done" if prepared.finished else ""
        left_out += f"; {prepared.live} are in the queue already" if prepared.live else ""
        console.print(
            f"[bold]{escape(sweep.name)}[/]: {counted(prepared.trials, 'trial')}{left_out}",
            soft_wrap=True,
        )
        for remark in prepared.remarks:
            console.print(remark, style="yellow", markup=False, soft_wrap=True)

    if dry_run:
        prepared = submit.prepare(sweep, profile, folder, redo=redo, estimates=estimates)
        told(prepared)
        if prepared.submission.arrays:
            show_jobs(console, prepared.submission)
        for number in range(len(prepared.submission.arrays)):
            console.print(
                f"\n{submit.script(folder, prepared.submission, number)}",
                markup=False,
                soft_wrap=True,
            )
        return
    submission = submit.submit(sweep, profile, folder, redo=redo, estimates=estimates, told=told)
    if not submission.arrays:
        return
    show_jobs(console, submission)
    name = shlex.quote(sweep.name)
    console.print(f"\nnext  harness status {name} --watch", markup=False, soft_wrap=True)


def show_jobs(console: Console, submission: Submission) -> None:
    """A row for each array."""
    table = make_table(
        ["job", "jobs", "nodes", "ranks a node", "trials", "longest"], ["jobs", "nodes", "trials"]
    )
    for array in submission.arrays:
        known = [seconds for seconds in array.seconds if seconds is not None]
        longest = duration(max(known)) if len(known) == len(array.seconds) else "unknown"
        table.add_row(
            array.job or "–",
            str(len(array.loads)),
            str(array.nodes),
            str(array.ranks_per_node),
            str(sum(len(load) for load in array.loads)),
            longest,
        )
    show(console, table)
