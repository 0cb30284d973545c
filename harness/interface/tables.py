"""The table of trials as Arrow and Parquet, and from there as a pandas data frame."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.analysis.trial_table import TableColumn, TrialTable, Value

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


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
