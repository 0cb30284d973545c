"""Draws tables for the terminal.

`harness plan` imports this module and must start at once: it loads neither NumPy nor SciPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import rich.table
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.text import Text

from harness.render.table import TERMINAL_STYLES, Table, pieces
from harness.render.terminal.console import TerminalConsole, write_lines

LONG = 200  # rows; a longer table has no colors
WIDEST = 1000  # columns, more than any table takes


def show(console: Console, table: Table) -> None:
    """Print a table whose lines are as long as they have to be, which the terminal breaks.

    Rich fits a table to the console by cutting cells; a console as wide as the table prevents that.
    Of a long one it takes a millisecond a row, so that those are laid out here, without colors.
    """
    if len(table.rows) > LONG:
        write_lines(console, lines(table))
        return
    drawn = as_rich(table)
    unlimited = console.options.update(max_width=WIDEST)
    natural_width = Measurement.get(console, unlimited, drawn).maximum
    width = max(console.width, natural_width)
    TerminalConsole(width=width, stderr=console.stderr).print(drawn)


def as_rich(table: Table) -> rich.table.Table:
    """Return the table as Rich draws it; texts are shown as they are, without markup.

    Only errors wrap, other texts being names and numbers.
    """
    drawn = rich.table.Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in table.columns:
        justify: JustifyMethod = "right" if column in table.numbers else "left"
        may_shrink = column in table.shortened or column == "error"
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


def lines(table: Table) -> list[str]:
    """Return the header and all rows as lines, in which columns are two spaces apart."""
    rows = [table.columns]
    for row in table.rows:
        plain = []
        for content in row:
            text = "".join(piece.text for piece in pieces(content))
            plain.append(text if text.isprintable() else Text(text).plain)
        rows.append(plain)
    padded = []
    for column, texts in zip(table.columns, zip(*rows, strict=True), strict=True):
        padded.append(_padded(texts, to_right=column in table.numbers))
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]


def _padded(texts: Sequence[str], *, to_right: bool) -> list[str]:
    """Return texts with blanks that make them equally wide."""
    widths = list(map(_width, texts))
    widest = max(widths)
    padded = []
    for text, width in zip(texts, widths, strict=True):
        blank = " " * (widest - width)
        padded.append(blank + text if to_right else text + blank)
    return padded


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes, without asking rich about plain ASCII."""
    if text.isascii() and text.isprintable():
        return len(text)
    return cell_len(text)
