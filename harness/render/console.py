"""The console that every command prints through, and the tables on it.

Texts come from sweep files, workloads, ranks and other machines. Rich would turn `:fire:` in them
into a picture, and pass escape sequences on to the terminal. Its markup, such as `[bold]`, is for
our own texts: `escape` of `rich.markup` is for those of others, and tables take plain text only.

`harness plan` imports this module and must start at once: it loads neither NumPy nor SciPy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from harness.core.progress import progress_shown_by
from harness.records.record import Record
from harness.render.table import TERMINAL_STYLES, Look, Table, pieces, plain_text
from harness.spec.cell import Cell, Trial

# C0 but the line feed, DEL and C1, whose \x9b begins a sequence as ESC [ does, and the marks that
# reverse the direction of the text after them.
CONTROL_CHARACTERS = {
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
} - {ord("\n")}
# Properties of results that JSON has as well as their fields.
ANSWERS = ("exit_code", "is_same", "rung", "suggested")
WIDEST = 10_000  # columns of a table where nobody looks on
GAP = 2  # columns between those of a table
SHORTEST_NAME = 12  # columns that the names of rows have at least, before numbers wrap
_WITHOUT_CONTROL_CHARACTERS = dict.fromkeys(CONTROL_CHARACTERS)


class TerminalConsole(Console):
    """A console without pictures for words, whose texts hold no control characters.

    Rich's own sequences for colors and bars are separate segments and styles.
    """

    def __init__(self, **options: Any) -> None:
        """Make a console; `options` are those of rich."""
        super().__init__(highlight=False, emoji=False, **options)

    def print_text(self, text: str, look: Look = "plain") -> None:
        """Print a text as it is. A line stays whole: the terminal breaks it."""
        self.print(text, style=TERMINAL_STYLES[look] or None, markup=False, soft_wrap=True)

    def print_markup(self, markup: str | Text) -> None:
        """Print a text with Rich's markup. A line stays whole: the terminal breaks it."""
        self.print(markup, soft_wrap=True)

    def print_prose(self, markup: str) -> None:
        """Print sentences in Rich's markup. On a terminal, lines break between words."""
        self.print(markup, soft_wrap=not self.is_terminal)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, their texts without control characters."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                text = segment.text.translate(_WITHOUT_CONTROL_CHARACTERS)
                yield Segment(text, segment.style, segment.control)


def print_json(result: Any) -> None:
    """Print what a command has come to as JSON for other programs: numbers are not rounded."""
    print(json.dumps(_jsonable(result), indent=1, default=str))


def _jsonable(value: Any) -> Any:
    """Return a result as JSON can hold it: the fields of an object, and what it answers.

    A cell is its id and its label, and a trial or a record has that and its own id.
    """
    if isinstance(value, Cell):
        return {"id": value.id, "label": value.label}
    if isinstance(value, Trial):
        return {"id": value.id, "cell": _jsonable(value.cell), "seed": value.seed}
    if isinstance(value, Record):
        return _jsonable(value.trial)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        names += [name for name in ANSWERS if hasattr(type(value), name) and name not in names]
        return {name: _jsonable(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value


@contextmanager
def spinner(activity: str = "") -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr and next to it what is being done; yield what writes it.

    `activity` comes before each text. Redrawn rarely: this process may share the machine with what
    it measures.
    """
    console = TerminalConsole(stderr=True)
    with console.status(escape(activity), refresh_per_second=2) as status:

        def show(text: str) -> None:
            """Write what is being done."""
            status.update(escape(f"{activity} {text}".strip()))

        with progress_shown_by(show):
            yield show


def styled(text: str, look: Look) -> str:
    """Return a text in markup, in the style of its look."""
    style = TERMINAL_STYLES[look]
    return f"[{style}]{escape(text)}[/]" if style else escape(text)


def from_markup(markup: str) -> Text:
    """Return the text of a line of markup, in which the texts of others are escaped."""
    return Text.from_markup(markup, emoji=False)


def show_table(console: TerminalConsole, table: Table) -> None:
    """Print a table, on a terminal as wide as that is.

    Columns that are optional are left out of a terminal that is too narrow, then texts wrap. Where
    nobody looks on, as in a pipe, lines are as long as they have to be.
    """
    if not console.is_terminal:
        unlimited = console.options.update(max_width=WIDEST)
        width = Measurement.get(console, unlimited, as_rich(table)).maximum
        TerminalConsole(width=max(width, 1), stderr=console.stderr).print(as_rich(table))
        return
    for column in table.optional:
        if _natural_width(table) <= console.width:
            break
        if column in table.columns:
            table = table.without(column)
    console.print(as_rich(table, wraps=_natural_width(table) > console.width))


def as_rich(table: Table, *, wraps: bool = False) -> rich.table.Table:
    """Return the table as Rich draws it; texts are shown as they are, without markup.

    Errors wrap in any case. With `wraps`, so do the other columns: those of texts first, as numbers
    break at blanks only.
    """
    drawn = rich.table.Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, column in enumerate(table.columns):
        justify: JustifyMethod = "right" if column in table.numbers else "left"
        may_shrink = wraps or column in table.shortened or column == "error"
        least = min(SHORTEST_NAME, _column_width(table, 0)) if wraps and not index else None
        drawn.add_column(
            Text(column), justify=justify, no_wrap=not may_shrink, min_width=least, overflow="fold"
        )
    for row in table.rows:
        texts = []
        for column, content in zip(table.columns, row, strict=True):
            text = Text()
            for piece in pieces(content):
                text.append(piece.text, style=TERMINAL_STYLES[piece.look])
            if column in table.shortened:
                text.no_wrap, text.overflow = True, "ellipsis"
            texts.append(text)
        drawn.add_row(*texts)
    return drawn


def _natural_width(table: Table) -> int:
    """Return how wide a table is of which no text wraps."""
    widths = [_column_width(table, number) for number in range(len(table.columns))]
    return sum(widths) + GAP * (len(widths) - 1)


def _column_width(table: Table, number: int) -> int:
    """Return how wide a column is of which no text wraps."""
    texts = [table.columns[number], *(plain_text(row[number]) for row in table.rows)]
    return max(map(cell_len, texts))
