"""Reads the manual: the Markdown files of `harness/guide`, one topic each.

A page begins with a heading, which is its title, and a paragraph, whose first sentence is its
summary. `index.md` is for readers of the repository: it links the pages in the order in which
`harness guide` lists them, and is itself no topic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

# The pages are part of the package, so that the manual is there wherever the harness is installed.
FOLDER = Path(__file__).parent.parent / "guide"
INDEX = "index"  # the topic of the page that lists the others
# A link to another page, with or without an anchor: [text](topic.md#anchor).
PAGE_LINK = re.compile(r"\[([^\]]+)\]\((?:\./)?([\w-]+)\.md(?:#[\w-]*)?\)")


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of the manual."""

    topic: str  # the name of its file, without `.md`
    text: str  # Markdown

    @property
    def title(self) -> str:
        """Return the first heading, or the topic if the page has none."""
        return self.headings[0] if self.headings else self.topic

    @property
    def headings(self) -> list[str]:
        """Return the texts of the headings; in a block of code, `#` begins a comment."""
        headings = []
        in_code = False
        for line in self.text.splitlines():
            if line.startswith("```"):
                in_code = not in_code
            elif line.startswith("#") and not in_code:
                headings.append(line.lstrip("#").strip())
        return headings

    @property
    def summary(self) -> str:
        """Return the first sentence of the first paragraph, without its markup."""
        for paragraph in self.text.split("\n\n"):
            text = " ".join(paragraph.split())
            # Headings, code, tables, lists, images, quotes and comments are no prose.
            if text and not text.startswith(("#", "```", "|", "-", "!", ">", "<!--")):
                sentence = re.split(r"(?<=[.!?])\s", text)[0]
                return re.sub(r"[`*]", "", PAGE_LINK.sub(r"\1", sentence))
        return ""


class Relevance(IntEnum):
    """How much a page has to do with a word."""

    TITLED = 0  # a heading is the word
    HEADED = 1  # a heading has the word
    MENTIONED = 2


@dataclass(frozen=True, kw_only=True)
class PageMatch:
    """A page of the manual that has a word."""

    page: Page
    lines: list[tuple[int, str]]  # those that have the word, without indent, and their numbers
    relevance: Relevance


def read_pages(folder: Path = FOLDER) -> list[Page]:
    """Return the pages in the order in which the index links them, then those it does not link.

    A page that the index does not link is listed too, by its name: a forgotten link hides nothing.
    """
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
    """Return the topics that the index links, each once, in its order.

    A folder without an index has none, and its pages stay in the order of their names.
    """
    index = folder / f"{INDEX}.md"
    if not index.is_file():
        return []
    topics: list[str] = []
    for _, topic in PAGE_LINK.findall(index.read_text(encoding="utf-8")):
        if topic not in topics:
            topics.append(topic)
    return topics


def search_pages(pages: list[Page], text: str) -> list[PageMatch]:
    """Return the pages that have a word or several, the most relevant first.

    Upper case and plural endings do not matter: `strategies` finds `Strategy`.
    """
    stem = re.sub(r"(?<=\w{3})(?:ies|y|(?<!s)s)$", "", text.strip())
    pattern = re.compile(rf"(?<!\w){re.escape(stem)}", re.IGNORECASE)
    matches = []
    for page in pages:
        lines = []
        for number, line in enumerate(page.text.splitlines(), start=1):
            if pattern.search(line):
                lines.append((number, line.strip()))
        if not lines:
            continue
        relevance = Relevance.MENTIONED
        for heading in page.headings:
            match = pattern.search(heading)
            if match is None:
                continue
            is_whole = match.start() == 0 and " " not in heading[match.end() :]
            relevance = min(relevance, Relevance.TITLED if is_whole else Relevance.HEADED)
        matches.append(PageMatch(page=page, lines=lines, relevance=relevance))
    return sorted(matches, key=lambda match: match.relevance)


def name_commands(text: str) -> str:
    """Return the Markdown with each link to another page followed by the command that shows it."""
    return PAGE_LINK.sub(r"\1 (`harness guide \2`)", text)
