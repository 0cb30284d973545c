"""Defines `harness trend`: since when a cell is slower, from the nights of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import (
    JsonOption,
    MinEffectOption,
    NameArgument,
    ResultsOption,
    UriOption,
    examples,
)
from harness.core.errors import parse_percentage

app = typer.Typer()


@app.command(
    epilog=examples(
        "harness trend nightly history",
        "harness trend nightly history --control before",
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
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    summary: Annotated[
        Path | None,
        typer.Option("--summary", metavar="FILE", help="Write the result as Markdown."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the result as JUnit XML.")
    ] = None,
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
    if summary is not None:
        write_atomically(summary, view.markdown(found))
    if junit is not None:
        write_atomically(junit, view.junit(found))
    if found.exit_code:
        raise typer.Exit(found.exit_code)
