"""Where the labeled texts of DistilBERT come from: `data: {source: ...}` chooses a class."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from workloads.labeled import Labeled
from workloads.settings import Between, Seed, errors_naming, read_bytes
from workloads.tickets import Row, ticket_labels, tickets


@dataclass(frozen=True, kw_only=True)
class Csv(Labeled):
    """Labeled texts: a folder with train.csv and test.csv, or a single file."""

    source: Literal["csv"] = "csv"
    path: Path
    text: str = "text"  # the column with the text
    label: str = "label"  # the column with the label

    @property
    def has_test_set(self) -> bool:
        """Return whether there is a file to test on."""
        return self.path.is_dir()

    def files(self) -> list[Path]:
        """Return the training file, and the test file if there is one."""
        if self.path.is_dir():
            return [self.path / "train.csv", self.path / "test.csv"]
        return [self.path]

    def samples(self) -> tuple[list[Row], int]:
        """Return the rows of all files, and how many at their end are a test set."""
        rows: list[Row] = []
        tested = 0
        for number, path in enumerate(self.files()):
            of_file = read_rows(path, self.text, self.label)
            rows += of_file
            tested = number * len(of_file)
        return rows, tested

    def labels(self) -> tuple[Sequence[str], int]:
        """Return the label of each row, and how many rows are a test set."""
        rows, tested = self.samples()
        return [label for _, label in rows], tested

    def check(self) -> None:
        """Raise ValueError unless the files are well-formed and their classes can be learned."""
        with errors_naming("path"):
            self.check_labels(self.files()[-1])


@dataclass(frozen=True, kw_only=True)
class Tickets(Labeled):
    """Generated support tickets about billing, technical trouble or an account."""

    source: Literal["tickets"] = "tickets"
    rows: Annotated[int, Between(60)] = 4000
    seed: Seed = 0

    @property
    def draw_seed(self) -> int:
        """Return the seed of the draws, which are others for other tickets."""
        return self.seed + self.split_seed

    def samples(self) -> tuple[list[Row], int]:
        """Return the tickets, none of them of a test set."""
        return tickets(self.rows, self.seed), 0

    def labels(self) -> tuple[Sequence[str], int]:
        """Return the label of each ticket."""
        return ticket_labels(self.rows, self.seed), 0


TextData = Csv | Tickets


def read_rows(path: Path, text_column: str, label_column: str) -> list[Row]:
    """Return the (text, label) rows of a UTF-8 CSV file with a header, gzipped or not.

    Spaces around labels are removed, empty lines are skipped. Raises ValueError and OSError.
    """
    try:
        content = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: found {error}; allowed: UTF-8") from None
    csv.field_size_limit(max(len(content), csv.field_size_limit()))  # by default 131,072 characters
    reader = csv.DictReader(io.StringIO(content, newline=""), strict=True)
    columns = list(reader.fieldnames or ())
    for column in (text_column, label_column):
        if columns.count(column) != 1:
            raise ValueError(
                f"{path}: found no single column {column!r}; allowed as text and label: one each of"
                f" {', '.join(columns) or 'a header'}, separated by commas"
            )
    rows: list[Row] = []
    try:
        for number, row in enumerate(reader, start=1):
            text, label = row[text_column] or "", (row[label_column] or "").strip()
            if None in row or None in row.values() or not text.strip() or not label:
                raise ValueError(
                    f"{path}: found row {number} with more or fewer fields than the header, or without"
                    " text or label; allowed: a text and a label in every row"
                )
            rows.append((text, label))
    except csv.Error as error:
        raise ValueError(
            f"{path}: found {error} in line {reader.line_num}; allowed: well-formed CSV"
        ) from None
    if not rows:
        raise ValueError(f"{path}: found no rows; allowed: a header and at least one row")
    return rows
