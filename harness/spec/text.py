"""Checks of text that users write: of values and of names.

Both reach terminals, logs of CI systems and job scripts, where some characters are commands.
"""

from __future__ import annotations

import unicodedata

# Of Unicode: control characters, halves of surrogate pairs, which UTF-8 can't encode, and line and
# paragraph separators, at which some programs break lines.
CONTROL_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
MAX_NAME = 200  # characters; MLflow's database takes 256 for the name of an experiment
# Where a line of a log begins with one of these, GitHub takes it for a command to the runner.
CI_COMMANDS = ("::", "##[")


def find_control_character(text: str, besides: str = "") -> str | None:
    """Return the first control character of a text that is not in `besides`, None without any."""
    for character in text:
        if unicodedata.category(character) in CONTROL_CATEGORIES and character not in besides:
            return character
    return None


def problem_of_text(text: str) -> str | None:
    """Return why a text of several lines is refused as a value, None if it is not."""
    character = find_control_character(text, besides="\n\t")
    if character is None:
        return None
    return f"found {text!r}, with the character {character!r}; allowed: text without it"


def problem_of_name(name: str) -> str | None:
    """Return why a text is refused as the name of a sweep or a workload, None if it is not.

    Names are part of tables, paths, logs and links. An invisible character would make two of them
    look the same.
    """
    if not name.strip():
        return "found an empty name; allowed: any text"
    if not name.isprintable():
        return f"found {name!r}; allowed: a name in one line, of characters that can be seen"
    if len(name) > MAX_NAME:
        return f"found a name of {len(name)} characters; allowed: at most {MAX_NAME}"
    for command in CI_COMMANDS:
        if command in name:
            return f"found {name!r}; allowed: a name without {command}, a command in logs of CI"
    return None
