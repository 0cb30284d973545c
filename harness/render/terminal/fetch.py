"""Shows `harness data fetch`: a progress bar for each file, and a line once it is there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from harness.core.fetch import DataFile, download, find_data_set, missing_files
from harness.render.terminal.console import TerminalConsole


def fetch_with_progress(name: str, folder: Path) -> None:
    """Download the files of a data set into `folder`, with a progress bar for each on a terminal.

    Raises BadInput for an unknown name, and everything that `missing_files` and `download` raise.
    """
    # Files that are there already are checked, and not downloaded again.
    data_set = find_data_set(name)
    missing = missing_files(data_set, folder)
    console = TerminalConsole()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    # The bars vanish when they are done, and a line for each file stays.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        for file in data_set.files:
            status = "already there"
            if file in missing:
                _download_with_bar(progress, file, data_set.mirrors, folder)
                status = "fetched and verified"
            console.print(f"[green]✓[/] {file.name}: {status}, {file.size:,} bytes", soft_wrap=True)
    path = escape(shlex.quote(str(folder)))
    console.print(f"[bold]next[/]  harness run mnist --data {path}", soft_wrap=True)


def _download_with_bar(
    progress: Progress, file: DataFile, mirrors: Sequence[str], folder: Path
) -> None:
    """Download a file with a progress bar of its own, which is gone afterwards."""
    task = progress.add_task(file.name, total=file.size)
    download(file, mirrors, folder, lambda received: progress.update(task, completed=received))
    progress.remove_task(task)
