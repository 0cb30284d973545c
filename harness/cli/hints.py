"""Adds to errors of the command line what to write instead.

The parser's errors name what it did not expect, in words that are the same for every program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NO_OPTION = re.compile(r"No such option: -{1,2}(?P<name>[\w-]+)")
EXTRA = re.compile(r"Got unexpected extra argument\(s\) \((?P<word>\S+)\)")
MISSING = re.compile(r"Missing (?:argument|option) '(?P<name>[^']+)'")
WHAT_IS_MISSING: Mapping[str, str] = {
    "SWEEP": "a sweep file, or the name of a sweep such as quickstart",
    "--cluster": "a cluster profile: its file, or the name of one in clusters/",
}


def usage_hint(message: str, arguments: Sequence[str]) -> str:
    """Return what to write instead of `arguments`, empty if that is not known.

    `message` is the parser's about them.
    """
    if match := NO_OPTION.search(message):
        return _instead_of_option(match["name"], arguments)
    if match := EXTRA.search(message):
        # It was meant for `--set`: `precision=bf16`, or 3 after `--set seeds`.
        word = match["word"]
        if "=" in word:
            return f"did you mean `--set {word}`?"
        for option, name, value in zip(arguments, arguments[1:], arguments[2:], strict=False):
            if option == "--set" and "=" not in name and value == word:
                return f"did you mean `--set {name}={word}`?"
        return ""
    if match := MISSING.search(message):
        meaning = WHAT_IS_MISSING.get(match["name"])
        return f"needed: {meaning}" if meaning else ""
    return ""


def _instead_of_option(name: str, arguments: Sequence[str]) -> str:
    """Return the `--set` that an unknown option with the name of an axis was meant as."""
    from harness.spec.axes import AXES  # only now: most commands need no axes

    axis = name.replace("-", "_")
    if axis not in AXES:
        return ""
    value = "VALUE"
    for number, argument in enumerate(arguments):
        option, equals, text = argument.partition("=")
        if option.lstrip("-") == name:
            value = text if equals else next(iter(arguments[number + 1 :]), value)
    return f"did you mean `--set {axis}={value}`?"
