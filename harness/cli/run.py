"""Defines the commands for a sweep on this machine: `harness plan`, `axes`, `workloads` and its `fetch`,
`check`, `find-lr`, `run`.

`run` leaves a folder for each trial, `runs/<sweep>/<trial>` in the results folder, where the `record.json` of
its last attempt is written when the trial has ended. The same command, run again, runs the trials that are not done.
`check` and `find-lr` leave what they have found for the report; the others only read.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.analysis import adaptive
from harness.api import running
from harness.api.planning import load_planned
from harness.api.planning import plan as plan_sweep
from harness.api.starting import start_from_example, start_from_script
from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    JsonOption,
    OnlyOption,
    ResultsOption,
    SetOption,
    SweepArgument,
    UriOption,
    print_left_out,
    print_next,
)
from harness.core.fetch import fetch_files
from harness.preflight.runs import examine_sweep, search_sweep
from harness.records.store import read_recorded_sweep
from harness.sweep.workload import named_declaration
from harness.view.catalog import axes_view, workload_view, workloads_view
from harness.view.console import TerminalConsole, print_json, show, spinner
from harness.view.machine import checks_view, rates_view
from harness.view.plan import plan_to_json, plan_view
from harness.view.sweep import sweep_view
from harness.view.value import Styled
from workloads.catalog import BUILT_IN

FAILED = 1  # exit code: a trial failed or was interrupted
INCONCLUSIVE = 3  # exit code: a trial stayed invalid, --until was not reached

app = typer.Typer()

# Both of `run` and of `harness show`, which print the same table of results.
WideOption = Annotated[
    bool,
    typer.Option(
        "--wide",
        help="Show all columns and remarks, cell ids included, however wide the table gets.",
    ),
]


@app.command()
def plan(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole plan as JSON, every default included.")
    ] = False,
    in_full: Annotated[
        bool, typer.Option("--all", help="List every cell, however many there are.")
    ] = False,
) -> None:
    """Show what a sweep will run, and for how long.

    Lists its cells and trials, the combinations that are left out with the reason, and the time it
    will take if earlier records tell. Of more than 200 cells it lists the first,
    unless --all. No trial is run, and MLflow is not loaded; torch is only for a
    workload of one's own.

    Examples:
      harness plan quickstart
      harness plan sweep.yaml --set precision=bf16 --json
      harness plan quickstart --only workload=mlp --only strategy!=fsdp2
    """

    planned = plan_sweep(
        sweep,
        settings=settings,
        data=data,
        only=only,
        cluster=cluster,
        results=results,
    )
    if as_json:
        print_json(plan_to_json(planned.sweep, planned.estimates))
    else:
        show(plan_view(planned.sweep, planned.estimates, in_full=in_full))


@app.command(
    context_settings={"ignore_unknown_options": True},
)
def init(
    script: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SCRIPT]", help="A training script with its own loop.", show_default=False
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENT]...", help="The script's own command line.", show_default=False
        ),
    ] = None,
) -> None:
    """Write a first sweep.

    For a script, it writes a sweep that runs the script as it is. Without one, it writes a small
    workload to change, workload.py, and sweep.yaml. No file is ever overwritten.

    Examples:
      harness init train.py
      harness init train.py --data DIR
      harness init
    """
    if script is None:
        written = start_from_example(Path())
    else:
        written = start_from_script(script, arguments or ())
    for path in written:
        print(f"wrote {path}")
    sweep = next(path for path in written if path.suffix == ".yaml")
    print_next(f"harness run {shlex.quote(str(sweep))}", "runs it on this machine")


@app.command()
def axes() -> None:
    """List the axes that a sweep can vary.

    Shows the values, the default, the effect and the requirements of each.

    Examples:
      harness axes
    """
    show(axes_view())


@app.command()
def workloads(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[WORKLOAD]",
            help="A workload as `uses` of a sweep file names it: a name, package.module:Class or"
            " file.py:Class.",
        ),
    ] = "",
) -> None:
    """List the workloads, with their options and data.

    For one workload, shows what each setting allows and its default. Every setting may be an axis,
    such as options.hidden.

    Examples:
      harness workloads
      harness workloads mlp
      harness workloads spiral.py:Spiral
    """
    if name:
        show(workload_view(name, named_declaration(name)))
    else:
        show(workloads_view(BUILT_IN))


@app.command()
def run(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run every trial again, finished ones included.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first trial that fails.")
    ] = False,
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="PERCENT",
            help="Add repeats until every cell's interval is ±PERCENT or narrower.",
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="DURATION",
            help="With --until: start no repeat that would end later than this, as in 30m.",
        ),
    ] = "",
    tolerate_load: Annotated[
        bool,
        typer.Option(
            "--tolerate-load",
            help="Measure although other programs use the cores: no trial is invalid for that, and"
            " intervals get wider.",
        ),
    ] = False,
    wide: WideOption = False,
) -> None:
    """Run a sweep on this machine, or resume it where it stopped.

    Trials run in fresh processes, block by block: a block has every cell once, with the same seed,
    so that cells can be compared in pairs. Finished trials are not repeated. Each trial leaves a
    record in the results folder, and MLflow shows it as a run. With --only, the other trials of the
    sweep stay as they are.

    Exit code 1 if a trial failed, 3 if a trial stayed invalid or --until was not reached.

    Examples:
      harness run quickstart
      harness run mnist --data DIR --set seeds=3 --set length.epochs=5
      harness run sweep.yaml --until 2% --budget 30m
      harness run sweep.yaml --only strategy=ddp --only precision!=fp16
    """

    finished = running.run(
        sweep,
        settings=settings,
        data=data,
        only=only,
        cluster=cluster,
        results=results,
        tracking_uri=tracking_uri,
        force=force,
        fail_fast=fail_fast,
        until=until,
        budget=budget,
        tolerate_load=tolerate_load,
    )
    results_folder = finished.results
    recorded = read_recorded_sweep(results_folder, finished.name)  # not the selected trials alone
    view = sweep_view(
        recorded.sweep,
        recorded.records,
        results_folder,
        trouble=finished.trouble,
        tracking_uri=tracking_uri,
        wide=wide,
    )
    show(view)
    print_left_out(recorded)
    goal = adaptive.goal(until, budget)
    measured = finished.recorded.sweep, finished.records
    if goal is not None:
        print(adaptive.describe_precision(goal, *measured))
    # A failure counts more than an inconclusive measurement, and so does a record that can't be read.
    statuses = {record.status for record in finished.records}
    if statuses & {"failed", "interrupted"} or recorded.unreadable:
        raise typer.Exit(FAILED)
    if "invalid" in statuses or not adaptive.reached(goal, *measured):
        raise typer.Exit(INCONCLUSIVE)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|fashion-mnist", help="The data set.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder for its files.")],
) -> None:
    """Download a data set from its public mirrors.

    Verifies every file by its known checksum, and tries the next mirror where one fails. Files that
    the folder has already are verified and kept; an interrupted download starts from the beginning.
    Use the folder with `harness run SWEEP --data DIR`.

    Examples:
      harness fetch fashion-mnist --to data/fashion
    """
    console = TerminalConsole()
    for file, is_there in fetch_files(name, to, progressbar=sys.stderr.isatty()):
        status = "already there" if is_there else "fetched and verified"
        size = file.stat().st_size
        console.say([Styled("✓", "better"), f" {file.name}: {status}, {size:,} bytes"])
    console.say(f"next  harness run mnist --data {shlex.quote(str(to))}", wraps=False)


@app.command()
def check(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    as_json: JsonOption = False,
) -> None:
    """Look for mistakes in a sweep's workloads.

    Takes seconds, before hours are spent on training. Checks what the harness relies on: the same samples at
    every rank and loader worker, a loss that is a mean, an evaluation without side effects, modes of
    modules, the optimizer; and that each model can overfit a few samples.

    Exit code 1 if there is a mistake.

    Examples:
      harness check quickstart
      harness check sweep.yaml --set workloads.mlp.options.lr=0.1
      harness check sweep.yaml --only workload=cnn --json
    """
    loaded, profile = load_planned(sweep, settings, data, cluster, only=only)
    with spinner("checking"):
        reports = examine_sweep(loaded, loaded.seeds[0], profile)
    show(checks_view(reports), as_json=as_json)
    if any(report.problems for report in reports):
        raise typer.Exit(1)


@app.command(
    "find-lr",
)
def find_lr(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=100, help="How many seeds, for their spread.")
    ] = 3,
    as_json: JsonOption = False,
) -> None:
    """Suggest a learning rate for each cell of a sweep.

    Trains each cell for 200 steps while its rate rises from 1e-7 to 1, until the loss diverges,
    under the cell's own strategy, precision and batch size. The suggestion is the rate at which the
    loss falls most, or more for a schedule that has its peak only for a while, with its range over seeds: a
    value of the axis lr.

    Examples:
      harness find-lr quickstart
      harness find-lr sweep.yaml --only workload=cnn
      harness find-lr sweep.yaml --set precision=bf16 --seeds 5 --json
    """
    loaded, profile = load_planned(sweep, settings, data, cluster, only=only)
    with spinner("training"):
        found = search_sweep(loaded, range(seeds), profile)
    show(rates_view(found), as_json=as_json)
