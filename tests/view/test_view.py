"""A view as a terminal and as Markdown draw it."""

from __future__ import annotations

from harness.view.console import TerminalConsole
from harness.view.value import Effect, Styled
from harness.view.view import Table, View, markdown

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m"


def drawn(view: View, width: int = 80) -> list[str]:
    """Return the lines that a terminal shows, without colors."""
    console = TerminalConsole(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.show(view)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_columns_are_left_out_in_their_order_until_a_table_fits() -> None:
    columns = ["name", "long", "longer"]
    table = Table(columns, {"long": "number"}, optional=["absent", "long", "longer"])
    table.add_row("a", "b" * 60, "c" * 70)
    assert drawn(View(tables=[table]))[0].split() == ["name", "longer"]


def test_a_table_is_as_wide_as_the_terminal_and_breaks_no_word_and_no_interval() -> None:
    table = Table(["cell", "samples/s", "speed", "failure"], {"samples/s": "rate"})
    speed = Effect(0.57, (0.1, 3.35))
    table.add_row("eager single", 12345, speed, "inconclusive")
    table.add_row("eager ddp", 6464, speed, "")
    lines = drawn(View(tables=[table]), 40)
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["cell", "samples/s", "speed"]
    assert [line.split()[-3:] for line in lines if "(" in line] == [["(0.10", "to", "3.35)"]] * 2
    assert lines[-3:] == ["cell          failure", "eager single  inconclusive", "eager ddp"]
    table.wraps = False
    lines = drawn(View(tables=[table]), 40)
    assert "eager ddp     0.57× (0.10 to 3.35)" in lines


def test_empty_columns_are_not_drawn() -> None:
    table = Table(["name", "none", "blank", "zero"], {"none": "number", "zero": "count"})
    table.add_row("a", None, "", 0)
    assert drawn(View(tables=[table])) == ["name  zero", "a        0"]
    assert drawn(View(tables=[Table(["name"])])) == []


def test_lines_break_between_words_and_commands_do_not() -> None:
    path = "/a/folder/that/is/longer/than/a/line/of/the/terminal"
    view = View(lines=["a line of words, and more", f"a line with {path}"], next="harness show a b")
    lines = ["a line of words, and", "more", f"a line with {path}", "next  harness show a b"]
    assert drawn(view, 20) == lines


def test_texts_of_others_are_no_markup_and_send_no_escape_sequences() -> None:
    console = TerminalConsole(force_terminal=True, color_system="standard", width=80)
    table = Table(["[bold]"])
    table.add_row(f"[/x] {ESCAPE}")
    with console.capture() as captured:
        console.say([Styled(f"a{ESCAPE}b", "failed"), ":fire: \u202e"])
        console.draw(table)
    text = captured.get()
    assert "\x1b[31ma]0;owned[2J31mb\x1b[0m:fire:" in text
    assert "[/x] ]0;owned[2J31m" in text
    assert "\x1b]" not in text


def test_markdown_escapes_what_it_is_given() -> None:
    table = Table(["name", "size"], {"size": "bytes"})
    table.add_row("a|b", 1024)
    table.add_row("<b> & c", 1024)
    heading, _, *rows, _, line = markdown(
        View(heading=["@all"], tables=[table], lines=["*c*"])
    ).splitlines()
    assert (heading, line) == ("### @\u200ball", "- \\*c\\*")
    assert rows[:3] == ["| name | size |", "| --- | ---: |", "| a\\|b | 1 KiB |"]
    assert rows[3] == "| &lt;b\\> &amp; c | 1 KiB |"
