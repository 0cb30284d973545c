"""What the shell offers after `--set`."""

from __future__ import annotations

from typing import Literal, get_args, get_origin

from harness.matrix import AXIS_TYPES


def complete_set(incomplete: str) -> list[str]:
    """Axis names, then the words that an axis takes, after a comma too."""
    axis, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in AXIS_TYPES if name.startswith(axis)]
    kind = AXIS_TYPES.get(axis)
    words = get_args(kind) if get_origin(kind) is Literal else ()
    before, comma, begun = value.rpartition(",")
    return [f"{axis}={before}{comma}{word}" for word in words if word.startswith(begun)]
