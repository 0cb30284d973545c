"""Defines the commands for a sweep on this machine: `harness plan`, `axes`, `workloads`, `run`, `check`, `find-lr`.

`run` leaves a folder for each trial, `runs/<sweep>/<trial>` in the results folder, where the `record.json` of
its last attempt is written when the trial has ended. The same command, run again, runs the trials that are not done.
The others only read.
"""

from typing import Annotated

import typer

from harness import api
from harness.analysis import adaptive
from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    JsonOption,
    OnlyOption,
    SetOption,
    SweepArgument,
    UriOption,
    print_left_out,
)
from harness.cli.main import RESULTS
from harness.preflight.runs import examine_sweep, search_sweep
from harness.records.store import read_recorded_sweep
from harness.sweep.workload import named_declaration
from harness.view.console import print_json, show, spinner
from harness.view.machine import checks_view, rates_view
from harness.view.plan import axes_view, plan_to_json, plan_view, workload_view, workloads_view
from harness.view.sweep import sweep_view
from workloads.catalog import BUILT_IN

FAILED = 1  # exit code: a trial failed or was interrupted
INCONCLUSIVE = 3  # exit code: a trial stayed invalid, --until was not reached

app = typer.Typer()


@app.command()
def plan(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    as_json: JsonOption = False,
) -> None:
    """Show what a sweep will run, and for how long.

    Lists its cells and trials, the combinations that are left out with the reason, and the time it
    will take if earlier records tell. Of more than 200 cells it lists the first; --json has all. No
    trial is run, and MLflow is not loaded; torch is only for a workload of one's own.

    Examples:
      harness plan quickstart
      harness plan sweep.yaml --set precision=bf16 --json
      harness plan quickstart --only workload=mlp --only strategy!=fsdp2
    """
    planned = api.plan(
        sweep,
        settings=settings,
        data=data,
        only=only,
        cluster=cluster,
        results=RESULTS.get().path,
    )
    if as_json:
        print_json(plan_to_json(planned.sweep, planned.estimates))
    else:
        show(plan_view(planned.sweep, planned.estimates))


@app.command()
def axes() -> None:
    """List the axes that a sweep can vary.

    Shows the values, the default and the requirements of each.

    Examples:
      harness axes
    """
    show(axes_view())


@app.command()
def workloads(
    name: Annotated[
        str, typer.Argument(metavar="[WORKLOAD]", help="As `uses` of a sweep file names it.")
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
    tracking_uri: UriOption = None,
    force: Annotated[bool, typer.Option("--force", help="Run finished trials again, too.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at a failure.")] = False,
    until: Annotated[
        str, typer.Option(metavar="PERCENT", help="Add repeats until intervals are this narrow.")
    ] = "",
    budget: Annotated[
        str, typer.Option(metavar="DURATION", help="For --until: add none that would end later.")
    ] = "",
    tolerate_load: Annotated[
        bool, typer.Option("--tolerate-load", help="Measure although other programs use the cores.")
    ] = False,
) -> int:
    """Run a sweep on this machine, or resume it where it stopped.

    Trials run in fresh processes, block by block: a block has every cell once, with the same seed,
    so that cells can be compared in pairs. Finished trials are not repeated. Each trial leaves a
    record in the results folder, and MLflow shows it as a run. With --only, the other trials of the
    sweep stay as they are. Trials that had to share cores with other programs are invalid unless
    --tolerate-load, with which intervals get wider.

    Exit code 1 if a trial failed, 3 if a trial stayed invalid or --until was not reached.

    Examples:
      harness run quickstart
      harness run mnist --data DIR --set seeds=3 --set length.epochs=5
      harness run sweep.yaml --until 2% --budget 30m
      harness run sweep.yaml --only strategy=ddp --only precision!=fp16
    """
    finished = api.run(
        sweep,
        settings=settings,
        data=data,
        only=only,
        cluster=cluster,
        results=RESULTS.get().path,
        tracking_uri=tracking_uri,
        force=force,
        fail_fast=fail_fast,
        until=until,
        budget=budget,
        tolerate_load=tolerate_load,
    )
    results = RESULTS.get()
    recorded = read_recorded_sweep(results, finished.name)  # not the selected trials alone
    trouble = finished.trouble
    show(sweep_view(recorded, results, trouble=trouble, tracking_uri=tracking_uri))
    print_left_out(recorded)
    goal = adaptive.goal(until, budget)
    selected = finished.recorded.sweep
    if goal is not None:
        print(adaptive.describe_precision(goal, selected, finished.records))
    # A failure counts more than an inconclusive measurement, and so does a record that can't be read.
    statuses = {record.status for record in finished.records}
    if statuses & {"failed", "interrupted"} or recorded.unreadable:
        return FAILED
    if "invalid" in statuses or not adaptive.reached(goal, selected, finished.records):
        return INCONCLUSIVE
    return 0


@app.command()
def check(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    as_json: JsonOption = False,
) -> int:
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
    loaded, profile = api.load_planned(sweep, settings, data, cluster, only=only)
    with spinner("checking"):
        reports = examine_sweep(loaded, profile)
    return show(checks_view(reports), as_json=as_json)


@app.command("find-lr")
def find_lr(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many, for their spread.")] = 3,
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
    loaded, profile = api.load_planned(sweep, settings, data, cluster, only=only)
    with spinner("training"):
        found = search_sweep(loaded, range(seeds), profile)
    show(rates_view(found), as_json=as_json)
