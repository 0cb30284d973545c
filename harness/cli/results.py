"""Defines the commands on sweeps that have run: `harness show`, `compare`, `report`, `ui`, `collect`, `verify`
and `prune`.

They read the records of trials and train nothing. Only `ui`, `collect` and a result that is named by the
id of an MLflow run need MLflow. Nothing is removed that was not named before, and nothing of a sweep that
a process or a job is working on.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import api
from harness.analysis.selection import select
from harness.analysis.sweep_result import effects
from harness.cli.arguments import (
    AccuracyMarginOption,
    JsonOption,
    MinEffectOption,
    NameArgument,
    OnlyOption,
    UriOption,
    complete_recorded_sweeps,
    print_left_out,
)
from harness.cli.main import RESULTS
from harness.core.errors import BadInput, HarnessError, parse_percentage
from harness.core.paths import write_atomically
from harness.core.text import counted
from harness.housekeeping import list_sweeps, removals, remove, verify_machines, verify_sweep
from harness.records.store import (
    read_recorded_spec,
    read_recorded_sweep,
    recorded_folder,
    recorded_sweep_names,
    select_recorded,
)
from harness.tracking import Tracker
from harness.tracking.ui import serve
from harness.view import console
from harness.view.compare import comparison_view, effects_view
from harness.view.report import render
from harness.view.status import removals_view, sweeps_view
from harness.view.sweep import sweep_view

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer()

# How pandas writes a table, by the ending of the file's name.
WRITERS: Mapping[str, Callable[["pd.DataFrame", Path], object]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".json": lambda frame, path: frame.to_json(
        path, orient="records", date_format="iso", indent=1, double_precision=15
    ),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
}


@app.command()
def show(
    sweep: Annotated[
        str,
        typer.Argument(
            metavar="[SWEEP]",
            help="A sweep that has run. Default: a list of all.",
            autocompletion=complete_recorded_sweeps,
        ),
    ] = "",
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the trials as a table instead.")
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="Show all columns and remarks, cell ids included.")
    ] = False,
) -> None:
    """Show the results of a sweep that has run.

    Prints which cells are fastest, a table of all cells with their verdicts, and what to know before
    believing it. It reads records only, so it also works while the sweep runs and without MLflow.
    Without SWEEP, lists the sweeps that have run.

    With --output FILE.csv, FILE.json or FILE.parquet, writes a row for each trial: the table of
    harness.load(SWEEP).trials in Python.

    Examples:
      harness show mnist
      harness show mnist --only precision=bf16,fp16
      harness show mnist --output trials.parquet
    """
    results = RESULTS.get()
    if output is not None and output.suffix not in WRITERS:
        endings = ", ".join(WRITERS)
        raise BadInput(f"--output: found {output}; allowed: a name that ends in {endings}")
    if not sweep:
        console.show(sweeps_view(list_sweeps(results)))
        return
    recorded = select_recorded(read_recorded_sweep(results, sweep), only)
    print_left_out(recorded)
    if output is not None:
        data = api.SweepData(results=results, recorded=recorded)
        write_table = WRITERS[output.suffix]
        write_table(data.trials, output)
        print(output)
        return
    console.show(sweep_view(recorded, results, wide=wide))


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULT",
            help="Sweeps, cells, trials, baselines or paths."
            " All are compared with the first; with --by or --effects give one.",
            autocompletion=complete_recorded_sweeps,
        ),
    ],
    across: Annotated[
        list[str],
        typer.Option(metavar="NAME[,…]", help="Allow to differ: hardware, data, an axis."),
    ] = [],  # noqa: B006 - typer copies it
    by: Annotated[
        str, typer.Option(metavar="AXIS[,…]", help="Compare the values of axes within one sweep.")
    ] = "",
    min_effect: MinEffectOption = "1%",
    accuracy_margin: AccuracyMarginOption = 0.01,
    to_reach: Annotated[
        float | None, typer.Option(help="Compare the steps to this target metric, too.")
    ] = None,
    as_effects: Annotated[
        bool, typer.Option("--effects", help="Estimate the effects of axes and of pairs of them.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Compare results, with intervals and verdicts.

    A verdict is faster, slower, same or inconclusive: a change must be significant over all cells
    together and at least --min-effect large; sameness must be shown too. Results of other hardware,
    data or settings are refused unless --across or --by asks for that difference.

    Exit code 1 if something is worse, 3 if a comparison is inconclusive.

    Examples:
      harness compare baseline nightly
      harness compare nightly --by precision
      harness compare nightly --by strategy --to-reach 0.95
      harness compare nightly --effects
    """
    # All options are checked before the first file is read: a mistake in one is reported at once.
    min_effect_fraction = parse_percentage(min_effect, "--min-effect")
    if as_effects:  # an estimate without a verdict, so its exit code is always 0
        if by or len(names) > 1:
            raise BadInput("--effects: found several results or --by; allowed: one result")
        (side,) = select(RESULTS.get(), names)
        estimated = effects(side)  # raises BadInput for too few trials to tell effects from noise
        return console.show(effects_view(estimated), as_json=as_json)
    verdicts = api.compare(
        *names,
        by=by,
        across=",".join(across),
        min_effect=min_effect_fraction,
        accuracy_margin=accuracy_margin,
        to_reach=to_reach,
        results=RESULTS.get().path,
    )
    view = comparison_view(verdicts, verdicts.a, verdicts.b)
    return console.show(view, as_json=as_json)


@app.command()
def report(
    sweep: NameArgument,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Default: next to the records.")
    ] = None,
) -> None:
    """Write a sweep's report as one HTML file.

    The file needs no network and no other file, so it can be mailed or kept as an artifact.

    Examples:
      harness report matrix
    """
    results = RESULTS.get()
    recorded = read_recorded_sweep(results, sweep)
    print_left_out(recorded)
    sweep_folder = results.sweep_folder(recorded.sweep.name)
    path = output or sweep_folder.report_path
    write_atomically(path, render(results, recorded))
    print(path)  # alone on stdout, for scripts that mail or upload the file


@app.command()
def ui(
    tracking_uri: UriOption = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Default: 5000, or another free one.")
    ] = None,
) -> None:
    """Serve the MLflow UI on this machine.

    Prints the address of each sweep's page, which opens on its cells side by side. The server
    listens on the loopback interface only. Ctrl-C stops it.

    Examples:
      harness ui --port 5001
    """
    serve(RESULTS.get(), tracking_uri, port=port)


@app.command()
def collect(sweep: NameArgument, tracking_uri: UriOption = None) -> None:
    """Deliver the records of a sweep to MLflow.

    For trials that ran while MLflow could not be reached, and for jobs that nobody watched. Records
    that are there already are not sent again.

    Examples:
      harness collect quickstart --tracking-uri http://127.0.0.1:5000
    """
    results = RESULTS.get()
    recorded = read_recorded_sweep(results, sweep)
    print_left_out(recorded)
    sweep_folder = results.sweep_folder(recorded.sweep.name)
    tracker = Tracker(results, tracking_uri)
    # Safe to repeat: a delivery that was cut off is completed, and nothing is added twice.
    delivery = tracker.deliver(sweep_folder)
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
) -> None:
    """Check that recorded numbers are as they were written.

    Other commands check the seal of each file that they read, and of records only the headers. This
    reads the columns of records too, computes each figure again that follows from them, and checks
    what commands leave next to them: checkpoints, exported models, parity. Without SWEEP, also measured
    peaks, certificates and baselines.

    A seal has no secret: it proves that nothing was damaged or edited by hand, and not who wrote
    it. Whoever can write to the folder can seal other numbers that agree with each other.

    Exit code 2 if anything is damaged, which is named.

    Examples:
      harness verify
      harness verify nightly
    """
    results = RESULTS.get()
    names = sweeps or recorded_sweep_names(results)
    for name in sweeps:
        read_recorded_spec(results, name)  # which says what there is if there is none
    files: list[str | None] = []  # what is wrong with each
    for name in names:
        files += verify_sweep(results, name)
    if not sweeps:
        files += verify_machines(results)
    problems = list(filter(None, files))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise BadInput(f"found {counted(len(problems), 'damaged file')} of {len(files)}")
    print(f"{counted(len(files), 'file')} of {counted(len(names), 'sweep')} are whole")


@app.command()
def prune(
    sweep: NameArgument,
    whole: Annotated[bool, typer.Option("--whole", help="Remove the sweep as a whole.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Failed or invalid trials, too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove trials of a recorded sweep, or all of it.

    Without further options these are trials of none of its cells, such as those of earlier code,
    which no command shows. Each is named, and removed only if somebody says so. MLflow keeps its runs.

    Examples:
      harness prune nightly
      harness prune nightly --failed --yes
      harness prune scratch --whole
    """
    results = RESULTS.get()
    statuses = ("failed", "invalid") if failed else ()
    found = removals(results, sweep, whole=whole, statuses=statuses)
    console.show(removals_view(found))
    if not found:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput("--yes: needed to remove files where nobody can be asked")
        if not typer.confirm("remove?"):
            raise HarnessError("nothing was removed")
    remove(recorded_folder(results, sweep), found)
