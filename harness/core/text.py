"""Puts numbers into words, for messages of every package."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 trial`, `2 trials`."""
    plural = "" if count == 1 else "s"
    return f"{count} {noun}{plural}"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in order, those that follow each other as a range: `0-3, 7`."""
    limits: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if limits and number == limits[-1][1] + 1:
            limits[-1] = (limits[-1][0], number)
        else:
            limits.append((number, number))
    texts = [str(start) if start == end else f"{start}-{end}" for start, end in limits]
    return ", ".join(texts)
