"""Defines the commands that plan and run sweeps on this machine: `harness plan`, `run`, `axes`,
`workloads`.

All but `run` only read. `run` leaves a folder for each trial, `runs/<sweep>/<trial>` in the
results folder, whose `record.json` is written when the trial has ended. The same command, run
again, runs the trials that have none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import (
    CellsOption,
    ClusterOption,
    DataOption,
    NoWaitOption,
    OnlyOption,
    ParallelOption,
    ResultsOption,
    RetryOption,
    SetOption,
    SweepArgument,
    UriOption,
    check_launcher,
    examples,
    load_sweep,
)
from harness.cli.completion import complete_workloads
from harness.cli.groups import DefaultCommand

if TYPE_CHECKING:
    from harness.records.record import Record

FAILED = 1  # exit code: a trial failed or was interrupted
INCONCLUSIVE = 3  # exit code: a trial stayed invalid, or --until was not reached

app = typer.Typer()
workloads_app = typer.Typer()

# Of `run` and of `harness show`, which print the same table of results.
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Also show the remarks on trials too short for a steady state.",
    ),
]


@app.command(
    epilog=examples(
        "harness plan quickstart",
        "harness plan sweep.yaml --set precision=bf16 --json",
        "harness plan quickstart --only 'workload=mlp and strategy!=fsdp2'",
    )
)
def plan(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = "",
    cells: CellsOption = [],  # noqa: B006
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
    will take if earlier records tell. Of more than 200 cells it shows how they are spread over the
    axes. Nothing is run, and neither torch nor MLflow is loaded.
    """
    from harness.core.paths import Results
    from harness.interface.planning import estimate_cells
    from harness.render.terminal import plan as view

    # The profile counts only for its limits, which `load_sweep` checks. Its launcher does not: a
    # sweep for Slurm is planned like any other.
    loaded, _ = load_sweep(sweep, settings, data, cluster, only=only, cells=cells)
    estimates = estimate_cells(loaded, Results(results))
    view.show(loaded, estimates, as_json=as_json, in_full=in_full)


@app.command(epilog=examples("harness axes"))
def axes() -> None:
    """List the axes that a sweep can vary.

    Shows the values, the default, the effect and the requirements of each.
    """
    from harness.render.terminal.axes import show

    show()


@workloads_app.command(
    cls=DefaultCommand,
    epilog=examples(
        "harness workloads",
        "harness workloads mlp",
        "harness workloads spiral.py:Spiral --json",
    ),
)
def workloads(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[WORKLOAD]",
            help="A workload as `uses` of a sweep file names it: a name, package.module:Class or"
            " file.py:Class.",
            autocompletion=complete_workloads,
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the workloads, with their options and data.

    For one workload, shows what each setting allows and its default. Every setting may be an axis,
    such as options.hidden.
    """
    from harness.render.terminal import workloads as view
    from harness.spec.workload import named_declaration
    from workloads.catalog import BUILT_IN, installed_names

    if name:
        declaration = named_declaration(name, Path.cwd())
        view.show_workload(view.describe(name, declaration), as_json=as_json)
        return
    described = [view.describe(name, declaration) for name, declaration in BUILT_IN.items()]
    view.show_all(described, installed_names(), as_json=as_json)


@app.command(
    epilog=examples(
        "harness run quickstart",
        "harness run mnist --data DIR --set seeds=0,1,2",
        "harness run sweep.yaml --until 2% --budget 30m",
        "harness run sweep.yaml --only 'strategy=ddp and precision!=fp16'",
        "harness run sweep.yaml --parallel auto",
    )
)
def run(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = "",
    cells: CellsOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    retry_failed: RetryOption = True,
    force: Annotated[
        bool, typer.Option("--force", help="Run every trial again, finished ones included.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first trial that fails.")
    ] = False,
    selftest_before: Annotated[
        bool,
        typer.Option("--selftest", help="Run `harness machine selftest` before the sweep."),
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
    parallel: ParallelOption = "",
    no_wait: NoWaitOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run a sweep on this machine, or resume it where it stopped.

    Trials run in fresh processes, block by block: a block has every cell once, with the same seed,
    so that cells can be compared in pairs. Finished trials are not repeated. Each trial leaves a
    record in the results folder, and MLflow shows it as a run. With --parallel, trials run side by
    side, each on cores or GPUs of its own. With --only or --cell, the other trials of the sweep
    stay as they are.

    Exit code 1 if a trial failed, 3 if a trial stayed invalid or --until was not reached.
    """
    from harness.analysis import adaptive
    from harness.core.paths import Results
    from harness.interface.reporting import write_roofline
    from harness.interface.running import run_sweep, trials_to_redo
    from harness.records.store import read_recorded_sweep
    from harness.render.results import show_results
    from harness.render.terminal.run import RunView, unreadable_lines
    from harness.spec.cluster import with_parallel

    # All that can be refused is refused before the first trial: options, sweep and profile.
    goal = adaptive.goal(until, budget)
    loaded, profile = load_sweep(sweep, settings, data, cluster, only=only, cells=cells)
    check_launcher(cluster, profile, "torchrun", " (or harness submit)")
    profile = with_parallel(profile, parallel)
    results_folder = Results(results)
    if selftest_before:
        from harness.cli.machine import run_selftest

        run_selftest("1,2,4", profile, results_folder)
    finished = run_sweep(
        loaded,
        profile,
        results_folder,
        RunView(loaded, results_folder),
        tracking_uri,
        redo=trials_to_redo(force=force, retry_failed=retry_failed),
        fail_fast=fail_fast,
        wait=not no_wait,
        goal=goal,
    )
    recorded = read_recorded_sweep(results_folder, finished.sweep.name)
    write_roofline(finished.sweep.whole(), recorded.records, results_folder)
    show_results(
        finished.sweep.whole(),
        recorded.records,
        results_folder,
        trouble=finished.trouble,
        verbose=verbose,
    )
    for line in unreadable_lines(recorded.unreadable):
        print(line, file=sys.stderr)
    if goal is not None:
        print(adaptive.describe_precision(goal, finished.sweep, finished.records))
    # True without a goal.
    goal_reached = adaptive.reached(goal, finished.sweep, finished.records)
    is_complete = not recorded.unreadable and not finished.disk_failed
    _exit(finished.records, goal_reached=goal_reached, is_complete=is_complete)


def _exit(records: Sequence[Record], *, goal_reached: bool, is_complete: bool) -> None:
    """End the command with the exit code that its trials' statuses call for.

    A failure counts more than an inconclusive measurement, and so do a trial whose record can't be
    read, without which the sweep is not complete, and a disk that is full. Returns where all is
    well.
    """
    statuses = {record.status for record in records}
    if statuses & {"failed", "interrupted"} or not is_complete:
        raise typer.Exit(FAILED)
    if "invalid" in statuses or not goal_reached:
        raise typer.Exit(INCONCLUSIVE)
