"""The table of trials for other programs: CSV, JSON, Markdown and Parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.analysis.trial_table import TrialTable, headline_columns
from harness.core.errors import BadInput, did_you_mean
from harness.interface.tables import parquet
from harness.render.trial_table import as_csv, as_json, as_markdown

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
