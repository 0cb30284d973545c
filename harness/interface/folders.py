"""Where results are, for functions that are called without a command line."""

from __future__ import annotations

import os
from pathlib import Path

from harness.core.paths import Results

Folder = str | Path | None  # of results; None: HARNESS_RESULTS, else `results`


def results_folder(folder: Folder = None) -> Results:
    """Return the results folder that commands use, unless another one is given."""
    return Results(Path(folder or os.environ.get("HARNESS_RESULTS", "results")))
