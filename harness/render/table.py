"""Tables of texts: declared once for a subject, and drawn by the terminal and by the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# What a text says of its subject, beyond the words. The report's looks are in templates/report.css.
Look = Literal[
    "plain", "best", "better", "same", "worse", "failed", "invalid", "open", "running", "quiet",
]  # fmt: skip
FINE = 0.1  # width of an interval of ratios below which a third digit says something
TERMINAL_STYLES: Mapping[Look, str] = {  # Rich's
    "plain": "",
    "best": "bold green",
    "better": "green",
    "same": "",
    "worse": "bold red",
    "failed": "red",
    "invalid": "magenta",
    "open": "yellow",
    "running": "cyan",
    "quiet": "dim",
}


@dataclass(frozen=True)
class Styled:
    """A text with a look: a verdict, a certainty, a status."""

    text: str
    look: Look

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval, which the report draws, too."""

    value: float
    bounds: tuple[float, float] | None  # None where too few values give no interval

    def __str__(self) -> str:
        """Return it as text: `1.13× (1.10 to 1.16)`; small differences have a third digit."""
        if self.bounds is None:
            return f"{self.value:.2f}×"
        low, high = self.bounds
        digits = 3 if high - low < FINE else 2
        return f"{self.value:.{digits}f}× ({low:.{digits}f} to {high:.{digits}f})"


# What a field of a table holds; several texts follow each other without a blank.
Content = str | Ratio | Styled | Sequence[Styled]


class Table:
    """Rows of texts below titles; the first column names the rows."""

    def __init__(
        self,
        columns: Iterable[str],
        numbers: Iterable[str] = (),
        shortened: Iterable[str] = (),
        optional: Iterable[str] = (),
    ) -> None:
        """Begin a table without rows.

        The columns `numbers` are aligned to the right, `shortened` are cut off where a live display
        is narrow. Those that are `optional` are left out, in this order, of a terminal that the table
        is too wide for. All may name columns that the table does not have.
        """
        self.columns = list(columns)
        self.numbers = frozenset(numbers)
        self.shortened = frozenset(shortened)
        self.optional = tuple(optional)
        self.rows: list[Sequence[Content]] = []

    def add_row(self, *row: Content) -> None:
        """Add a row, with the content of each column."""
        self.rows.append(row)

    def without(self, column: str) -> Table:
        """Return the table without a column."""
        index = self.columns.index(column)
        columns = [*self.columns[:index], *self.columns[index + 1 :]]
        table = Table(columns, self.numbers, self.shortened, self.optional)
        for row in self.rows:
            table.add_row(*row[:index], *row[index + 1 :])
        return table


def markdown_lines(table: Table, *, is_markup: bool = False) -> list[str]:
    """Return the lines of the table in Markdown; a bar or a line break would end a field.

    With `is_markup`, the texts are Markdown already.
    """
    alignments = ["---:" if column in table.numbers else "---" for column in table.columns]
    lines = []
    for row in (table.columns, alignments, *table.rows):
        fields = []
        for content in row:
            text = plain_text(content)
            if not is_markup:
                text = text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
            fields.append(text)
        lines.append(f"| {' | '.join(fields)} |")
    return lines


def plain_text(content: Content) -> str:
    """Return the text of a field without looks."""
    if isinstance(content, str):
        return content
    return "".join(piece.text for piece in pieces(content))


def pieces(content: Content) -> Sequence[Styled]:
    """Return the texts of a field, each with its look."""
    if isinstance(content, str | Ratio):
        return [Styled(str(content), "plain")]
    return [content] if isinstance(content, Styled) else content
