"""Rows that HTML draws without a plot: bars, intervals and shades.

Positions and widths are in percent of the space that a row has, so that a row fits any screen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.render.chart import COLORS, tint
from harness.render.table import Styled

Bounds = tuple[float, float]  # the low and the high end of an interval

RATIO_TICKS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99,
    1, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100,
)  # fmt: skip
TICK_STEPS = (1, 2, 5, 10, 20)  # tenths of the power of ten that a linear scale spans
MAX_TICKS = 6
MIN_TICK_DISTANCE = 100 / MAX_TICKS / 2  # percent between the ticks of a scale of ratios
PADDING = 0.05  # of a scale beyond its outermost values, as a share of its width


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a bar, such as one phase of a step."""

    width: float  # percent of the space for the bar
    color: str  # `#rrggbb`
    name: str  # shown when the mouse rests on it


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row with a bar that is made of parts, and a text next to it."""

    label: str
    parts: Sequence[Part]
    text: str


NO_BADGE = Styled("", "plain")


@dataclass(frozen=True, kw_only=True)
class Span:
    """A row with a dot for a value, a line for its interval and a text next to them.

    A value without an interval has a hollow dot.
    """

    label: str
    position: float  # percent
    low: float | None  # percent; None without an interval
    high: float | None  # percent
    ends: str  # the ends of the interval that are beyond the scale: open-low, open-high
    text: str
    badge: Styled


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """Rows under one title."""

    title: str
    rows: Sequence[Bar | Span]
    legend: Sequence[tuple[str, str]] = ()  # colors and names
    ticks: Sequence[tuple[float, str]] = ()  # positions in percent, and labels
    mark: float | None = None  # percent at which a line stands for the reference
    note: str = ""


class Scale:
    """A linear scale that contains all values, and their intervals unless these are far longer.

    A long interval is cut off, so that it does not squeeze all values into one spot.
    """

    REACH = 6.0  # how far intervals may reach beyond all values, in widths of the values' range
    MIN_WIDTH = 1e-3  # of a scale of values that are all alike; for those above 1, a share of them

    def __init__(self, values: Sequence[float], bounds: Sequence[float] = ()) -> None:
        """Fit the scale to values and to the ends of their intervals.

        There has to be a value. Values that are all alike get a scale of MIN_WIDTH around them, or of
        their whole intervals, as there is no distance between values that a long one would hide.
        """
        smallest = min(values)
        largest = max(values)
        spread = largest - smallest
        width = max(spread, self.MIN_WIDTH * max(1.0, abs(smallest), abs(largest)))
        lowest = min([smallest, *bounds])
        highest = max([largest, *bounds])
        if spread or math.isinf(highest - lowest):
            lowest = max(smallest - self.REACH * width, lowest)
            highest = min(largest + self.REACH * width, highest)
        else:
            width = max(width, highest - lowest)
        self.low = lowest - PADDING * width
        self.high = highest + PADDING * width

    def contains(self, value: float) -> bool:
        """Return whether a value is on the scale."""
        return self.low <= value <= self.high

    def position(self, value: float) -> float:
        """Return where a value is, in percent; a value beyond the scale is moved to its end."""
        inside = min(max(value, self.low), self.high)
        return 100 * (inside - self.low) / (self.high - self.low)

    def span(
        self, label: str, value: float, bounds: Bounds | None, text: str, badge: Styled = NO_BADGE
    ) -> Span:
        """Return the row of a value; `bounds` are the ends of its interval, None without one."""
        low = high = None
        ends = []
        if bounds is not None:
            low, high = map(self.position, bounds)
            sides = zip(("open-low", "open-high"), bounds, strict=True)
            ends = [end for end, bound in sides if not self.contains(bound)]
        return Span(
            label=label,
            position=self.position(value),
            low=low,
            high=high,
            ends=" ".join(ends),
            text=text,
            badge=badge,
        )

    def ticks(self) -> list[tuple[float, str]]:
        """Return at most MAX_TICKS ticks, at multiples of 1, 2 or 5 times a power of ten.

        A tick is its position in percent and its label.
        """
        width = self.high - self.low
        power = 10.0 ** math.floor(math.log10(width))
        step = power
        for factor in TICK_STEPS:  # the smallest that gives at most MAX_TICKS ticks
            step = factor * power / 10
            if width / step <= MAX_TICKS:
                break
        lowest = math.ceil(self.low / step)
        highest = math.floor(self.high / step)
        ticks = []
        for number in range(lowest, highest + 1):
            value = number * step
            ticks.append((self.position(value), f"{value:.6g}"))
        return ticks


class RatioScale(Scale):
    """A logarithmic scale of ratios that contains 1, whatever the ratios are.

    `low` and `high` are natural logarithms; values and bounds are passed as ratios.
    """

    REACH = 2.0
    MIN_WIDTH = 0.02  # in natural logarithms: 2%

    def __init__(self, ratios: Sequence[float], bounds: Sequence[float] = ()) -> None:
        logs = [0.0]  # of 1
        for ratio in ratios:
            if 0 < ratio < math.inf:
                logs.append(math.log(ratio))
        super().__init__(logs, list(map(_log, bounds)))

    def contains(self, value: float) -> bool:
        return super().contains(_log(value))

    def position(self, value: float) -> float:
        return super().position(_log(value))

    def ticks(self) -> list[tuple[float, str]]:
        """Return ticks at round ratios, from 1 outwards, so far apart that labels do not overlap."""
        middle = RATIO_TICKS.index(1)
        upwards = RATIO_TICKS[middle + 1 :]
        downwards = RATIO_TICKS[:middle][::-1]
        ticks = [(self.position(1), "1×")]
        for direction in (upwards, downwards):
            last_position = self.position(1)
            for tick in filter(self.contains, direction):
                position = self.position(tick)
                if abs(position - last_position) >= MIN_TICK_DISTANCE:
                    ticks.append((position, f"{tick:g}×"))
                    last_position = position
        return sorted(ticks)


def _log(ratio: float) -> float:
    """Return the natural logarithm of a ratio.

    It is infinite for the bounds of an interval without an end, which `math.log` refuses for 0.
    """
    if ratio <= 0:
        return -math.inf
    if ratio == math.inf:
        return math.inf
    return math.log(ratio)


def bars(values: Sequence[tuple[str, float, str]]) -> list[Bar]:
    """Return a bar for each label, value and text; the largest takes all the space.

    Values are not negative. The order of the bars is that of the values.
    """
    largest = max(value for _, value, _ in values) or 1.0
    rows = []
    for label, value, text in values:
        part = Part(width=100 * value / largest, color=COLORS[0], name="")
        rows.append(Bar(label=label, parts=[part], text=text))
    return rows


def shade(ratio: float, strongest_ratio: float) -> str:
    """Return a color for a ratio: blue for faster, orange for slower, white for 1.

    The shade grows with the logarithm, up to that of `strongest_ratio`, so that half as fast has
    the same strength as twice as fast. The color is `#rrggbb`.
    """
    strength = abs(math.log(ratio)) / max(math.log(strongest_ratio), 1e-9)
    return tint(COLORS[0] if ratio > 1 else COLORS[1], min(1.0, strength))
