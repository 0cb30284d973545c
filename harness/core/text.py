"""Puts numbers and lists into words, for messages of every package, and reads durations and sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from harness.core.errors import BadInput

SECONDS_PER_UNIT: Mapping[str, float] = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 trial`, `2 trials`."""
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def listed(texts: Sequence[str], most: int = 4) -> str:
    """Return the first texts, and how many more there are: `a, b and 3 more`; `none` for none."""
    line = ", ".join(texts[:most]) or "none"
    if len(texts) > most:
        line += f" and {len(texts) - most:,} more"
    return line


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in order, those that follow each other as a range: `0-3, 7`."""
    texts: list[str] = []
    start = last = -2
    for number in sorted(numbers):
        if number == last + 1:
            texts[-1] = f"{start}-{number}"
        else:
            texts.append(str(number))
            start = number
        last = number
    return ", ".join(texts)


def parse_duration(text: str, option: str, *, at_least: float = 0.0) -> float:
    """Return the seconds of `500ms`, `30s`, `10m` or `2h`; `option` is named in errors.

    Raises BadInput for less than `at_least` seconds, and for a number without a unit, which could
    be meant in seconds or in minutes.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text.strip())
    if match is None:
        raise BadInput(
            f"{option}: found {text!r}; allowed: a number with its unit, as in 30s, 10m or 2h"
        )
    seconds = float(match[1]) * SECONDS_PER_UNIT[match[2]]
    if seconds < at_least:
        raise BadInput(f"{option}: found {text!r}; allowed: at least {at_least:g}s")
    return seconds
