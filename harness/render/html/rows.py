"""What is drawn by HTML alone: bars, intervals and shades, as positions in percent, so that they fit any screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.render.chart import COLORS

TICKS = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.7,
    0.8,
    0.9,
    1,
    1.1,
    1.2,
    1.5,
    2,
    3,
    5,
    10,
    20,
    50,
    100,
)
MOST_TICKS = 6
PALEST, DARKEST = (
    255,
    0.6,
)  # white; how much of a colour a shade holds at most, so that dark text reads well on it


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a bar."""

    width: float  # percent
    colour: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    label: str
    parts: Sequence[Part]
    text: str


@dataclass(frozen=True)
class Verdict:
    """A word, and its look: better, worse, same, or open where nothing is certain."""

    word: str
    look: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """A value with its interval, if that is known."""

    label: str
    at: float  # percent
    low: float | None
    high: float | None
    ends: str  # which ends of the interval are cut off: open-low, open-high
    text: str
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows under one title, with a legend of colours and names, or with the labels of a scale in percent."""

    title: str
    rows: Sequence[Bar | Span]
    legend: Sequence[tuple[str, str]] = ()
    ticks: Sequence[tuple[float, str]] = ()
    mark: float | None = None  # percent at which a line stands for the reference
    note: str = ""


class Scale:
    """Holds all of some values, and the bounds of their intervals as far as values stay apart."""

    REACH = 6.0  # how far intervals may reach beyond all values, in widths of these

    def __init__(
        self, values: Sequence[float], bounds: Sequence[float] = (), least: float = 1e-3
    ) -> None:
        first, last = min(values), max(values)
        width = max(last - first, least)
        self.low = max(first - self.REACH * width, min([first, *bounds])) - 0.05 * width
        self.high = min(last + self.REACH * width, max([last, *bounds])) + 0.05 * width

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def place(self, value: float) -> float:
        """In percent, kept inside."""
        return 100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)

    def span(
        self,
        label: str,
        value: float,
        bounds: tuple[float, float] | None,
        text: str,
        verdict: Verdict,
    ) -> Span:
        low, high = bounds or (None, None)
        ends = [("open-low", low), ("open-high", high)]
        return Span(
            label=label,
            at=self.place(value),
            low=None if low is None else self.place(low),
            high=None if high is None else self.place(high),
            ends=" ".join(
                name for name, bound in ends if bound is not None and not self.holds(bound)
            ),
            text=text,
            verdict=verdict,
        )

    def ticks(self) -> list[tuple[float, str]]:
        """At multiples of 1, 2 or 5 in a decade."""
        power = 10 ** math.floor(math.log10(self.high - self.low))
        steps = (factor * power / 10 for factor in (1, 2, 5, 10, 20))
        step = next(step for step in steps if (self.high - self.low) / step <= MOST_TICKS)
        inside = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [(self.place(at * step), f"{at * step:.6g}") for at in inside]


class Ratios(Scale):
    """A logarithmic one that holds 1 too."""

    REACH = 2.0

    def __init__(self, ratios: Sequence[float], bounds: Sequence[float] = ()) -> None:
        logs = [_log(ratio) for ratio in (*ratios, 1.0) if 0 < ratio < math.inf]
        super().__init__(logs, [_log(bound) for bound in bounds], least=0.02)

    def holds(self, value: float) -> bool:
        return super().holds(_log(value))

    def place(self, value: float) -> float:
        return super().place(_log(value))

    def ticks(self) -> list[tuple[float, str]]:
        inside = [tick for tick in TICKS if self.holds(tick)]
        every = math.ceil(len(inside) / MOST_TICKS)
        one = inside.index(1)
        return [(self.place(tick), f"{tick:g}×") for tick in inside[one % every :: every]]


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else -math.inf if ratio <= 0 else math.inf


def bars(values: Sequence[tuple[str, float, str]], colour: str = COLORS[0]) -> list[Bar]:
    """From labels, values and texts: the largest is as wide as there is room."""
    largest = max(value for _, value, _ in values) or 1.0
    return [
        Bar(
            label=label,
            parts=[Part(width=100 * value / largest, colour=colour, name="")],
            text=text,
        )
        for label, value, text in values
    ]


def shade(ratio: float, strongest: float) -> str:
    """Blue for faster, orange for slower, by the logarithm; `strongest` is the ratio of the full shade."""
    share = min(1.0, abs(math.log(ratio)) / max(math.log(strongest), 1e-9)) * DARKEST
    colour = COLORS[0] if ratio > 1 else COLORS[1]
    channels = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(
        f"{round(PALEST + (channel - PALEST) * share):02x}" for channel in channels
    )
