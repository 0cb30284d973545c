"""What a command shows of a typed result: lines and tables of values, drawn as text, JSON, Markdown or HTML.

`harness.view.console` draws a view in the terminal and its result as JSON, `markdown` here as a comment
of a pull request, and the template of `harness.view.report` as a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.core.errors import one_line
from harness.statistics.interval import Interval
from harness.view.value import Effect, Kind, Styled, Value, pieces, write

LONGEST_TEXT = 2000  # characters of a text in Markdown
ZERO_WIDTH_SPACE = "\u200b"  # after `@`, it keeps GitHub from mentioning somebody


@dataclass(frozen=True)
class Field:
    """A field of a table: its column's title and kind, and the value."""

    column: str
    kind: Kind
    value: Value

    @property
    def is_number(self) -> bool:
        """Whether it is aligned to the right."""
        return self.kind != "text"

    @cached_property
    def text(self) -> str:
        """What it says."""
        return write(self.value, self.kind)

    @property
    def pieces(self) -> list[Styled]:
        """What it says, by looks."""
        return pieces(self.value, self.kind)

    @property
    def words(self) -> list[str]:
        """What no line breaks; an interval is one word."""
        if isinstance(self.value, Effect | Interval):
            return re.findall(r"\(.*\)|\S+", self.text)
        return self.text.split()


@dataclass
class Table:
    """Rows of values below titles; the first column names the rows."""

    columns: Sequence[str]  # titles
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # what numbers are below which
    title: str = ""  # a line above it
    # Columns that are left out, in this order, of a terminal in which texts would wrap.
    optional: Sequence[str] = ()
    wraps: bool = True  # whether texts wrap before columns of a wide table follow below the others
    without: Sequence[str] = ()  # columns that are not shown
    rows: list[Sequence[Value]] = field(default_factory=list)

    def add_row(self, *row: Value) -> None:
        """Add a row, with the value of each column."""
        self.rows.append(row)

    def drawn(self) -> list[list[Field]]:
        """Return the fields of each row; columns that are empty in all rows are left out."""
        full = set()
        rows = []
        for values in self.rows:
            row = []
            for column, value in zip(self.columns, values, strict=True):
                kind = self.kinds.get(column, "text")
                row.append(Field(column, kind, value))
                if value not in (None, ""):
                    full.add(column)
            rows.append(row)
        full -= set(self.without)
        return [[entry for entry in row if entry.column in full] for row in rows]


@dataclass(frozen=True, kw_only=True)
class View:
    """What is shown of a result."""

    result: Any = None  # what `--json` prints
    heading: Sequence[Value] = ()  # lines above the tables
    tables: Sequence[Table] = ()
    lines: Sequence[Value] = ()  # below them
    next: str = ""  # a command to try
    exit_code: int = 0  # that the command ends with


def markdown(view: View) -> str:
    """Return a view as Markdown, in which names and messages are no markup."""
    lines = [f"### {escape_markdown(write(line))}" for line in view.heading]
    lines.append("")
    for table in view.tables:
        rows = table.drawn()
        if not rows:
            continue
        titles, alignments = [], []
        for title in rows[0]:
            titles.append(title.column)
            alignments.append("---:" if title.is_number else "---")
        lines += [_row(titles), _row(alignments)]
        for row in rows:
            lines.append(_row(escape_markdown(value.text) for value in row))
        lines.append("")
    lines += [f"- {escape_markdown(write(line))}" for line in view.lines]
    return "\n".join(lines) + "\n"


def _row(texts: Iterable[str]) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join(texts)} |"


def escape_markdown(text: str) -> str:
    """Return the text in one line without markup, mentions and references.

    A comment is written by somebody whom GitHub lets mention everybody.
    """
    line = one_line(text, LONGEST_TEXT)
    # MLflow's page, unlike GitHub, shows the backslash before these two.
    line = line.replace("&", "&amp;").replace("<", "&lt;")
    escaped = re.sub(r"([\\`*_\[\]>|~!])", r"\\\1", line)
    return re.sub(r"[@#]", lambda match: match[0] + ZERO_WIDTH_SPACE, escaped)
