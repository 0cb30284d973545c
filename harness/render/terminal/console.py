"""The console that every command prints through.

Texts come from sweep files, workloads, ranks and other machines. Rich would turn `:fire:` in them
into a picture, and pass escape sequences on to the terminal. Its markup, such as `[bold]`, is for
our own texts: `escape` of `rich.markup` is for those of others, and tables take plain text only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from harness.render.table import TERMINAL_STYLES, Look

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

    Rich's own sequences for colors and bars are segments and styles of their own.
    """

    def __init__(self, **options: Any) -> None:
        """Make a console; `options` are those of rich."""
        super().__init__(highlight=False, emoji=False, **options)

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


@contextmanager
def spinner(activity: str = "") -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr; yield a function that writes next to it what is being done.

    `activity` comes before each text.
    """
    with TerminalConsole(stderr=True).status("") as status:
        yield lambda text: status.update(escape(f"{activity} {text}".strip()))


def styled(text: str, look: Look) -> str:
    """Return a text in markup, in the style of its look."""
    style = TERMINAL_STYLES[look]
    return f"[{style}]{escape(text)}[/]" if style else escape(text)


def from_markup(markup: str) -> Text:
    """Return the text of a line of markup, in which the texts of others are escaped."""
    return Text.from_markup(markup, emoji=False)


def write_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines of plain text as they are, but for control characters.

    Rich takes them apart and puts them together again, which takes as long as to make them.
    """
    for line in lines:
        text = line if line.isprintable() else line.translate(_WITHOUT_CONTROL_CHARACTERS)
        console.file.write(f"{text}\n")
