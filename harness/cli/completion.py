"""What the shell offers after `--set`."""

from __future__ import annotations

from harness.spec.axes import AXIS_TYPES, axis_choices


def complete_set(incomplete: str) -> list[str]:
    """Axis names, then the words that an axis takes, after a comma too."""
    axis, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in AXIS_TYPES if name.startswith(axis)]
    words = axis_choices(axis)
    before, comma, begun = value.rpartition(",")
    return [f"{axis}={before}{comma}{word}" for word in words if word.startswith(begun)]
