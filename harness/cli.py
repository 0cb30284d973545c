"""The command line: thin, and quick to start because each command imports what it needs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

import harness
from harness.errors import BadInput, HarnessError, one_line

INCONCLUSIVE = 3
INTERRUPTED = 130

app = typer.Typer(
    epilog="Begin with: harness run quickstart",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets for the workloads.", rich_markup_mode=None)
app.add_typer(data_app, name="data")


def _sweeps(incomplete: str) -> list[str]:
    from harness.spec import ready_sweeps

    files = sorted(str(path) for path in Path().glob(f"{incomplete}*.y*ml"))
    return [name for name in ready_sweeps() if name.startswith(incomplete)] + files


def _profiles(incomplete: str) -> list[str]:
    from harness.cluster import profiles

    return [name for name in profiles() if name.startswith(incomplete)]


def _recorded(incomplete: str) -> list[str]:
    return [path.parent.name for path in Path("results/runs").glob(f"{incomplete}*/sweep.json")]


def _sets(incomplete: str) -> list[str]:
    from harness.completion import complete_set

    return complete_set(incomplete)


SweepArgument = Annotated[
    str, typer.Argument(metavar="SWEEP", help="A sweep file, or the name of a ready one.", autocompletion=_sweeps)
]
NameArgument = Annotated[
    str, typer.Argument(metavar="SWEEP", help="The name of a sweep that has run.", autocompletion=_recorded)
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set an axis (execution=eager,compile) or any other key (length.epochs=3). Repeatable.",
        autocompletion=_sets,
    ),
]
DataOption = Annotated[
    list[str],
    typer.Option(
        "--data", metavar="[LABEL=]PATH", help="Where the data lies, for all workloads that read files or for one."
    ),
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", metavar="PROFILE", help="Where to run.", autocompletion=_profiles)
]
ResultsOption = Annotated[
    Path, typer.Option("--results", envvar="HARNESS_RESULTS", help="The folder for records and MLflow's database.")
]
UriOption = Annotated[
    str | None,
    typer.Option("--tracking-uri", envvar="MLFLOW_TRACKING_URI", help="An MLflow server instead of results/mlflow.db."),
]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"harness {harness.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Benchmark and reproduce distributed training: sweeps over workloads and settings, measured and recorded."""


@app.command(epilog="Examples:  harness plan quickstart   |   harness plan sweep.yaml --set precision=bf16 --json")
def plan(
    sweep: SweepArgument,
    sets: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Everything, with every default, for machines.")] = False,
) -> None:
    """Show the cells and trials of a sweep, what is left out and why, and how long it will take."""
    from harness.paths import Results
    from harness.view import plan as view

    asked = _load(sweep, sets, data, cluster)[0]
    view.show(asked, Results(results), as_json=as_json)


@app.command(epilog="Example:  harness axes")
def axes() -> None:
    """Show every axis of the matrix: its values, its default, what it does and what it needs."""
    from harness.view.axes import show

    show()


@app.command(epilog="Examples:  harness run quickstart   |   harness run mnist --data DIR --set seeds=0,1,2")
def run(
    sweep: SweepArgument,
    sets: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed/--skip-failed", help="Whether trials that failed before run again.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Run every trial again, finished ones too.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first trial that fails.")] = False,
    check: Annotated[
        bool, typer.Option("--selftest", help="First see that known times are measured right, as `harness selftest`.")
    ] = False,
) -> None:
    """Run a sweep on this machine; run it again to go on where it stopped."""
    from harness import sweep as runner
    from harness.paths import Results
    from harness.view.run import RunView, conclude

    asked, profile = _load(sweep, sets, data, cluster)
    if check:
        _selftest("1,2,4", profile, results)
    place = Results(results)
    view = RunView(asked, place, tracking_uri)
    redo: runner.Redo = "all" if force else "failed" if retry_failed else "missing"
    with view:
        records = runner.run(asked, profile, place.sweep(asked.name), view, redo=redo, fail_fast=fail_fast)
        view.deliver(records)
    conclude(asked, records, place, trouble=view.trouble)
    statuses = {record.status for record in records}
    if "failed" in statuses:
        raise typer.Exit(1)
    if "invalid" in statuses:
        raise typer.Exit(INCONCLUSIVE)


@app.command(epilog="Example:  harness selftest --ranks 1,2")
def selftest(
    ranks: Annotated[str, typer.Option("--ranks", metavar="N[,N…]", help="How many ranks, one trial each.")] = "1,2,4",
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
) -> None:
    """Measure steps, data waits and communication of known length: all must come back within 1%."""
    _selftest(ranks, _profile(cluster), results)


@app.command(epilog="Examples:  harness peak   |   harness peak --ranks 4 --quick")
def peak(
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="Ranks that all-reduce; else one per GPU, or two on a CPU.")
    ] = None,
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="Few sizes and repeats: rough figures in seconds.")] = False,
) -> None:
    """Measure what this machine can do: products, copies and all-reduces, for MFU and the roofline (a minute)."""
    from harness import cluster as clusters
    from harness.paths import Results
    from harness.view import peak as view

    view.run(Results(results), clusters.load(cluster), ranks=ranks, quick=quick)


@app.command(epilog="Examples:  harness show mnist --phases   |   harness show mnist --across workers")
def show(
    sweep: NameArgument,
    results: ResultsOption = Path("results"),
    phases: Annotated[
        bool, typer.Option("--phases", help="Where the time of a step goes: data, forward, communication, …")
    ] = False,
    across: Annotated[
        str | None, typer.Option("--across", metavar="AXIS[,AXIS…]", help="Throughput with these axes across.")
    ] = None,
) -> None:
    """Show the results of a sweep again."""
    from harness.paths import Results
    from harness.sweep import recorded
    from harness.view.run import conclude

    place = Results(results)
    asked, records = recorded(place, sweep)
    if phases:
        from harness.view.phases import show_phases

        return show_phases(asked, records)
    if across:
        from harness.view.pivot import show_pivot

        return show_pivot(asked, records, across.split(","))
    conclude(asked, records, place)


@app.command(epilog="Example:  harness sync quickstart --tracking-uri http://127.0.0.1:5000")
def sync(sweep: NameArgument, results: ResultsOption = Path("results"), tracking_uri: UriOption = None) -> None:
    """Deliver the records of a sweep to MLflow; what is there already is left alone."""
    from harness.paths import Results
    from harness.sweep import recorded
    from harness.tracking import Tracker

    place = Results(results)
    asked, records = recorded(place, sweep)
    delivery = Tracker(place, tracking_uri).deliver(place.sweep(asked.name), records)
    print(f"{delivery.delivered} trials delivered, {delivery.already} were there already")


@app.command(epilog="Example:  harness ui --port 5001")
def ui(
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="The port on 127.0.0.1; 5000 or the next free one.")
    ] = None,
) -> None:
    """Serve the MLflow UI on this machine and print where each sweep's page is; Ctrl-C ends it."""
    from harness.paths import Results
    from harness.ui import serve

    serve(Results(results), tracking_uri, port=port)


@data_app.command(epilog="Example:  harness data fetch fashion-mnist --to data/fashion")
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|fashion-mnist")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder to put the files in.")],
) -> None:
    """Download a data set from its public mirrors, checked against known checksums; resumes."""
    from harness.fetch import fetch_with_progress

    fetch_with_progress(name, to)


def _selftest(ranks: str, profile: Any, results: Path) -> None:
    from harness.paths import Results
    from harness.view.selftest import run

    counts = [int(count) for count in ranks.split(",") if count.strip().isdecimal()]
    if len(counts) != len(ranks.split(",")):
        raise BadInput(f"--ranks: found {ranks!r}; allowed: numbers of ranks, as in 1,2,4")
    if not run(Results(results), profile, counts):
        raise typer.Exit(1)


def _profile(cluster: str) -> Any:
    from harness import cluster as clusters

    return clusters.load(cluster)


def _load(sweep: str, sets: Sequence[str], data: Sequence[str], cluster: str) -> tuple[Any, Any]:
    """The sweep and the profile that it runs on, all checked."""
    from harness import cluster as clusters
    from harness import spec

    profile = clusters.load(cluster)
    asked = spec.load(spec.find(sweep), sets, data)
    clusters.check_fits(profile, {f"{asked.source}: {cell.label}": cell.axes for cell in asked.cells})
    return asked, profile


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 all well, 1 a trial failed, 2 bad input, 3 a trial stayed invalid, 130 interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given or ["--help"], prog_name="harness", standalone_mode=False)
    except HarnessError as error:
        code = _fail(str(error), error.exit_code)
    except TyperException as error:
        code = _fail(f"{error.format_message()} (see {_command(error)} --help)", BadInput.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    if code == INTERRUPTED:  # typer has turned the interrupt into this
        _fail("interrupted; run the same command again to go on", code)
    sys.exit(code)


def _command(error: Any) -> str:
    """The command that an error of the command line is about."""
    return "harness" if getattr(error, "ctx", None) is None else str(error.ctx.command_path)


def _fail(message: str, code: int) -> int:
    print(f"harness: {one_line(message, 1000)}", file=sys.stderr)
    return code


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
