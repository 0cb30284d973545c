"""Defines `harness guide`: shows the pages of the manual, the Markdown files of `harness/guide`.

A page begins with a heading, which is its title, and a paragraph, whose first sentence is its summary. `index.md` is for
readers of the repository: it links the pages in the order in which `harness guide` lists them.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import examples
from harness.cli.completion import complete_topics
from harness.core.errors import BadInput, did_you_mean

FOLDER = Path(__file__).parent.parent / "guide"
INDEX = "index"
PAGE_LINK = re.compile(r"\[([^\]]+)\]\((?:\./)?([\w-]+)\.md(?:#[\w-]*)?\)")

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of the manual."""

    topic: str  # the name of its file, without `.md`
    text: str  # Markdown

    @property
    def title(self) -> str:
        """Return the first heading, or the topic if the page has none."""
        for line in self.text.splitlines():
            if line.startswith("#"):
                return line.lstrip("#").strip()
        return self.topic

    @property
    def summary(self) -> str:
        """Return the first sentence of the first paragraph, without its markup."""
        for paragraph in self.text.split("\n\n"):
            text = " ".join(paragraph.split())
            if text and not text.startswith(("#", "```", "|", "-", "!", ">", "<!--")):
                sentence = re.split(r"(?<=[.!?])\s", text)[0]
                return re.sub(r"[`*]", "", PAGE_LINK.sub(r"\1", sentence))
        return ""


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
    """Show the manual, one topic a page."""
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


def read_pages(folder: Path = FOLDER) -> list[Page]:
    """Return the pages in the order in which the index links them, then those it does not link."""
    pages: dict[str, Page] = {}
    for path in sorted(folder.glob("*.md")):
        if path.stem != INDEX:
            pages[path.stem] = Page(topic=path.stem, text=path.read_text(encoding="utf-8"))
    ordered: list[Page] = []
    for topic in linked_topics(folder):
        if topic in pages:
            ordered.append(pages.pop(topic))
    return ordered + list(pages.values())


def linked_topics(folder: Path = FOLDER) -> list[str]:
    """Return the topics that the index links, each once, in its order."""
    index = folder / f"{INDEX}.md"
    if not index.is_file():
        return []
    links = PAGE_LINK.findall(index.read_text(encoding="utf-8"))
    return list(dict.fromkeys(topic for _, topic in links))


def _list_topics(pages: list[Page]) -> None:
    """Print a line for each topic, with its title, and its summary below."""
    width = max((len(page.topic) for page in pages), default=0)
    for page in pages:
        print(f"{page.topic:{width}}  {page.title}")
        if page.summary:
            print(f"{'':{width}}  {page.summary}")
    print("\nShow a page with: harness guide TOPIC")


def _show(page: Page) -> None:
    """Print the page: rendered and paged on a terminal, as it was written elsewhere."""
    if not sys.stdout.isatty():
        print(page.text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    # less needs -R to pass colors on; -F and -X make it leave a page that fits on the screen there.
    os.environ.setdefault("LESS", "-FRX")
    console = Console(highlight=False)
    with console.pager(styles=True):
        console.print(Markdown(name_commands(page.text)))


def name_commands(text: str) -> str:
    """Return the Markdown with each link to another page followed by the command that shows it."""
    return PAGE_LINK.sub(r"\1 (`harness guide \2`)", text)
