"""Texts for what CI shows: Markdown of a comment or a summary.

Names and messages in them may come from a pull request, and have any character.
"""

from __future__ import annotations

import re

from harness.core.errors import one_line

LONGEST_TEXT = 2000  # characters of a name or a sentence
ZERO_WIDTH_SPACE = "\u200b"  # after `@`, it keeps GitHub from mentioning somebody


def escape_markdown(text: str) -> str:
    """Return the text in one line without markup, mentions and references.

    A comment is written by somebody whom GitHub lets mention everybody.
    """
    escaped = re.sub(r"([\\`*_\[\]<>|~&!])", r"\\\1", printable(text))
    return re.sub(r"[@#]", lambda match: match[0] + ZERO_WIDTH_SPACE, escaped)


def printable(text: str) -> str:
    """Return the text in one line, without what a terminal obeys."""
    return one_line(text, LONGEST_TEXT)
