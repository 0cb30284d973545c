"""Where the labeled texts of DistilBERT come from: `data: {source: ...}` chooses a class."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from workloads.labeled import Labeled, Row
from workloads.settings import Between, read_bytes
from workloads.tickets import tickets


@dataclass(frozen=True, kw_only=True)
class Csv(Labeled):
    """Labeled texts: a folder with train.csv and test.csv, or a single file."""

    source: Literal["csv"] = "csv"
    path: Path
    text: str = "text"  # the column with the text
    label: str = "label"  # the column with the label

    def files(self) -> list[Path]:
        """Return the training file, and the test file if there is one."""
        if self.path.is_dir():
            return [self.path / "train.csv", self.path / "test.csv"]
        return [self.path]

    def samples(self) -> tuple[list[Row], list[Row]]:
        """Return the rows of each file."""
        rows = [read_rows(path, self.text, self.label) for path in self.files()]
        rows.append([])  # a single file has no test set
        return rows[0], rows[1]


@dataclass(frozen=True, kw_only=True)
class Tickets(Labeled):
    """Generated support tickets about billing, technical trouble or an account."""

    source: Literal["tickets"] = "tickets"
    rows: Annotated[int, Between(60)] = 4000

    def samples(self) -> tuple[list[Row], list[Row]]:
        """Return the tickets, none of them of a test set."""
        return tickets(self.rows, seed=0), []


TextData = Csv | Tickets


def read_rows(path: Path, text_column: str, label_column: str) -> list[Row]:
    """Return the (text, label) rows of a UTF-8 CSV file with a header, gzipped or not.

    Spaces around labels are removed, empty lines are skipped. Raises ValueError and OSError.
    """
    rows = []
    csv.field_size_limit(2**31 - 1)  # by default 131,072 characters
    with io.TextIOWrapper(io.BytesIO(read_bytes(path)), "utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                text = row[text_column] or ""
                label = (row[label_column] or "").strip()
                if None in row or not text.strip() or not label:
                    raise ValueError("more fields than the header, or no text or label")
                rows.append((text, label))
        except KeyError as error:
            allowed = f"text and label among {', '.join(reader.fieldnames or ())}"
            raise ValueError(f"{path}: found no column {error}; allowed: {allowed}") from None
        except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
            found = f"{error} in line {reader.line_num}"
            raise ValueError(f"{path}: found {found}; allowed: CSV in UTF-8") from None
    if not rows:
        raise ValueError(f"{path}: found no row; allowed: one or more below the header")
    return rows
