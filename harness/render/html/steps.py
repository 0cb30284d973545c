"""Step times: their course over a trial with the steady state marked, and their distribution in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.measure.summary import find_window, unpack
from harness.records.record import Record
from harness.records.series import Numbers
from harness.render.html.facts import CellFacts

POINTS = 120  # of a course
BINS = 24  # of a distribution
HIGHEST = 3.0  # medians that the course has room for: what compiles or stalls is cut off


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Drawn in boxes of 100 by 100, upside down as SVG is. `steady` are stretches, begin and width."""

    label: str
    course: str  # points of a line
    steady: Sequence[tuple[float, float]]
    distribution: str  # points of an outline
    range: tuple[str, str]  # milliseconds at the distribution's ends
    text: str


def steps_of(cell: CellFacts) -> Steps | None:
    """The course is of the first trial, the distribution of all; a step takes as long as at its slowest rank."""
    traces = [_trace(record) for record in cell.done if record.ranks[0].step_seconds]
    traces = [(seconds, inside) for seconds, inside in traces if inside.sum() >= 2]
    if not traces:
        return None
    measured = np.concatenate([seconds[inside] for seconds, inside in traces]) * 1e3
    p50, p90, p99 = np.percentile(measured, (50, 90, 99))
    settled = [summary.settled for summary in cell.summaries]
    known = (
        "never steady, measured"
        if False in settled
        else "measured"
        if None in settled
        else "steady"
    )
    start = cell.summaries[0].window_start
    low, high = np.percentile(measured, (0.5, 99.5))
    seconds, inside = traces[0]
    return Steps(
        label=cell.name,
        course=_course(seconds * 1e3 / p50),
        steady=_stretches(inside),
        distribution=_outline(measured, low, high),
        range=(_short(low), f"{_short(high)} ms"),
        text=f"p50 {_short(p50)}, p90 {_short(p90)}, p99 {_short(p99)} ms; {known} from step {start}",
    )


def _short(milliseconds: float) -> str:
    """In three digits or more."""
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _trace(record: Record) -> tuple[Numbers, NDArray[np.bool_]]:
    seconds = np.stack([unpack(rank.step_seconds) for rank in record.ranks]).max(axis=0)
    resumed = [taken_up.step for taken_up in record.ranks[0].interruptions]
    return seconds, find_window(seconds, record.trial.cell.warmup, resumed).mask


def _course(relative: Numbers) -> str:
    """The largest of each bin, so that a straggling step is seen."""
    bins = np.array_split(relative, min(POINTS, len(relative)))
    heights = np.minimum([part.max() for part in bins], HIGHEST) / HIGHEST * 100
    places = (np.arange(len(bins)) + 0.5) / len(bins) * 100
    return " ".join(f"{x:.1f},{100 - y:.1f}" for x, y in zip(places, heights, strict=True))


def _stretches(inside: NDArray[np.bool_]) -> list[tuple[float, float]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(int)))
    return [(100 * a / len(inside), 100 * (b - a) / len(inside)) for a, b in edges.reshape(-1, 2)]


def _outline(values: Numbers, low: float, high: float) -> str:
    counts, _ = np.histogram(values, bins=BINS, range=(low, high if high > low else low + 1e-9))
    heights = 100 - counts / max(1, counts.max()) * 96
    points = [
        (100 * (at + side) / BINS, height) for at, height in enumerate(heights) for side in (0, 1)
    ]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in [(0, 100), *points, (100, 100)])
