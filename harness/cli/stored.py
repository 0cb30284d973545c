"""Defines the commands on recorded sweeps: report, collect, verify, prune.

They work on the folders of recorded sweeps. Nothing is removed that was not named before, and
nothing of a sweep that a process or a job is working on. Only `collect` needs MLflow.
"""

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from harness import housekeeping
from harness.cli.arguments import (
    NameArgument,
    ResultsOption,
    UriOption,
    print_left_out,
)
from harness.cli.completion import complete_recorded_sweeps
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import Results
from harness.core.text import counted
from harness.records.store import (
    read_recorded_spec,
    read_recorded_sweep,
    recorded_folder,
    recorded_sweep_names,
)
from harness.tracking import Tracker
from harness.view.console import show
from harness.view.html.report import write_report
from harness.view.stored import removals_view

app = typer.Typer()

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask before files are removed.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]


@app.command()
def prune(
    sweep: NameArgument,
    whole: Annotated[bool, typer.Option("--whole", help="Remove the sweep as a whole.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Remove trials that failed or are invalid, too.")
    ] = False,
    results: ResultsOption = Path("results"),
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Remove trials of a recorded sweep, or all of it.

    Without further options these are trials of none of its cells, such as those of earlier code,
    which no command shows. Each is named before anything is removed. MLflow keeps its runs.

    Examples:
      harness prune nightly --dry-run
      harness prune nightly --failed --yes
      harness prune scratch --whole
    """
    if whole and failed:
        raise BadInput("--whole: found with --failed; allowed: one of them")
    results_folder = Results(results)
    statuses = ("failed", "invalid") if failed else ()
    removals = housekeeping.removals(results_folder, sweep, whole=whole, statuses=statuses)
    if not removals:
        print("nothing to remove")
        return
    show(removals_view(removals, is_dry_run=dry_run))
    if dry_run:
        return
    _confirm_removal(yes=yes)
    housekeeping.remove(recorded_folder(results_folder, sweep), removals)


@app.command()
def report(
    sweep: NameArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE.html",
            help="The file to write. Default: report.html next to the records.",
        ),
    ] = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Write a sweep's report as one HTML file.

    The file needs no network and no other file, so it can be mailed or kept as an artifact.

    Examples:
      harness report matrix
    """
    results_folder = Results(results)
    recorded = read_recorded_sweep(results_folder, sweep)
    print_left_out(recorded)
    path = output or results_folder.sweep_folder(recorded.sweep.name).report_path
    write_report(path, results_folder, recorded)
    print(path)  # alone on stdout, for scripts that mail or upload the file


@app.command()
def collect(
    sweep: NameArgument, results: ResultsOption = Path("results"), tracking_uri: UriOption = None
) -> None:
    """Deliver the records of a sweep to MLflow.

    For trials that ran while MLflow could not be reached, and for jobs that nobody watched. Records
    that are there already are not sent again.

    Examples:
      harness collect quickstart --tracking-uri http://127.0.0.1:5000
    """
    results_folder = Results(results)
    recorded = read_recorded_sweep(results_folder, sweep)
    print_left_out(recorded)
    sweep_folder = results_folder.sweep_folder(recorded.sweep.name)
    # Safe to repeat: a delivery that was cut off is completed, and nothing is added twice.
    delivery = Tracker(results_folder, tracking_uri).deliver(sweep_folder)
    delivered = counted(delivery.delivered, "trial")
    print(f"{delivered} delivered, {delivery.already_delivered} were there already")


@app.command()
def verify(
    sweeps: Annotated[
        list[str],
        typer.Argument(
            metavar="[SWEEP]…",
            help="Sweeps that have run. Default: all of them.",
            autocompletion=complete_recorded_sweeps,
        ),
    ] = [],  # noqa: B006 - typer copies it
    results: ResultsOption = Path("results"),
) -> None:
    """Check that recorded numbers are as they were written.

    Other commands check the seal of each file that they read, and of records only the headers. This
    reads the columns of records too, computes each figure again that follows from them, and checks
    what commands leave next to them: checkpoints, exported models, parity, the results
    of check and find-lr. Without SWEEP, also measured peaks, certificates and baselines.

    A seal has no secret: it proves that nothing was damaged or edited by hand, and not who wrote
    it. Whoever can write to the folder can seal other numbers that agree with each other.

    Exit code 2 if anything is damaged, which is named.

    Examples:
      harness verify
      harness verify nightly
    """
    results_folder = Results(results)
    names = sweeps or recorded_sweep_names(results_folder)
    for name in sweeps:
        read_recorded_spec(results_folder, name)  # which says what there is if there is none
    parts = [housekeeping.verify_sweep(results_folder, name) for name in names]
    if not sweeps:
        parts.append(housekeeping.verify_machines(results_folder))
    problems = list(chain.from_iterable(parts))
    damaged = list(filter(None, problems))
    for problem in damaged:
        print(problem, file=sys.stderr)
    if damaged:
        raise BadInput(f"found {counted(len(damaged), 'damaged file')} of {len(problems)}")
    print(f"{counted(len(problems), 'file')} of {counted(len(names), 'sweep')} are whole")
    print("that is no proof against someone who can write to the folder: seals have no secret")


def _confirm_removal(*, yes: bool) -> None:
    """Ask whether to remove; raises BadInput where nobody can answer, HarnessError for a no."""
    _check_answerable(yes=yes)
    try:
        answer = "y" if yes else input("remove? [y/N] ")
    except EOFError:  # Ctrl-D
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise HarnessError("nothing was removed")


def _check_answerable(*, yes: bool) -> None:
    """Raise BadInput where there is nobody to ask whether to remove."""
    if not yes and not sys.stdin.isatty():
        raise BadInput("--yes: needed to remove files where nobody can be asked")
