"""Folders of results, and temporary ones for ranks that leave no record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.paths import Results, default_results
from harness.core.scratch import ScratchFolder

Folder = str | Path | None  # of results; None: HARNESS_RESULTS, else `results`


def results_folder(folder: Folder) -> Results:
    """Return the results folder that commands use, unless another one is given."""
    return Results(Path(folder or default_results()))


@contextmanager
def run_folder(purpose: str) -> Iterator[ScratchFolder]:
    """Yield a temporary folder for the files of ranks; it stays if a HarnessError names logs in it."""
    with ScratchFolder(purpose) as scratch:
        try:
            yield scratch
        except HarnessError:
            scratch.keep()
            raise
