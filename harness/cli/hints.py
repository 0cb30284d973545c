"""Adds to errors of the command line what to write instead.

The parser's errors name what it did not expect, in words that are the same for every program.
"""

from __future__ import annotations

import re

NO_OPTION = re.compile(r"No such option: -{1,2}(?P<name>[\w-]+)")
EXTRA = re.compile(r"Got unexpected extra argument\(s\) \((?P<word>\S+=\S+)\)")


def usage_hint(message: str) -> str:
    """Return the `--set` that an axis was meant as, empty if the parser's message is on something else."""
    if match := EXTRA.search(message):
        return f"did you mean `--set {match['word']}`?"
    if match := NO_OPTION.search(message):
        from harness.sweep.axes import AXES  # only now: most commands need no axes

        axis = match["name"].replace("-", "_")
        if axis in AXES:
            return f"did you mean `--set {axis}=VALUE`?"
    return ""
