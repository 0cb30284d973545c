"""Defines `harness guide`, which shows the pages of the manual, and its `search`.

The pages are files of the package (`harness.cli.pages`): the manual is at hand without a network,
and always that of the installed version.
"""

import os
import sys
from typing import Annotated

import typer

from harness.cli.arguments import examples
from harness.cli.completion import complete_topics
from harness.cli.groups import DefaultCommand
from harness.cli.pages import Page, PageMatch, name_commands, read_pages, search_pages
from harness.core.errors import BadInput, did_you_mean
from harness.core.text import counted

MOST_LINES = 5  # of a page that a search shows; of more, only the number

app = typer.Typer()


@app.command(
    cls=DefaultCommand,
    epilog=examples("harness guide", "harness guide gate", "harness guide strategies"),
)
def guide(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="The page to show, or a word of its headings. Default: a list of all topics.",
            autocompletion=complete_topics,
        ),
    ] = "",
) -> None:
    """Show the manual, one topic a page.

    On a terminal a page is rendered and shown in the pager; elsewhere it is printed as Markdown.
    """
    pages = read_pages()
    if not topic:
        # Summaries are below the titles: the topics' column is as wide as the longest of them.
        width = max((len(page.topic) for page in pages), default=0)
        for page in pages:
            print(f"{page.topic:{width}}  {page.title}")
            if page.summary:
                print(f"{'':{width}}  {page.summary}")
        print(
            "\nShow a page with: harness guide TOPIC; look for a word with: harness guide search WORD"
        )
        return
    for page in pages:
        if page.topic == topic:
            _show(page)
            return
    matches = search_pages(pages, topic)
    if not matches:
        topics = [page.topic for page in pages]
        raise BadInput(f"guide {topic}: no such topic; {did_you_mean(topic, topics)}")
    # One page treats a word if no other is as relevant (`harness.cli.pages.Relevance`): it is shown.
    treating = [match for match in matches if match.relevance == matches[0].relevance]
    if len(treating) == 1:
        _show(treating[0].page)
    else:
        _list_matches(matches)


@app.command(
    epilog=examples("harness guide search checkpoint", "harness guide search learning rate")
)
def search(
    words: Annotated[
        list[str], typer.Argument(metavar="WORD...", help="A word, or several in this order.")
    ],
) -> None:
    """List the pages and lines of the manual that have a word.

    The pages whose headings have it come first. Endings do not matter: seed finds seeds too.
    """
    text = " ".join(words)
    matches = search_pages(read_pages(), text)
    if not matches:
        raise BadInput(f"guide search {text}: found on no page; allowed: a word of the manual")
    _list_matches(matches)


def _list_matches(matches: list[PageMatch]) -> None:
    """Print for each page the command that shows it, its title, and its first lines that match."""
    commands = [f"harness guide {match.page.topic}" for match in matches]
    width = max(map(len, commands))
    for command, match in zip(commands, matches, strict=True):
        print(f"{command:{width}}  {match.page.title}")
        for number, line in match.lines[:MOST_LINES]:
            print(f"{number:6}  {line}")
        hidden = len(match.lines) - MOST_LINES
        if hidden > 0:
            print(f"{'':6}  and {counted(hidden, 'more line')}")


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
