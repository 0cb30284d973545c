"""One row of the benchmark's table: what the harness takes beside what a user would pick instead."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.statistics.interval import geometric_mean_interval

HEADER = (
    "what",
    "harness",
    "instead",
    "",
    "times as fast [95% interval]",
    "CPU time",
    "n",
    "goal",
    "",
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How many times as fast the harness is, over pairs that were measured in turn."""

    what: str
    instead: str  # what a user would pick, or what it is held against
    unit: str  # of both values, such as samples/s
    ours: float  # the median
    theirs: float  # the median
    ratio: float  # the geometric mean over the pairs; above 1 where the harness is faster
    low: float | None  # the bounds of the 95% interval; None for a single pair
    high: float | None
    count: int  # pairs
    cpu_ratio: float | None = None  # the same of CPU time, which neighbors disturb less
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

    def cells(self) -> list[str]:
        """Return the columns of `HEADER`."""
        interval = f"{self.ratio:.3g}"
        if self.low is not None and self.high is not None:
            digits = 3 if self.ratio < 2 else 1
            interval = f"{self.ratio:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        goal = ""
        if self.goal is not None:
            goal = f"≥ {self.goal:g}"
        if self.goal_low is not None:
            goal += f", low end ≥ {self.goal_low:g}"
        verdict = {None: "", True: "met", False: "not met"}[self.is_met]
        cpu_ratio = ""
        if self.cpu_ratio is not None:
            cpu_ratio = f"{self.cpu_ratio:.3f}"
        return [
            self.what,
            _format(self.ours, self.unit),
            _format(self.theirs, self.unit),
            self.instead,
            interval,
            cpu_ratio,
            str(self.count),
            goal,
            verdict,
        ]


def compare(
    what: str,
    instead: str,
    seconds: Sequence[float],
    other_seconds: Sequence[float],
    *,
    work: float = 1.0,
    unit: str = "s",
    cpu: tuple[Sequence[float], Sequence[float]] | None = None,
    goal: float | None = None,
    goal_low: float | None = None,
) -> Comparison:
    """Return a row from the seconds of each pair, for the same work.

    Values are `work` over seconds where the unit is a rate, and seconds otherwise. Intervals are
    Student's over the logarithms of the ratios.
    """
    interval = geometric_mean_interval(_ratios(seconds, other_seconds))
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
        cpu_ratio=geometric_mean_interval(_ratios(*cpu)).mean if cpu else None,
        goal=goal,
        goal_low=goal_low,
    )


def _ratios(seconds: Sequence[float], other_seconds: Sequence[float]) -> list[float]:
    """Return how many times as long the other took in each pair."""
    return [theirs / ours for ours, theirs in zip(seconds, other_seconds, strict=True)]


def _format(value: float, unit: str) -> str:
    """Return a value with three digits or more, and its unit."""
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f} {unit}"


def markdown_table(rows: Sequence[Comparison]) -> str:
    """Return the rows as a table of Markdown."""
    lines = [
        f"| {' | '.join(HEADER)} |",
        "| --- | ---: | ---: | --- | --- | --- | ---: | --- | --- |",
    ]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    return "\n".join(lines) + "\n"


# A part of the benchmark is a process of its own, which leaves its rows in this file.
ROWS_PATH = "BENCH_ROWS"


def leave_rows(rows: Sequence[Comparison]) -> None:
    """Write rows to the file of the environment's `ROWS_PATH`, if there is one."""
    path = os.environ.get(ROWS_PATH)
    if path:
        Path(path).write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")


def read_rows(content: Sequence[Mapping[str, Any]]) -> list[Comparison]:
    """Return rows from what `leave_rows` wrote."""
    return [Comparison(**row) for row in content]
