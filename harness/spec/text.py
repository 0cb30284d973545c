"""Checks of text that users write: of values and of names.

Both reach terminals, logs of CI systems and job scripts, where some characters are commands.
"""

from __future__ import annotations

import unicodedata

# Of Unicode: control characters, halves of surrogate pairs, which UTF-8 can't encode, and line and
# paragraph separators, at which some programs break lines.
CONTROL_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")


def find_control_character(text: str, besides: str = "") -> str | None:
    """Return the first control character of a text that is not in `besides`, None without any."""
    for character in text:
        if unicodedata.category(character) in CONTROL_CATEGORIES and character not in besides:
            return character
    return None
