"""Turns numbers, intervals, verdicts and settings into text: the one place that decides units and digits.

The terminal, the HTML report and MLflow all format through this module, so that a number reads the same everywhere.
It loads neither NumPy nor SciPy, because `harness plan` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.spec.axes import DEFAULTS

BINARY_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
SI_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 trial`, `2 trials`."""
    plural = "" if count == 1 else "s"
    return f"{count} {noun}{plural}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole_minutes, whole_seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(whole_minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {whole_seconds} s"
    return f"{whole_seconds} s"


def byte_size(size: float) -> str:
    """Return a number of bytes in binary units: `4 B`, `64 KiB`, `8 MiB`."""
    for factor, unit in BINARY_UNITS:
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size:g} B"


def rate(value: float, unit: str) -> str:
    """Return a rate per second with an SI prefix: `208 GFLOP/s`, `3.35 TB/s`."""
    return f"{si_prefixed(value)}{unit}/s"


def si_prefixed(value: float) -> str:
    """Return three significant digits with an SI prefix, ready for a unit: `208 G`, `3.35 T`."""
    for factor, prefix in SI_PREFIXES:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def changed_axes(axes: Mapping[str, Any]) -> str:
    """Return the axes that differ from their defaults: `strategy=ddp world_size=2`."""
    changed = [(name, value) for name, value in axes.items() if value != DEFAULTS.get(name, value)]
    return " ".join(f"{name}={value}" for name, value in changed) or "all defaults"
