"""Defines the commands about data sets: `harness data fetch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import examples

app = typer.Typer(help="Download data sets for the workloads.", rich_markup_mode=None)


@app.command(epilog=examples("harness data fetch fashion-mnist --to data/fashion"))
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|fashion-mnist", help="The data set.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder for its files.")],
) -> None:
    """Download a data set from its public mirrors.

    Verifies known checksums, resumes an interrupted download, and tries the next mirror where one
    fails. Use the folder with `harness run SWEEP --data DIR`.
    """
    from harness.render.terminal.fetch import fetch_with_progress

    fetch_with_progress(name, to)
