"""One row of the benchmark's table: what the harness takes beside what a user would pick instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from harness.statistics.interval import Interval, geometric_mean_interval
from tests.programs.perf.results import Row


def compare(
    what: str,
    instead: str,
    seconds: Sequence[float],
    other_seconds: Sequence[float],
    *,
    work: float | None = None,
    goal: float | None = None,
    goal_low: float = 0.0,
) -> Row:
    """Return a row from the seconds of each pair, for the same work.

    With `work`, in samples, values are samples/s. The mean ratio should reach `goal`, and the lower end of its
    interval `goal_low`.
    """
    interval = ratio_of(seconds, other_seconds)
    low = interval.mean if interval.bounds is None else interval.bounds[0]
    goal_text = reached = ""
    if goal is not None:
        goal_text = f"≥ {goal:g}, low end ≥ {goal_low:g}" if goal_low else f"≥ {goal:g}"
        reached = "met" if interval.mean >= goal and low >= goal_low else "not met"
    return {
        "what": what,
        "harness": _value(median(seconds), work),
        "instead": instead,
        "takes": _value(median(other_seconds), work),
        "times as fast [95% interval]": format_interval(interval),
        "n": str(interval.count),
        "goal": goal_text,
        "reached": reached,
    }


def ratio_of(seconds: Sequence[float], other_seconds: Sequence[float]) -> Interval:
    """Return how many times as fast as the other it is, over pairs of seconds for the same work."""
    pairs = zip(seconds, other_seconds, strict=True)
    return geometric_mean_interval([theirs / ours for ours, theirs in pairs])


def format_interval(interval: Interval) -> str:
    """Return an interval as in `1.42 [1.40, 1.44]`."""
    digits = 3 if interval.mean < 2 else 1
    text = f"{interval.mean:.{digits}f}"
    if interval.bounds is None:
        return text
    low, high = interval.bounds
    return f"{text} [{low:.{digits}f}, {high:.{digits}f}]"


def _value(seconds: float, work: float | None) -> str:
    """Return seconds, or samples/s, with three digits or more."""
    value, unit = (seconds, "s") if work is None else (work / seconds, "samples/s")
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f} {unit}"
