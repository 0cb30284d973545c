"""Defines `harness guide`, which shows the pages of the manual.

The pages are files of the package (`harness.cli.pages`): the manual is at hand without a network,
and always that of the installed version.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from harness.cli.arguments import examples
from harness.cli.completion import complete_topics
from harness.cli.pages import Page, name_commands, read_pages
from harness.core.errors import BadInput, did_you_mean

app = typer.Typer()


@app.command(epilog=examples("harness guide", "harness guide gate"))
def guide(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="The page to show. Default: a list of all topics.",
            autocompletion=complete_topics,
        ),
    ] = "",
) -> None:
    """Show the manual, one topic a page.

    On a terminal a page is rendered and shown in the pager; elsewhere it is printed as Markdown.
    """
    pages = read_pages()
    if not topic:
        _list_topics(pages)
        return
    for page in pages:
        if page.topic == topic:
            _show(page)
            return
    topics = [page.topic for page in pages]
    raise BadInput(f"guide {topic}: no such topic; {did_you_mean(topic, topics)}")


def _list_topics(pages: list[Page]) -> None:
    """Print a line for each topic, with its title, and its summary below.

    The topics are in a column as wide as the longest; a page without a summary has a single line.
    """
    width = max((len(page.topic) for page in pages), default=0)
    for page in pages:
        print(f"{page.topic:{width}}  {page.title}")
        if page.summary:
            print(f"{'':{width}}  {page.summary}")
    print("\nShow a page with: harness guide TOPIC")


def _show(page: Page) -> None:
    """Print the page: rendered and paged on a terminal, as it was written elsewhere.

    On a terminal, links between pages are followed by the command that shows the page, because a
    reader can't click them there.
    """
    if not sys.stdout.isatty():
        print(page.text, end="")  # byte for byte the file: it ends with a line break itself
        return
    # Imported here because the list of topics does not need them.
    from rich.markdown import Markdown

    from harness.render.console import TerminalConsole

    # less needs -R to pass colors on; -F and -X make it leave a page that fits on the screen there.
    os.environ.setdefault("LESS", "-FRX")
    console = TerminalConsole()
    with console.pager(styles=True):
        console.print(Markdown(name_commands(page.text)))
