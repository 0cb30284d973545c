"""The console that every command prints through: draws views for a terminal, and their results as JSON.

Texts come from sweep files, workloads, ranks and other machines. Rich would turn `:fire:` in them into a
picture, take `[bold]` for markup and pass escape sequences on to the terminal; this console does none of it.

`harness plan` imports this module and must start at once: it loads neither NumPy nor SciPy.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from harness.core.progress import progress_shown_by
from harness.records.record import Record
from harness.statistics.interval import Interval
from harness.sweep.cell import Cell, Trial
from harness.view.value import Effect, Kind, Look, Value, pieces
from harness.view.view import Field, Table, View

STYLES: Mapping[Look, str] = {  # Rich's
    "plain": "",
    "strong": "bold",
    "better": "green",
    "same": "",
    "worse": "bold red",
    "failed": "red",
    "invalid": "magenta",
    "open": "yellow",
    "quiet": "dim",
}
# Properties of results that JSON has as well as their fields.
ANSWERS = ("exit_code", "is_same", "rung", "suggested")
LONGEST_WORD = 24  # columns of a word that is not broken, as an id or a verdict
GAP = 2  # blanks after a column
WIDEST = 10_000  # columns of a table where nobody looks on


class TerminalConsole(Console):
    """A console without markup and without pictures for words."""

    def __init__(self, **options: Any) -> None:
        """Make a console; `options` are those of rich."""
        super().__init__(highlight=False, emoji=False, markup=False, **options)

    def say(self, line: Value, *, wraps: bool = True) -> None:
        """Print a line; on a terminal it breaks between words unless it is a command or has a path."""
        text = as_text(line)
        words = text.plain.split()
        longest = max(map(len, words), default=0)
        is_whole = not wraps or not self.is_terminal or longest > self.width
        self.print(text, soft_wrap=is_whole)

    def draw(self, table: Table) -> None:
        """Print a table, on a terminal as wide as that is.

        Columns that are optional are left out of a terminal that is too narrow, then texts wrap, and
        columns for which that is not enough follow below. Where nobody looks on, as in a pipe, lines
        are as long as they have to be.
        """
        columns = list(map(Column, zip(*table.drawn(), strict=True)))
        if not columns:
            return
        if table.title:
            self.say(table.title)
        width = self.width if self.is_terminal else WIDEST
        for title in table.optional:
            widths = [column.widest for column in columns]
            if total_width(widths) <= width:
                break
            columns = [column for column in columns if column.title != title]
        while True:
            widths = [column.widest for column in columns]
            if table.wraps:
                widths = [column.narrowest for column in columns]
            count = len(widths)
            while count > 2 and total_width(widths[:count]) > width:
                count -= 1
            self._print_columns(columns[:count], width)
            if count == len(widths):
                break
            columns = [columns[0], *columns[count:]]

    def _print_columns(self, columns: Sequence[Column], width: int) -> None:
        """Print columns next to each other."""
        drawn = []
        blanks = []
        for column, column_width in zip(columns, fit(columns, width), strict=True):
            drawn.append(column.draw(self, column_width))
            blanks.append(Text(" " * column_width))
        gap = Text(" " * GAP)
        table_lines = []
        for row in zip(*drawn, strict=True):
            for pieces_of_line in itertools.zip_longest(*row):
                filled = []
                for piece, blank in zip(pieces_of_line, blanks, strict=True):
                    filled.append(piece or blank)
                line = gap.join(filled)
                line.rstrip()
                table_lines.append(line)
        self.print(Text("\n").join(table_lines), soft_wrap=True)

    def show(self, view: View) -> None:
        """Print a view."""
        for line in view.heading:
            self.say(line)
        for table in view.tables:
            self.draw(table)
        for line in view.lines:
            self.say(line)
        if view.next:
            self.say(f"next  {view.next}", wraps=False)


def show(view: View, *, as_json: bool = False) -> int:
    """Print a view, or its result as JSON; return the exit code of its command."""
    if as_json:
        print_json(view.result)
    else:
        TerminalConsole().show(view)
    return view.exit_code


def as_text(line: Value, kind: Kind = "text") -> Text:
    """Return a line or a field as Rich draws it, without characters that a terminal obeys."""
    text = Text()
    for piece in pieces(line, kind):
        printable = piece.text
        if not printable.isprintable():
            printable = "".join(filter(_is_printable, printable))
        text.append(printable, style=STYLES[piece.look])
    return text


def _is_printable(letter: str) -> bool:
    """Return whether a character shows as itself, or begins a new line."""
    return letter.isprintable() or letter == "\n"


class Column:
    """A column of a table as a terminal shows it."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = fields
        self.title = fields[0].column
        self.side: Literal["left", "right"] = "right" if fields[0].is_number else "left"

    @cached_property
    def widest(self) -> int:
        """Its width without a broken line."""
        lines = [self.title]
        for field in self.fields:
            lines += field.text.splitlines()
        return max(map(cell_len, lines))

    @cached_property
    def narrowest(self) -> int:
        """Its width without a broken word."""
        words = self.title.split()
        for field in self.fields:
            words += field.words
        longest = max(map(cell_len, words), default=0)
        return min(longest, LONGEST_WORD)

    def draw(self, console: Console, width: int) -> Iterator[Sequence[Text]]:
        """Yield the lines of the title and of each field, which are as wide as the column."""
        yield self._wrap(console, Text(self.title, style="bold"), width)
        for field in self.fields:
            text = as_text(field.value, field.kind)
            if isinstance(field.value, Effect | Interval) and text.cell_len > width:
                text = Text("\n".join(field.words))
            yield self._wrap(console, text, width)

    def _wrap(self, console: Console, text: Text, width: int) -> Sequence[Text]:
        """Return the lines of a text, aligned."""
        if text.cell_len > width or "\n" in text.plain:
            return list(text.wrap(console, width, justify=self.side, overflow="fold"))
        text.align(self.side, width)
        return [text]


def fit(columns: Sequence[Column], width: int) -> list[int]:
    """Return the widths of columns; where they are too wide, the widest of them wrap."""
    widths = [column.widest for column in columns]
    # Rich's own way breaks words, or makes lines longer than the terminal.
    while total_width(widths) > width:
        wrappable = []
        for index, column in enumerate(columns):
            if widths[index] > column.narrowest:
                wrappable.append(index)
        widest = max(wrappable or range(len(widths)), key=widths.__getitem__)
        widths[widest] -= 1
    return [max(1, size) for size in widths]


def total_width(widths: Sequence[int]) -> int:
    """Return the width of columns with the gaps between them."""
    return sum(widths) + GAP * (len(widths) - 1)


def print_json(result: Any) -> None:
    """Print what a command has come to as JSON for other programs: numbers are not rounded."""
    text = json.dumps(_jsonable(result), indent=1, default=str)
    print(text)


def _jsonable(value: Any) -> Any:
    """Return a result as JSON can hold it: the fields of an object, and what it answers.

    A cell is its id and its label, and a trial or a record has that and its own id. JSON has no infinity:
    a bound without a limit is null.
    """
    if isinstance(value, Record):
        value = value.trial
    if isinstance(value, Cell):
        value = {"id": value.id, "label": value.label}
    elif isinstance(value, Trial):
        value = {"id": value.id, "cell": value.cell, "seed": value.seed}
    elif is_dataclass(value) and not isinstance(value, type):
        answers = [name for name in ANSWERS if hasattr(type(value), name)]
        names = [field.name for field in fields(value)]
        value = {name: getattr(value, name) for name in [*names, *answers]}
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_jsonable, value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def spinner(activity: str = "") -> Iterator[None]:
    """Show a spinner on stderr and next to it what is being done.

    `activity` comes before each text. Redrawn rarely: this process may share the machine with what
    it measures.
    """
    console = TerminalConsole(stderr=True)
    with console.status(as_text(activity), refresh_per_second=2) as status:

        def show_progress(text: str) -> None:
            """Write what is being done."""
            status.update(as_text(f"{activity} {text}".strip()))

        with progress_shown_by(show_progress):
            yield
