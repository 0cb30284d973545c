"""The commands for sweeps that run as jobs, and for their records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    NameArgument,
    ResultsOption,
    SetOption,
    SweepArgument,
    UriOption,
    check_launcher,
    load_sweep,
    profiles,
    recorded,
    trials,
)
from harness.core.errors import BadInput


def register(app: typer.Typer) -> None:
    """Make them commands of `harness`."""
    examples: dict[Callable[..., None], str] = {
        submit: "Example:  harness submit quickstart --cluster slurm --dry-run",
        doctor: "\b\nExamples:\n  harness doctor\n  harness doctor --cluster slurm --json",
        status: "\b\nExamples:\n  harness status\n  harness status quickstart --watch",
        cancel: "Example:  harness cancel quickstart",
        logs: "Example:  harness logs mlp-45dbdb38d5-s0-r0 --rank 1 --follow",
        collect: "Example:  harness collect quickstart --tracking-uri http://127.0.0.1:5000",
    }
    for command, example in examples.items():
        app.command(epilog=example)(command)


def submit(
    sweep: SweepArgument,
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            metavar="PROFILE",
            help="The cluster: a profile for Slurm.",
            autocompletion=profiles,
        ),
    ],
    sets: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    results: ResultsOption = Path("results"),
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed/--skip-failed", help="Whether trials that failed before run again."
        ),
    ] = True,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the jobs and the batch scripts, and submit nothing."),
    ] = False,
) -> None:
    """Hand a sweep to Slurm as jobs. Submit it again to have what is missing run, and nothing twice."""
    from harness.core.paths import Results
    from harness.render.terminal import submit as view

    asked, profile = load_sweep(sweep, sets, data, cluster)
    check_launcher(cluster, profile, "slurm")
    view.run(
        asked,
        profile,
        Results(results),
        redo="failed" if retry_failed else "missing",
        dry_run=dry_run,
    )


def doctor(
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    patience: Annotated[
        float,
        typer.Option(
            "--patience", metavar="SECONDS", help="How long its job may wait in Slurm's queue."
        ),
    ] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="The list for machines.")] = False,
) -> None:
    """See whether trials can run where a profile says. On a cluster by way of a tiny job on all its nodes."""
    from harness.core.paths import Results
    from harness.render.terminal import doctor as view
    from harness.spec import cluster as clusters

    profile = clusters.load_profile(cluster)
    if not view.run(cluster, profile, Results(results), patience=patience, as_json=as_json):
        raise typer.Exit(1)


def status(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="SWEEP", help="The name of a sweep; else all.", autocompletion=recorded
        ),
    ] = None,
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Look until nothing is at work any more; bring jobs' records to MLflow."
        ),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every trial of a large sweep too, not its cells.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Every trial, for machines.")] = False,
) -> None:
    """Show how far every trial of a sweep is. Wherever it runs; exit code 1 if one has failed or was lost."""
    from harness.core.paths import Results
    from harness.launch.sweep import read_recorded_spec, recorded_sweep_names
    from harness.render.terminal import status as view

    place = Results(results)
    names = [sweep] if sweep is not None else recorded_sweep_names(place)
    asked = [read_recorded_spec(place, name) for name in names]
    if sweep is None and (as_json or every):
        raise BadInput("status: found no SWEEP; allowed: one, with --json or --all")
    if watch:
        found = view.watch(asked, place, tracking_uri)
    elif sweep is None:
        found = view.summary(asked, place)
    else:
        found = [view.show(asked[0], place, as_json=as_json, every=every)]
    if {trial.state for one in found for trial in one.trials} & {"failed", "lost"}:
        raise typer.Exit(1)


def cancel(sweep: NameArgument, results: ResultsOption = Path("results")) -> None:
    """Cancel the jobs of a sweep; submit it again to go on."""
    from harness.core.paths import Results
    from harness.launch.sweep import read_recorded_spec
    from harness.render.format import counted
    from harness.slurm.cancel import cancel as end

    place = Results(results)
    jobs = end(place.sweep_folder(read_recorded_spec(place, sweep).name))
    print(f"{counted(len(jobs), 'job')} cancelled" + (f": {', '.join(jobs)}" if jobs else ""))


def logs(
    trial: Annotated[
        str,
        typer.Argument(
            metavar="TRIAL",
            help="A trial's id, as `harness status` shows it.",
            autocompletion=trials,
        ),
    ],
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=0, metavar="N", help="The rank; else what started the ranks."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="SWEEP",
            help="Its sweep, where several have it.",
            autocompletion=recorded,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until the trial has ended.")
    ] = False,
    results: ResultsOption = Path("results"),
) -> None:
    """Print what a rank of a trial has written."""
    from harness.core.paths import Results
    from harness.render.terminal import logs as view

    view.show(view.find(Results(results), trial, sweep), rank, follow=follow)


def collect(
    sweep: NameArgument, results: ResultsOption = Path("results"), tracking_uri: UriOption = None
) -> None:
    """Deliver the records of a sweep to MLflow. What is there already is left alone."""
    from harness.core.paths import Results
    from harness.launch.sweep import read_recorded_sweep
    from harness.render.format import counted
    from harness.tracking import Tracker

    place = Results(results)
    asked, records = read_recorded_sweep(place, sweep)
    delivery = Tracker(place, tracking_uri).deliver(place.sweep_folder(asked.name), records)
    print(
        f"{counted(delivery.delivered, 'trial')} delivered, {delivery.already_delivered} were there already"
    )
