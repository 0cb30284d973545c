"""Puts numbers into words, for messages of every package."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 trial`, `2 trials`."""
    plural = "" if count == 1 else "s"
    return f"{count} {noun}{plural}"
