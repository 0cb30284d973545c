"""The console that every command prints through: draws views for a terminal, and their results as JSON.

Texts come from sweep files, workloads, ranks and other machines. Rich would turn `:fire:` in them into a
picture, take `[bold]` for markup and pass escape sequences on to the terminal; this console does none of it.

`harness plan` imports this module and must start at once: it loads neither NumPy nor SciPy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import rich.table
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segment, Segments
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
        rows = table.drawn()
        if not rows:
            return
        if table.title:
            self.say(table.title)
        width = self.width if self.is_terminal else WIDEST
        left_out: list[str] = []
        for column in table.optional:
            if sum(size.maximum for size in sizes(rows)) <= width + GAP:
                break
            left_out.append(column)
            rows = table.drawn(left_out)
        while rows[0]:
            least = []
            for size in sizes(rows):
                least.append(size.minimum if table.wraps else size.maximum)
            count = len(least)
            while count > 2 and sum(least[:count]) > width + GAP:
                count -= 1
            self._print_rows([row[:count] for row in rows], width)
            if count == len(least):
                break
            rows = [[row[0], *row[count:]] for row in rows]

    def _print_rows(self, rows: Sequence[Sequence[Field]], width: int) -> None:
        """Print rows below their titles."""
        options = self.options.update(width=WIDEST)
        segments = self.render(as_rich(rows, width), options)
        if self.is_terminal:
            self.print(Segments(segments), soft_wrap=True)
            return
        for line in Segment.split_lines(segments):
            text = "".join(segment.text for segment in line)
            self.print(text.rstrip(), soft_wrap=True)

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
        printable = "".join(filter(_is_printable, piece.text))
        text.append(printable, style=STYLES[piece.look])
    return text


def _is_printable(letter: str) -> bool:
    """Return whether a character shows as itself, or begins a new line."""
    return letter.isprintable() or letter == "\n"


def sizes(rows: Sequence[Sequence[Field]]) -> list[Measurement]:
    """Return the widths of each column without a broken word and without a broken line, with the gap."""
    measured = []
    for column in zip(*rows, strict=True):
        title = column[0].column
        lines = [title]
        words = title.split()
        for field in column:
            lines += field.text.splitlines()
            words += field.words
        longest_line = max(map(cell_len, lines))
        longest_word = max(map(cell_len, words), default=0)
        unbroken = min(longest_word, LONGEST_WORD)
        measured.append(Measurement(unbroken + GAP, longest_line + GAP))
    return measured


def as_rich(rows: Sequence[Sequence[Field]], width: int) -> rich.table.Table:
    """Return a table as Rich draws it: where it is too wide, its widest columns wrap."""
    measured = sizes(rows)
    widths = [size.maximum for size in measured]
    # Rich's own way breaks words, or makes lines longer than the terminal.
    while sum(widths) > width + GAP:
        wrappable = [index for index, size in enumerate(measured) if widths[index] > size.minimum]
        widest = max(wrappable or range(len(widths)), key=widths.__getitem__)
        widths[widest] -= 1
    drawn = rich.table.Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, GAP, 0, 0),
    )
    for title, size in zip(rows[0], widths, strict=True):
        drawn.add_column(
            Text(title.column),
            justify="right" if title.is_number else "left",
            width=size - GAP,
            overflow="fold",
        )
    for row in rows:
        texts = []
        for field, size in zip(row, widths, strict=True):
            text = as_text(field.value, field.kind)
            if isinstance(field.value, Effect | Interval) and text.cell_len > size - GAP:
                text = Text("\n".join(field.words))
            texts.append(text)
        drawn.add_row(*texts)
    return drawn


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
