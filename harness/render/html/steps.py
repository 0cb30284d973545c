"""Step times: their course over a trial with the steady state marked, and their distribution.

A mean hides what a course shows: a warm-up that is too short, a compilation in the middle, stalls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.measure.summary import measured_window, unpack
from harness.records.record import Record, Summary
from harness.records.series import Numbers
from harness.render.html.report import ReportCell

COURSE_POINTS = 120  # at most, of a course
BINS = 24  # of a distribution
COURSE_TOP = 3.0  # medians at the top of a course; steps that compile or stall are cut off there
PEAK_HEIGHT = 96  # percent of the box that the highest bin of a distribution takes
FEWEST_STEPS = 2  # that a trial must have measured to be drawn


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The step times of a cell, drawn in boxes of 100 by 100 in which y points down, as in SVG."""

    label: str  # the cell's name
    course: str  # points of a line
    steady: Sequence[tuple[float, float]]  # the beginning and width of each steady segment
    distribution: str  # points of an outline
    range: tuple[str, str]  # milliseconds at both ends of the distribution
    text: str


@dataclass(frozen=True)
class Trace:
    """The steps of one trial."""

    seconds: Numbers  # of the slowest rank at each step, shape (steps,)
    is_measured: NDArray[np.bool_]  # whether a step is in the measured window, shape (steps,)


def step_times(cell: ReportCell) -> StepTimes | None:
    """Return the step times of a cell, None if too few steps were measured.

    The course is of the first trial, the distribution of all done trials. A step takes as long as
    at the slowest rank, because the others wait for it.
    """
    traces = []
    for record in cell.done:
        if record.ranks[0].step_seconds:
            trace = _trace(record)
            if trace.is_measured.sum() >= FEWEST_STEPS:
                traces.append(trace)
    if not traces:
        return None
    measured = np.concatenate([trace.seconds[trace.is_measured] for trace in traces]) * 1e3
    p50, p90, p99 = np.percentile(measured, (50, 90, 99))
    low, high = np.percentile(measured, (0.5, 99.5))
    percentiles = f"p50 {_short(p50)}, p90 {_short(p90)}, p99 {_short(p99)} ms"
    start = cell.summaries[0].window_start
    return StepTimes(
        label=cell.name,
        course=_course(traces[0].seconds * 1e3 / p50),
        steady=_segments(traces[0].is_measured),
        distribution=_outline(measured, low, high),
        range=(_short(low), f"{_short(high)} ms"),
        text=f"{percentiles}; {_steadiness(cell.summaries)} from step {start}",
    )


def _steadiness(summaries: Sequence[Summary]) -> str:
    """Return what the measured steps are: `steady`, unless a trial has none or too few to tell."""
    settled = [summary.settled for summary in summaries]
    if False in settled:
        return "never steady, measured"
    if None in settled:
        return "measured"
    return "steady"


def _short(milliseconds: float) -> str:
    """Return a number with three significant digits or more: `9.87`, `12.3`, `1,234`."""
    if milliseconds >= 100:
        return f"{milliseconds:,.0f}"
    return f"{milliseconds:.3g}"


def _trace(record: Record) -> Trace:
    """Return the steps of a trial; the steps after a resumption count as warm-up again."""
    seconds = np.stack([unpack(rank.step_seconds) for rank in record.ranks]).max(axis=0)
    window = measured_window(record.ranks, record.trial.cell.warmup)
    return Trace(seconds=seconds, is_measured=window.mask)


def _course(relative: Numbers) -> str:
    """Return the points of a line through step times relative to their median.

    Each point is the largest of its bin, so that a single straggling step is visible.
    """
    bins = np.array_split(relative, min(COURSE_POINTS, len(relative)))
    heights = np.minimum([steps.max() for steps in bins], COURSE_TOP) / COURSE_TOP * 100
    positions = (np.arange(len(bins)) + 0.5) / len(bins) * 100
    return _points(zip(positions, 100 - heights, strict=True))


def _segments(inside: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """Return the beginning and the width of each run of True, in percent of the length.

    There are several where a trial was interrupted and resumed.
    """
    padded = np.concatenate([[False], inside, [False]]).astype(int)
    edges = np.flatnonzero(np.diff(padded)).reshape(-1, 2)
    steps = len(inside)
    return [(100 * start / steps, 100 * (end - start) / steps) for start, end in edges]


def _outline(values: Numbers, low: float, high: float) -> str:
    """Return the points of a histogram's outline between two values, in milliseconds.

    The outline begins and ends on the base line, so that it can be filled.
    """
    if high <= low:
        high = low + 1e-9  # NumPy refuses an empty range
    counts, _ = np.histogram(values, bins=BINS, range=(low, high))
    tops = 100 - counts / max(1, counts.max()) * PEAK_HEIGHT
    points: list[tuple[float, float]] = [(0, 100)]
    for number, top in enumerate(tops):
        points.append((100 * number / BINS, top))
        points.append((100 * (number + 1) / BINS, top))
    points.append((100, 100))
    return _points(points)


def _points(points: Iterable[tuple[float, float]]) -> str:
    """Return points as SVG writes them: `0.4,66.7 1.2,65.9`."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
