"""Defines `harness workloads fetch`, which downloads data sets."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import examples

app = typer.Typer()


@app.command(epilog=examples("harness workloads fetch fashion-mnist --to data/fashion"))
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|fashion-mnist", help="The data set.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder for its files.")],
) -> None:
    """Download a data set from its public mirrors.

    Verifies every file by its known checksum, and tries the next mirror where one fails. Files that
    the folder has already are verified and kept; an interrupted download starts from the beginning.
    Use the folder with `harness run SWEEP --data DIR`.
    """
    from rich.markup import escape

    from harness.core.fetch import download, existing_files, find_data_set
    from harness.render.terminal.console import TerminalConsole

    data_set = find_data_set(name)
    existing = existing_files(data_set, to)
    console = TerminalConsole()
    for file_name in data_set.registry:
        status = "already there"
        if file_name not in existing:
            download(data_set, file_name, to, progressbar=sys.stderr.isatty())
            status = "fetched and verified"
        size = (to / file_name).stat().st_size
        console.print(f"[green]✓[/] {file_name}: {status}, {size:,} bytes", soft_wrap=True)
    path = escape(shlex.quote(str(to)))
    console.print(f"[bold]next[/]  harness run mnist --data {path}", soft_wrap=True)
