"""The table of trials as a data frame, and as a file for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.trial_table import TrialTable
from harness.core.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

# How pandas writes a table, by the ending of the file's name.
WRITERS: Mapping[str, Callable[[pd.DataFrame, Path], object]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".json": lambda frame, path: frame.to_json(
        path, orient="records", date_format="iso", indent=1, double_precision=15
    ),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
}


def check_table_path(path: Path) -> None:
    """Raise BadInput for a file whose name does not say how a table is written into it."""
    if path.suffix not in WRITERS:
        raise BadInput(f"--output: found {path}; allowed: a name that ends in {', '.join(WRITERS)}")


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table into a file, in the format that its name ends in; raises BadInput if it can't be."""
    check_table_path(path)
    try:
        WRITERS[path.suffix](frame, path)
    except OSError as error:
        raise BadInput(f"--output {path}: {error.strerror}") from None


def trial_frame(table: TrialTable) -> pd.DataFrame:
    """Return the table as a data frame.

    Unknown numbers are NaN, so that a column of integers with an unknown one is of floats; unknown
    texts are missing values. Times are timestamps in UTC.
    """
    import pandas as pd

    columns = {}
    for column in table.columns:
        values = [row.get(column.name) for row in table.rows]
        if column.kind == "text":
            values = [None if value is None else str(value) for value in values]
        columns[column.name] = pd.Series(values, dtype=object if column.kind == "text" else None)
        if column.kind == "time":
            columns[column.name] = pd.to_datetime(values, unit="s", utc=True)
    return pd.DataFrame(columns)
