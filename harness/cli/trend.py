"""Defines `harness trend`: since when a cell is slower, from the nights of a sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import (
    ClusterOption,
    JsonOption,
    JunitOption,
    MinEffectOption,
    NameArgument,
    ResultsOption,
    SummaryOption,
    UriOption,
    examples,
    load_local_profile,
    print_message,
)
from harness.cli.gate import BudgetOption
from harness.core.errors import parse_percentage
from harness.core.text import parse_duration

if TYPE_CHECKING:
    from harness.analysis.trend import Trend
    from harness.core.paths import Results
    from harness.spec.cluster import Profile

app = typer.Typer()


@app.command(
    epilog=examples(
        "harness trend nightly history",
        "harness trend nightly history --control before --output trend.html",
        "harness trend nightly history --summary trend.md --junit trend.xml",
    )
)
def trend(
    sweep: NameArgument,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[HISTORY]...",
            help="Archives of the sweep, folders of archives, other results folders.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 - typer copies it
    control: Annotated[
        str,
        typer.Option(
            "--control",
            metavar="WORKLOAD",
            help="The label of a workload that computes the same every night, as an old commit does:"
            " throughput is divided by its own, so that a drift of the machine cancels.",
        ),
    ] = "",
    min_effect: MinEffectOption = "1%",
    from_mlflow: Annotated[
        bool,
        typer.Option(
            "--from-mlflow", help="Also read the nights whose records were delivered to MLflow."
        ),
    ] = False,
    to_mlflow: Annotated[
        bool,
        typer.Option(
            "--to-mlflow", help="Leave the trend in the sweep's experiment in MLflow, as a run."
        ),
    ] = False,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect",
            help="Go on with each new slowdown that came with code: measure the commits between, as"
            " harness gate bisect does.",
        ),
    ] = False,
    budget: BudgetOption = "30s",
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE.html", help="Write a page with a plot of each series."
        ),
    ] = None,
    summary: SummaryOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find since when a cell is slower, from what a sweep has measured night after night.

    Each night is an archive, a results folder or what MLflow has. A series has the nights of a cell on
    one kind of hardware. A change of it counts once two detectors agree, with at most one false one a
    year over all cells, looking every night. Each is sorted by what changed with it: code, versions,
    hardware, or nothing that is recorded (noise).

    Exit code 1 if the last night has made a slowdown certain that came with code or versions.
    """
    from harness.core.paths import Results, write_atomically
    from harness.interface.history import read_trend
    from harness.render import trend as view

    budget_seconds = parse_duration(budget, "--budget", at_least=1.0)
    profile = load_local_profile(cluster)
    found = read_trend(
        Results(results),
        sweep,
        paths,
        control=control,
        min_effect=parse_percentage(min_effect, "--min-effect"),
        mlflow=(tracking_uri or "") if from_mlflow else None,
    )
    if as_json:
        print(view.as_json(found))
    else:
        view.show_trend(found)
    page = ""
    if output is not None or to_mlflow:
        from harness.render.html.trend import render_trend  # which loads Matplotlib

        page = render_trend(found)
    if output is not None:
        write_atomically(output, page)
    if summary is not None:
        write_atomically(summary, view.markdown(found))
    if junit is not None:
        write_atomically(junit, view.junit(found))
    if to_mlflow:
        from harness.tracking import Tracker

        files = {"trend.html": page, "trend.md": view.markdown(found)}
        Tracker(Results(results), tracking_uri).deliver_trend(found, files)
    if bisect and found.new_slowdowns:
        _bisect(found, Results(results), profile, budget_seconds, stderr=as_json)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _bisect(
    found: "Trend",
    results: "Results",
    profile: "Profile",
    budget_seconds: float,
    *,
    stderr: bool,
) -> None:
    """Measure the commits of each new slowdown, and print what is found.

    On stderr where stdout has JSON, which text after it would make invalid.
    """
    from harness.interface.history import bisect_slowdowns
    from harness.render import bisect as view

    with view.BisectView() as bisect_view:
        outcomes = bisect_slowdowns(
            found, results, profile, budget_seconds, bisect_view, print_message
        )
        for outcome in outcomes:
            if isinstance(outcome, str):
                print_message(outcome)
            else:
                view.show(outcome, stderr=stderr)
