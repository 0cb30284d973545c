"""The table of trials for other programs: CSV, JSON, Markdown, Arrow, Parquet and pandas."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.trial_table import TableColumn, TrialTable, Value, headline_columns
from harness.core.errors import BadInput, did_you_mean
from harness.render.trial_table import as_csv, as_json, as_markdown

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TEXT_FORMATS: Mapping[str, Callable[[TrialTable], str]] = {
    "csv": as_csv,
    "json": as_json,
    "markdown": as_markdown,
}
FORMATS = (*TEXT_FORMATS, "parquet")
FORMATS_BY_SUFFIX = {
    ".csv": "csv",
    ".json": "json",
    ".md": "markdown",
    ".parquet": "parquet",
}


def choose_format(name: str, output: Path | None) -> str:
    """Return the format that `--format` names, or else the one that the file's name ends in.

    Raises BadInput for an unknown format, and for Parquet without a file: a terminal can't show it.
    """
    if not name and output is not None:
        name = FORMATS_BY_SUFFIX.get(output.suffix, "")
        if not name:
            allowed = ", ".join(FORMATS_BY_SUFFIX)
            raise BadInput(
                f"--output {output}: found no --format; allowed: one, or a name in {allowed}"
            )
    if name not in FORMATS:
        raise BadInput(f"--format: found {name!r}; {did_you_mean(name, FORMATS)}")
    if name == "parquet" and output is None:
        raise BadInput("--format parquet: found no --output; allowed: --output FILE")
    return name


def choose_columns(table: TrialTable, names: Sequence[str], table_format: str) -> TrialTable:
    """Return the table with these columns, in their order.

    Without names, Markdown has the columns that a person looks at first, and other formats all.
    Raises BadInput for a column that the table does not have.
    """
    columns = {column.name: column for column in table.columns}
    for name in names:
        if name not in columns:
            raise BadInput(f"--columns: found {name!r}; {did_you_mean(name, columns)}")
    if not names:
        names = headline_columns(table) if table_format == "markdown" else list(columns)
    return replace(table, columns=[columns[name] for name in names])


def export(table: TrialTable, table_format: str) -> bytes:
    """Return the content of a file with the table; texts are UTF-8."""
    if table_format == "parquet":
        return parquet(table)
    return TEXT_FORMATS[table_format](table).encode()


def arrow_table(table: TrialTable) -> pa.Table:
    """Return the table in Arrow's types; each field's metadata has its unit and its meaning.

    Times are milliseconds since the epoch with the time zone UTC.
    """
    import pyarrow as pa

    types: Mapping[str, Any] = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "time": pa.timestamp("ms", tz="UTC"),
    }
    arrays = []
    fields = []
    for column in table.columns:
        values = [_stored(row.get(column.name), column) for row in table.rows]
        arrays.append(pa.array(values, types[column.kind]))
        metadata = {"unit": column.unit, "meaning": column.meaning}
        fields.append(pa.field(column.name, types[column.kind], metadata=metadata))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _stored(value: Value, column: TableColumn) -> Value:
    """Return a value as Arrow takes it: text where the kind is text, and whole milliseconds."""
    if value is None:
        return None
    if column.kind == "time":
        return round(float(value) * 1000)
    if column.kind == "text" and not isinstance(value, str):
        return str(value)
    return value


def parquet(table: TrialTable) -> bytes:
    """Return the content of a Parquet file with the table."""
    from pyarrow import parquet as files

    content = io.BytesIO()
    files.write_table(arrow_table(table), content)
    return content.getvalue()


def trial_frame(table: TrialTable) -> pd.DataFrame:
    """Return the table as a data frame.

    Unknown numbers are NaN, so that a column of integers with an unknown one is of floats; unknown
    texts are missing values. Times are timestamps in UTC.
    """
    return arrow_table(table).to_pandas()


def column_frame(table: TrialTable) -> pd.DataFrame:
    """Return the name, kind, unit and meaning of each column of the table."""
    import pandas as pd

    rows = [[column.name, column.kind, column.unit, column.meaning] for column in table.columns]
    return pd.DataFrame(rows, columns=["column", "kind", "unit", "meaning"])
