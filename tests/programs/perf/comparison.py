"""One row of the benchmark's table: what the harness takes beside what a user would pick instead."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from harness.statistics.interval import Interval, geometric_mean_interval

HEADER = "| what | harness | instead | | times as fast [95% interval] | n | goal | |"
RULE = "| --- | ---: | ---: | --- | --- | ---: | --- | --- |"
ROWS_PATH = (
    "BENCH_ROWS"  # a variable: the file in which a part, a process of its own, leaves its rows
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How many times as fast the harness is, over pairs that were measured in turn."""

    what: str
    instead: str  # what a user would pick, or what it is compared with
    unit: str  # of both values, such as samples/s
    ours: float  # the median
    theirs: float  # the median
    ratio: float  # the geometric mean over the pairs; above 1 where the harness is faster
    low: float | None  # the bounds of the 95% interval; None for a single pair
    high: float | None
    count: int  # pairs
    goal: float | None = None  # that the ratio should reach
    goal_low: float | None = None  # that the lower bound should reach

    @property
    def is_met(self) -> bool | None:
        """Return whether the goal is reached, None if there is none."""
        if self.goal is None:
            return None
        if self.goal_low is not None and (self.low is None or self.low < self.goal_low):
            return False
        return self.ratio >= self.goal

    def line(self) -> str:
        """Return the row below `HEADER`."""
        bounds = None
        if self.low is not None and self.high is not None:
            bounds = (self.low, self.high)
        goal = ""
        if self.goal is not None:
            goal = f"≥ {self.goal:g}"
        if self.goal_low is not None:
            goal += f", low end ≥ {self.goal_low:g}"
        cells = [
            self.what,
            _format(self.ours, self.unit),
            _format(self.theirs, self.unit),
            self.instead,
            format_interval(Interval(self.ratio, bounds, self.count)),
            str(self.count),
            goal,
            {None: "", True: "met", False: "not met"}[self.is_met],
        ]
        return f"| {' | '.join(cells)} |"


def compare(
    what: str,
    instead: str,
    seconds: Sequence[float],
    other_seconds: Sequence[float],
    *,
    work: float = 1.0,
    unit: str = "s",
    goal: float | None = None,
    goal_low: float | None = None,
) -> Comparison:
    """Return a row from the seconds of each pair, for the same work.

    Values are `work` over seconds where the unit is a rate, and seconds otherwise.
    """
    interval = ratio_of(seconds, other_seconds)
    low, high = interval.bounds or (None, None)
    ours, theirs = median(seconds), median(other_seconds)
    if unit.endswith("/s"):
        ours, theirs = work / ours, work / theirs
    return Comparison(
        what=what,
        instead=instead,
        unit=unit,
        ours=ours,
        theirs=theirs,
        ratio=interval.mean,
        low=low,
        high=high,
        count=interval.count,
        goal=goal,
        goal_low=goal_low,
    )


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


def _format(value: float, unit: str) -> str:
    """Return a value with three digits or more, and its unit."""
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f} {unit}"


def markdown_table(rows: Sequence[Comparison]) -> str:
    """Return the rows as a table of Markdown."""
    return "\n".join([HEADER, RULE, *(row.line() for row in rows)]) + "\n"


def leave_rows(rows: Sequence[Comparison]) -> None:
    """Write rows to the file of the environment's `ROWS_PATH`, if there is one."""
    path = os.environ.get(ROWS_PATH)
    if path:
        Path(path).write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")


def read_rows(path: Path) -> list[Comparison]:
    """Return the rows that `leave_rows` wrote."""
    return [Comparison(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
