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
from harness.cli import compare, gate, jobs
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
)
from harness.core.errors import BadInput, HarnessError, one_line

INCONCLUSIVE = 3
INTERRUPTED = 130

app = typer.Typer(
    epilog="Begin with: harness run quickstart",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Fetch data sets for the workloads.", rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(compare.baseline_app, name="baseline")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"harness {harness.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Benchmark and reproduce distributed training: sweeps over workloads and settings, measured and recorded."""


@app.command(
    epilog="\b\nExamples:\n  harness plan quickstart\n  harness plan sweep.yaml --set precision=bf16 --json"
)
def plan(
    sweep: SweepArgument,
    sets: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Everything, with every default, for machines.")
    ] = False,
) -> None:
    """Show what a sweep will run and how long it will take. Its cells and trials, and what is left out and why."""
    from harness.core.paths import Results
    from harness.render.terminal import plan as view

    asked = load_sweep(sweep, sets, data, cluster)[0]
    view.show(asked, Results(results), as_json=as_json)


@app.command(epilog="Example:  harness axes")
def axes() -> None:
    """Show every axis of the matrix. Its values, its default, what it does and what it needs."""
    from harness.render.terminal.axes import show

    show()


@app.command(
    epilog="\b\nExamples:\n  harness run quickstart\n  harness run mnist --data DIR --set seeds=0,1,2"
)
def run(
    sweep: SweepArgument,
    sets: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed/--skip-failed", help="Whether trials that failed before run again."
        ),
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Run every trial again, finished ones too.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first trial that fails.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--selftest",
            help="First see that known times are measured right, as `harness selftest`.",
        ),
    ] = False,
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="PERCENT",
            help="Repeat until each cell's interval is ±PERCENT or narrower.",
        ),
    ] = "",
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            min=0.0,
            metavar="MINUTES",
            help="With --until: begin no repeat that would end later.",
        ),
    ] = None,
) -> None:
    """Run a sweep on this machine. Run it again to go on where it stopped."""
    from harness.analysis import adaptive
    from harness.core.paths import Results
    from harness.launch import sweep as runner
    from harness.render.terminal.run import RunView, show_results
    from harness.slurm.queue import refuse_live_jobs

    goal = adaptive.goal(until, budget)
    asked, profile = load_sweep(sweep, sets, data, cluster)
    check_launcher(cluster, profile, "torchrun", " (or harness submit)")
    if check:
        _selftest("1,2,4", profile, results)
    place = Results(results)
    view = RunView(asked, place, tracking_uri)
    redo: runner.Redo = "all" if force else "failed" if retry_failed else "missing"

    def once(sweep: Any, more: bool) -> Any:
        again: runner.Redo = "missing" if more else redo
        return runner.run(
            sweep,
            profile,
            place.sweep_folder(sweep.name),
            view,
            redo=again,
            fail_fast=fail_fast,
            check=refuse_live_jobs,
        )

    with view:
        asked, records = adaptive.run_until(goal, asked, once)
        view.deliver(records)
    show_results(asked, records, place, trouble=view.trouble)
    if goal:
        print(adaptive.describe_precision(goal, asked, records))
    _exit(
        {record.status for record in records}
        | (set() if adaptive.reached(goal, asked, records) else {"invalid"})
    )


def _exit(statuses: set[str]) -> None:
    if statuses & {"failed", "interrupted"}:
        raise typer.Exit(1)
    if "invalid" in statuses:
        raise typer.Exit(INCONCLUSIVE)


@app.command(epilog="Example:  harness selftest --ranks 1,2")
def selftest(
    ranks: Annotated[
        str, typer.Option("--ranks", metavar="N[,N…]", help="How many ranks, one trial each.")
    ] = "1,2,4",
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
) -> None:
    """Check that known times are measured right. Steps, data waits and communication must come back within 1%.

    A trial that is off runs again, up to four times, as another program may have disturbed it.
    """
    _selftest(ranks, _profile(cluster), results)


@app.command(epilog="\b\nExamples:\n  harness peak\n  harness peak --ranks 4 --quick")
def peak(
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=1,
            metavar="N",
            help="Ranks that all-reduce; else one per GPU, or two on a CPU.",
        ),
    ] = None,
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few sizes and repeats: rough figures in seconds.")
    ] = False,
) -> None:
    """Measure the machine, for MFU and the roofline. Products, copies and all-reduces; takes a minute."""
    from harness.core.paths import Results
    from harness.render.terminal import peak as view

    view.run(Results(results), _profile(cluster), ranks=ranks, quick=quick)


@app.command(
    epilog="\b\nExamples:\n  harness show mnist --phases\n  harness show mnist --across workers"
)
def show(
    sweep: NameArgument,
    results: ResultsOption = Path("results"),
    phases: Annotated[
        bool,
        typer.Option(
            "--phases", help="Where the time of a step goes: data, forward, communication, …"
        ),
    ] = False,
    across: Annotated[
        str | None,
        typer.Option(
            "--across",
            metavar="AXIS[,AXIS…]",
            help="A table of throughput with these axes' values as columns.",
        ),
    ] = None,
) -> None:
    """Show the results of a sweep again."""
    from harness.core.paths import Results
    from harness.launch.sweep import read_recorded_sweep
    from harness.render.terminal.run import show_results

    place = Results(results)
    asked, records = read_recorded_sweep(place, sweep)
    if phases:
        from harness.render.terminal.phases import show_phases

        return show_phases(asked, records)
    if across:
        from harness.render.terminal.pivot import show_pivot

        return show_pivot(asked, records, across.split(","))
    show_results(asked, records, place)


app.command(epilog=compare.EXAMPLES)(compare.compare)
app.command(
    epilog="\b\nExamples:\n  harness report matrix\n  harness report today --against baseline"
)(compare.report)
app.command(epilog=gate.EXAMPLES)(gate.gate)
app.command(epilog=gate.CERTIFY_EXAMPLES)(gate.certify)
app.command(epilog="Example:  harness bisect v1.0 main sweep.yaml --cell mlp-45dbdb38d5")(
    gate.bisect
)


@app.command(epilog="Example:  harness ui --port 5001")
def ui(
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            metavar="PORT",
            help="The port on 127.0.0.1; 5000 or the next free one.",
        ),
    ] = None,
) -> None:
    """Serve the MLflow UI on this machine. It prints where each sweep's page is; Ctrl-C ends it."""
    from harness.core.paths import Results
    from harness.tracking.ui import serve

    serve(Results(results), tracking_uri, port=port)


@data_app.command(epilog="Example:  harness data fetch fashion-mnist --to data/fashion")
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|fashion-mnist", help="Which one.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The folder to put the files in.")
    ],
) -> None:
    """Download a data set from its public mirrors. Checked against known checksums; resumes."""
    from harness.core.fetch import fetch_with_progress

    fetch_with_progress(name, to)


jobs.register(app)


def _selftest(ranks: str, profile: Any, results: Path) -> None:
    from harness.core.paths import Results
    from harness.render.terminal.selftest import run

    counts = [int(count) for count in ranks.split(",") if count.strip().isdecimal()]
    if len(counts) != len(ranks.split(",")):
        raise BadInput(f"--ranks: found {ranks!r}; allowed: numbers of ranks, as in 1,2,4")
    if not run(Results(results), profile, counts):
        raise typer.Exit(1)


def _profile(cluster: str) -> Any:
    from harness.spec import cluster as clusters

    profile = clusters.load_profile(cluster)
    check_launcher(cluster, profile, "torchrun", " (or harness submit)")
    return profile


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
