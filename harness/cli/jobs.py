"""Defines the commands for sweeps in Slurm jobs: `harness submit`, `status` and `cancel`.

Only `submit` and `cancel` change anything in Slurm. `status` reads the results folder, so it also
shows sweeps that `harness run` runs on this machine, and works from any machine that sees the folder.
"""

import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from harness.api import load_planned
from harness.cli.arguments import (
    DataOption,
    JsonOption,
    NameArgument,
    OnlyOption,
    SetOption,
    SweepArgument,
    UriOption,
    complete_recorded_sweeps,
)
from harness.cli.main import RESULTS
from harness.core.errors import BadInput
from harness.core.text import counted
from harness.records.store import read_recorded_spec, read_recorded_specs, read_recorded_sweep
from harness.slurm import submit as jobs
from harness.slurm.status import SweepStatus, read_statuses, until_over
from harness.sweep.cluster import profile_paths
from harness.tracking.follow import Follower
from harness.view.console import TerminalConsole, show
from harness.view.plan import submission_view
from harness.view.status import headlines, status_view
from harness.view.sweep import sweep_view
from harness.view.value import Styled
from harness.view.view import View

WATCH_SECONDS = 5.0  # between two readings of states

app = typer.Typer()


@app.command()
def submit(
    sweep: SweepArgument,
    # No default, unlike that of other commands: `local` could never be right here.
    cluster: Annotated[
        str,
        typer.Option(
            metavar="PROFILE",
            help="The cluster: a profile whose launcher is slurm.",
            autocompletion=lambda: list(profile_paths()),
        ),
    ],
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the jobs and their batch scripts, submit nothing."),
    ] = False,
) -> None:
    """Submit a sweep to Slurm.

    A block of trials, every cell once with the same seed, is one job on the same nodes; short
    blocks share a job. Returns once the jobs are queued. Submit the sweep again to run the trials
    that are not done; none is queued twice.

    Examples:
      harness submit quickstart --cluster slurm --dry-run
      harness submit sweep.yaml --cluster slurm --only world_size!=1 --only seed=0,1
    """
    results = RESULTS.get()
    loaded, profile = load_planned(
        sweep, settings, data, cluster, only=only, results=results, launcher="slurm"
    )
    sweep_folder = results.sweep_folder(loaded.name)
    command = results.command(f"status {shlex.quote(loaded.name)} --watch")
    if dry_run:
        prepared = jobs.prepare(loaded, profile, sweep_folder)
        show(submission_view(prepared))
        console = TerminalConsole()
        for script in jobs.batch_scripts(sweep_folder, prepared.submission):
            console.say(f"\n{script}", wraps=False)
    else:
        prepared = jobs.submit(loaded, profile, sweep_folder)
        show(submission_view(prepared, command))


@app.command()
def status(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="[SWEEP]",
            help="The name of a sweep. Default: all sweeps.",
            autocompletion=complete_recorded_sweeps,
        ),
    ] = None,
    tracking_uri: UriOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show changes until it is over; deliver to MLflow.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show the state of every trial of a sweep, wherever it runs.

    It combines the records with what the running trials report and what Slurm says of their jobs,
    and works on any machine that sees the results folder. With --watch, the records that jobs leave
    are delivered to MLflow as they come. Of a sweep of more than 100 trials, it lists those that are
    running or went wrong; --json has all.

    Exit code 1 if a trial failed or was lost, 2 if a sweep or a record can't be read.

    Examples:
      harness status
      harness status quickstart --watch
    """
    if as_json and (watch or sweep is None):
        raise BadInput("--json: found without SWEEP or with --watch; allowed: status SWEEP --json")
    results = RESULTS.get()
    errors: list[BadInput] = []
    # The spec next to the records says which trials there are: the sweep's file may have
    # changed since, or be on another machine.
    if sweep is not None:
        sweeps = [read_recorded_spec(results, sweep)]
    else:
        sweeps, errors = read_recorded_specs(results)  # one that can't be read hides no other
        if not sweeps and not errors:  # no error, but most likely the wrong folder
            print(
                f"no sweeps in {results.runs}; set --results or HARNESS_RESULTS to look elsewhere"
            )
    folders = [(spec, results.sweep_folder(spec.name)) for spec in sweeps]
    statuses: Sequence[SweepStatus] = read_statuses(folders, errors)
    if watch and statuses:
        statuses = _watch(statuses, tracking_uri)
    elif sweep is not None:
        for status in statuses:
            show(status_view(status), as_json=as_json)
    else:
        for status in statuses:
            show(View(lines=headlines(status)))
    return _exit_code(statuses, errors)


def _watch(statuses: Sequence[SweepStatus], tracking_uri: str | None) -> Sequence[SweepStatus]:
    """Show what changes until there is nothing left to wait for, and return the last states.

    Records that jobs leave are delivered to MLflow as they come: a job has no access to the tracking
    server. Of a single sweep, the results are shown in the end.
    """
    results = RESULTS.get()
    is_single_sweep = len(statuses) == 1
    folders = []
    delivered = []
    for status in statuses:
        folder = results.sweep_folder(status.sweep.name)
        folders.append((status.sweep, folder))
        if is_single_sweep or not status.is_over:
            delivered.append(folder)
    printed: list[list[str | Styled]] = []
    with Follower(results, delivered, tracking_uri) as delivery:
        for statuses in until_over(lambda: read_statuses(folders), WATCH_SECONDS):
            lines: list[list[str | Styled]] = []
            for status in statuses:
                lines += headlines(status)
            if lines != printed:
                show(View(lines=lines))
                printed = lines
    if is_single_sweep:
        sweep, _ = folders[0]
        recorded = read_recorded_sweep(results, sweep.name)
        trouble = delivery.trouble
        show(sweep_view(recorded, results, trouble=trouble, tracking_uri=tracking_uri))
    return statuses


def _exit_code(statuses: Sequence[SweepStatus], errors: Sequence[BadInput]) -> int:
    """Name what can't be read, and return the exit code that the states call for.

    Trials that are queued, running or interrupted are not wrong.
    """
    unreadable = [str(error) for error in errors]
    states = set()
    for status in statuses:
        for trial in status.trials:
            states.add(trial.state)
            if trial.state == "unreadable":
                unreadable.append(trial.detail)
    for line in unreadable:
        print(f"harness: {line}", file=sys.stderr)
    if states & {"failed", "lost"}:
        return 1
    return BadInput.exit_code if unreadable else 0


@app.command()
def cancel(sweep: NameArgument) -> None:
    """Cancel the jobs of a sweep.

    Trials that are done keep their records. Submit the sweep again to run the others.

    Examples:
      harness cancel quickstart
    """
    # Read first, so that a name that no sweep has is an error and not a sweep without jobs.
    results = RESULTS.get()
    spec = read_recorded_spec(results, sweep)
    job_ids = jobs.cancel(results.sweep_folder(spec.name))
    line = f"{counted(len(job_ids), 'job')} cancelled"
    if job_ids:
        line += f": {', '.join(job_ids)}"
    print(line)
