"""The console that every command prints through, and the tables on it.

Texts come from sweep files, workloads, ranks and other machines. Rich would turn `:fire:` in them
into a picture, and pass escape sequences on to the terminal. Its markup, such as `[bold]`, is for
our own texts: `escape` of `rich.markup` is for those of others, and tables take plain text only.

`harness plan` imports this module and must start at once: it loads neither NumPy nor SciPy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from harness.render.table import MAX_WIDTH, TERMINAL_STYLES, Look, Table, pieces, plain_text

# C0 but the line feed, DEL and C1, whose \x9b begins a sequence as ESC [ does, and the marks that
# reverse the direction of the text after them.
CONTROL_CHARACTERS = {
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
} - {ord("\n")}
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


def print_json(content: Any) -> None:
    """Print JSON for other programs; paths and other objects are texts."""
    print(json.dumps(content, indent=1, default=str))


@contextmanager
def spinner(
    activity: str = "", *, refresh_per_second: float = 12.5
) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr; yield a function that writes next to it what is being done.

    `activity` comes before each text.
    """
    console = TerminalConsole(stderr=True)
    with console.status(escape(activity), refresh_per_second=refresh_per_second) as status:
        yield lambda text: status.update(escape(f"{activity} {text}".strip()))


def styled(text: str, look: Look) -> str:
    """Return a text in markup, in the style of its look."""
    style = TERMINAL_STYLES[look]
    return f"[{style}]{escape(text)}[/]" if style else escape(text)


def from_markup(markup: str) -> Text:
    """Return the text of a line of markup, in which the texts of others are escaped."""
    return Text.from_markup(markup, emoji=False)


COMMAND_INDENT = 6  # columns, as wide as `next` and two blanks
WIDEST_COMMAND = 60  # columns; what a longer command shows is not aligned with the others


def next_lines(purposes: Mapping[str, str]) -> list[str]:
    """Return commands to try next, each with what it shows, as lines of markup.

    Each command can be pasted: it is complete, and two blanks are between it and the rest.
    """
    width = min(max(map(len, purposes), default=0), WIDEST_COMMAND)
    lines: list[str] = []
    for command, purpose in purposes.items():
        heading = "" if lines else "next"
        shown = escape(f"{heading:{COMMAND_INDENT}}{command:{width}}")
        lines.append(f"{shown}  [dim]{escape(purpose)}[/]")
    return lines


LONG = 200  # rows; a longer table has no colors
WIDEST = 1000  # columns, more than any table takes
SEPARATOR = "  "


def show_table(console: TerminalConsole, table: Table) -> None:
    """Print a table whose lines are as long as they have to be, which the terminal breaks.

    Rich fits a table to the console by cutting cells; a console as wide as the table prevents that.
    Of a long one it takes a millisecond a row, so that those are laid out here, without colors.
    """
    if len(table.rows) > LONG:
        for line in plain_lines(table):
            # Not through `render`, which takes control characters out.
            text = line if line.isprintable() else line.translate(_WITHOUT_CONTROL_CHARACTERS)
            console.file.write(f"{text}\n")
        return
    drawn = as_rich(table)
    unlimited = console.options.update(max_width=WIDEST)
    natural_width = Measurement.get(console, unlimited, drawn).maximum
    width = max(console.width, natural_width)
    if table.wrapped & set(table.columns):
        width = min(width, MAX_WIDTH)
    TerminalConsole(width=width, stderr=console.stderr).print(drawn)


def as_rich(table: Table) -> rich.table.Table:
    """Return the table as Rich draws it; texts are shown as they are, without markup.

    Errors wrap, and the columns that say so; other texts are names and numbers.
    """
    drawn = rich.table.Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in table.columns:
        justify: JustifyMethod = "right" if column in table.numbers else "left"
        may_shrink = column in table.shortened | table.wrapped or column == "error"
        drawn.add_column(Text(column), justify=justify, no_wrap=not may_shrink)
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


def narrowed(table: Table, optional: Iterable[str]) -> Table:
    """Return the table without as many of the columns `optional` as it takes to be MAX_WIDTH wide.

    They go in their order; it may name columns that the table does not have.
    """
    widths = _column_widths(table)
    for column in optional:
        if _total_width(widths.values()) <= MAX_WIDTH:
            break
        if column in widths:
            del widths[column]
            table = table.without(column)
    return table


def fits(table: Table) -> bool:
    """Return whether a table is at most MAX_WIDTH wide without wrapped texts."""
    return _total_width(_column_widths(table).values()) <= MAX_WIDTH


def _column_widths(table: Table) -> dict[str, int]:
    """Return how wide each column is, without wrapped texts."""
    columns = zip(table.columns, _plain_columns(table), strict=True)
    return {column: max(map(_width, texts)) for column, texts in columns}


def _total_width(widths: Collection[int]) -> int:
    """Return how wide columns are together, with what separates them."""
    return sum(widths) + len(SEPARATOR) * (len(widths) - 1)


def plain_lines(table: Table) -> list[str]:
    """Return the header and all rows as lines, in which columns are two spaces apart."""
    padded = []  # a list for each column
    for column, texts in zip(table.columns, _plain_columns(table), strict=True):
        widths = list(map(_width, texts))
        widest = max(widths)
        fields = []
        for text, width in zip(texts, widths, strict=True):
            blank = " " * (widest - width)
            fields.append(blank + text if column in table.numbers else text + blank)
        padded.append(fields)
    return [SEPARATOR.join(row).rstrip() for row in zip(*padded, strict=True)]


def _plain_columns(table: Table) -> Iterator[list[str]]:
    """Yield the texts of each column without looks, its title first."""
    for number, title in enumerate(table.columns):
        texts = [title]
        for row in table.rows:
            text = plain_text(row[number])
            texts.append(text if text.isprintable() else Text(text).plain)
        yield texts


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes, without asking rich about plain ASCII."""
    if text.isascii() and text.isprintable():
        return len(text)
    return cell_len(text)
