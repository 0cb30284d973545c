"""Defines the commands for sweeps in Slurm jobs: `harness submit`, `status` and `cancel`.

Only `submit` and `cancel` change anything in Slurm. `status` reads the results folder, so it also
shows sweeps that `harness run` runs on this machine, and works from any machine that sees the folder.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.api import watching
from harness.api.planning import load_planned
from harness.api.watching import watch
from harness.cli.arguments import (
    DataOption,
    NameArgument,
    OnlyOption,
    ResultsOption,
    SetOption,
    SweepArgument,
    UriOption,
)
from harness.cli.completion import complete_profiles, complete_recorded_sweeps
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.core.text import counted
from harness.records.store import read_recorded_spec, read_recorded_specs, read_recorded_sweep
from harness.slurm import submit as jobs
from harness.slurm.status import SweepStatus
from harness.sweep.sweep import Sweep
from harness.view.console import TerminalConsole, show
from harness.view.plan import submission_view
from harness.view.run import left_out_lines
from harness.view.status import headlines, status_display, status_view
from harness.view.sweep import sweep_view
from harness.view.value import Styled
from harness.view.view import View

app = typer.Typer()


@app.command()
def submit(
    sweep: SweepArgument,
    # No default, unlike that of other commands: `local` could never be right here.
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            metavar="PROFILE",
            help="The cluster: a profile whose launcher is slurm.",
            autocompletion=complete_profiles,
        ),
    ],
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    results: ResultsOption = Path("results"),
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
    results_folder = Results(results)
    loaded, profile = load_planned(
        sweep, settings, data, cluster, only=only, results=results_folder, launcher="slurm"
    )
    console = TerminalConsole()
    sweep_folder = results_folder.sweep_folder(loaded.name)
    if dry_run:
        prepared = jobs.prepare(loaded, profile, sweep_folder, "failed")
        show(submission_view(prepared))
        for script in jobs.batch_scripts(sweep_folder, prepared.submission):
            console.say(f"\n{script}", wraps=False)
        return
    prepared = jobs.submit(loaded, profile, sweep_folder, "failed")
    show(submission_view(prepared))
    if prepared.submission.arrays:
        command = f"harness status {shlex.quote(loaded.name)} --watch{results_folder.flag}"
        console.say(f"next  {command}", wraps=False)


@app.command()
def status(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="SWEEP",
            help="The name of a sweep. Default: all sweeps.",
            autocompletion=complete_recorded_sweeps,
        ),
    ] = None,
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Refresh until nothing runs any more, and deliver the jobs' records to MLflow.",
        ),
    ] = False,
    every_trial: Annotated[
        bool,
        typer.Option("--all", help="List every trial of a large sweep instead of its cells."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every trial as JSON.")] = False,
) -> None:
    """Show the state of every trial of a sweep, wherever it runs.

    It combines the records with what the running trials report and what Slurm says of their jobs,
    and works on any machine that sees the results folder. Exit code 1 if a trial failed or was
    lost, 2 if a sweep or a record can't be read.

    Examples:
      harness status
      harness status quickstart --watch
    """
    if watch and (as_json or every_trial):
        option = "--json" if as_json else "--all"
        raise BadInput(f"status: found {option} with --watch; allowed: one of them")
    results_folder = Results(results)
    if sweep is None:
        # The summary of all sweeps has a line for each and lists no trial.
        if as_json or every_trial:
            raise BadInput("status: found no SWEEP; allowed: one, with --json or --all")
        _show_all(results_folder, tracking_uri, watch=watch)
        return
    # The spec next to the records says which trials there are: the sweep's file may have
    # changed since, or be on another machine.
    sweeps = [read_recorded_spec(results_folder, sweep)]
    if watch:
        statuses = _watch(sweeps, results_folder, tracking_uri)
    else:
        statuses = watching.sweep_statuses(sweeps, results_folder)
        show(status_view(statuses[0], every=every_trial), as_json=as_json)
    _exit_with_status(statuses, [])


def _show_all(results: Results, tracking_uri: str | None, *, watch: bool) -> None:
    """Show the state of all sweeps; one that can't be read hides none of the others."""
    sweeps, errors = read_recorded_specs(results)
    if not sweeps and not errors:  # no error, but most likely the wrong folder
        print(f"no sweeps in {results.runs}; set --results or HARNESS_RESULTS to look elsewhere")
        return
    statuses = watching.sweep_statuses(sweeps, results, errors)
    if watch:
        statuses = _watch([status.sweep for status in statuses], results, tracking_uri)
    else:
        show(View(lines=[line for status in statuses for line in headlines(status)]))
    _exit_with_status(statuses, errors)


def _watch(
    sweeps: Sequence[Sweep], results: Results, tracking_uri: str | None
) -> list[SweepStatus]:
    """Show the trials until there is nothing left to wait for; of a single sweep, its results too."""
    with status_display() as show_statuses:
        statuses, trouble = watch(sweeps, results, tracking_uri, show_statuses)
    if len(sweeps) == 1:
        recorded = read_recorded_sweep(results, sweeps[0].name)
        show(
            sweep_view(
                recorded.sweep,
                recorded.records,
                results,
                trouble=trouble,
                tracking_uri=tracking_uri,
            )
        )
        console = TerminalConsole()
        for line in left_out_lines(recorded):
            console.say(Styled(line, "open"))
    return statuses


def _exit_with_status(statuses: Sequence[SweepStatus], errors: Sequence[BadInput]) -> None:
    """Name what can't be read, and end the command with the exit code that the states call for.

    The other sweeps, and the other trials of a sweep, have been shown. Trials that are queued,
    running or interrupted are not wrong: where there are no others, this returns.
    """
    unreadable = [str(error) for error in errors]
    states: set[str] = set()
    for status in statuses:
        unreadable += [trial.detail for trial in status.trials if trial.state == "unreadable"]
        states.update(trial.state for trial in status.trials)
    for line in unreadable:
        print(f"harness: {line}", file=sys.stderr)
    if states & {"failed", "lost"}:
        raise typer.Exit(1)
    if unreadable:
        raise typer.Exit(BadInput.exit_code)


@app.command()
def cancel(sweep: NameArgument, results: ResultsOption = Path("results")) -> None:
    """Cancel the jobs of a sweep.

    Trials that are done keep their records. Submit the sweep again to run the others.

    Examples:
      harness cancel quickstart
    """
    results_folder = Results(results)
    # Read first, so that a name that no sweep has is an error and not a sweep without jobs.
    name = read_recorded_spec(results_folder, sweep).name
    job_ids = jobs.cancel(results_folder.sweep_folder(name))
    ids = f": {', '.join(job_ids)}" if job_ids else ""
    print(f"{counted(len(job_ids), 'job')} cancelled{ids}")
