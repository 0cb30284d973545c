"""Writes the table of trials (`harness.analysis.trial_table`) as text: CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime

from harness.analysis.trial_table import TableColumn, TrialTable, Value
from harness.render.format import MISSING
from harness.render.table import Table, markdown_lines


def as_csv(table: TrialTable) -> str:
    """Return the table as CSV with a header: unknown values are empty, times are ISO 8601 in UTC."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    for row in table.rows:
        writer.writerow([_plain(row.get(column.name), column) for column in table.columns])
    return text.getvalue()


def as_json(table: TrialTable) -> str:
    """Return the table as a JSON list with an object for each trial: unknown values are null."""
    trials = []
    for row in table.rows:
        trials.append(
            {column.name: _plain(row.get(column.name), column) for column in table.columns}
        )
    return json.dumps(trials, indent=1, allow_nan=False) + "\n"


def as_markdown(table: TrialTable) -> str:
    """Return the table as a Markdown table whose numbers are rounded and aligned to the right."""
    numbers = [column.name for column in table.columns if column.kind in ("integer", "number")]
    drawn = Table([column.name for column in table.columns], numbers)
    for row in table.rows:
        drawn.add_row(*[_text(row.get(column.name), column) for column in table.columns])
    return "\n".join(markdown_lines(drawn)) + "\n"


def _plain(value: Value, column: TableColumn) -> Value:
    """Return a value as CSV and JSON have it; a number that is not finite is unknown."""
    if value is None or column.kind == "text":
        return value
    if column.kind == "time":
        return datetime.fromtimestamp(float(value), UTC).isoformat(timespec="milliseconds")
    is_finite = abs(float(value)) < float("inf")
    return value if is_finite else None


def _text(value: Value, column: TableColumn) -> str:
    """Return a value as a person reads it: a number with four significant digits."""
    plain = _plain(value, column)
    if plain is None:
        return MISSING
    if isinstance(plain, float):
        return f"{plain:,.0f}" if abs(plain) >= 1000 else f"{plain:.4g}"
    return str(plain).lower() if isinstance(plain, bool) else str(plain)
