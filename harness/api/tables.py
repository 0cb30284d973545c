"""The table of trials as a data frame, and as a file for other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.result import COURSE, IDENTITY, ORIGIN, TrialRow
from harness.core.errors import BadInput
from harness.records.numbers import in_order
from harness.sweep.cell import Cell, axis_names

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


def trial_frame(cells: Sequence[Cell], rows: Sequence[TrialRow]) -> pd.DataFrame:
    """Return rows of trials of these cells as a data frame.

    All axes of the harness are columns, whether they differ or not, so that tables of several sweeps
    can be joined; a number that no trial has is no column. Unknown numbers are NaN, so that a column of
    integers with an unknown one is of floats; unknown texts are missing values. Times are timestamps
    in UTC.
    """
    import pandas as pd

    levels = {cell.id: cell.levels for cell in cells}
    facts = (*IDENTITY, *COURSE, *ORIGIN)
    values: list[dict[str, Any]] = []
    for row in rows:
        known = {name: getattr(row, name) for name in facts}
        values.append({**levels[row.cell], **row.numbers, **known})
    numbers = in_order({name for row in rows for name in row.numbers})
    columns: dict[str, Any] = {}
    for name in (*IDENTITY, *axis_names(cells), *COURSE, *numbers, *ORIGIN):
        columns[name] = _series([_plain(known.get(name)) for known in values])
    columns["started"] = pd.to_datetime(columns["started"], unit="s", utc=True)
    return pd.DataFrame(columns)


def _series(values: Sequence[Any]) -> pd.Series:
    """Return a column: of texts where a value is one, or none is known."""
    import pandas as pd

    known = [value for value in values if value is not None]
    if known and not any(isinstance(value, str) for value in known):
        return pd.Series(values)
    return pd.Series([None if value is None else str(value) for value in values], dtype=object)


def _plain(level: object) -> object:
    """Return the value of an axis for a table: lists and mappings as JSON."""
    if level is None or isinstance(level, str | int | float | bool):
        return level
    return json.dumps(level)
