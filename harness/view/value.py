"""Writes values as text: the one place that decides units, digits and how intervals look.

The terminal, the HTML report, Markdown and MLflow all write through this module, so that a number reads
the same everywhere. It loads neither NumPy nor SciPy, because `harness plan` uses it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.statistics.interval import Interval
from harness.statistics.verdict import MetricVerdict

# What a text says of its subject, beyond the words. The report's looks are in templates/report.css.
Look = Literal["plain", "strong", "better", "same", "worse", "failed", "invalid", "open", "quiet"]
# The looks of words: states of trials, verdicts, outcomes, rungs and marks.
LOOKS: Mapping[str, Look] = {
    **dict.fromkeys(["done", "better", "faster", "good", "repeated", "reproduced"], "better"),
    **dict.fromkeys(["bitwise", "rounding"], "better"),
    **dict.fromkeys(["same", "not slower", "equivalent"], "same"),
    **dict.fromkeys(["worse", "slower", "bad", "different"], "worse"),
    **dict.fromkeys(["failed", "not measured", "lost", "unreadable"], "failed"),
    "invalid": "invalid",
    **dict.fromkeys(["interrupted", "missing", "inconclusive", "skip"], "open"),
    **dict.fromkeys(["queued", "cancelled", "first", "reference"], "quiet"),
    "running": "strong",
}
# What the numbers of a column are.
Kind = Literal[
    "text", "count", "number", "rate", "metric", "milliseconds", "percent", "bytes", "duration",
]  # fmt: skip

MISSING = "–"  # stands for what was not measured
BINARY_UNITS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
FINE = 0.1  # width of an interval of ratios below which a third digit says something
WIDEST_SYMMETRIC = 0.5  # the half width of an interval, up to which it is written with ±
LARGEST_EFFECT = 10.0  # a change above it, 1,000%, is not worth its digits


@dataclass(frozen=True)
class Styled:
    """A text with a look: a verdict, a certainty, a status."""

    text: str
    look: Look

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Effect:
    """How B differs from A, with the interval: a ratio, a change of a ratio, or a difference."""

    value: float
    bounds: tuple[float, float] | None = None  # None where too few values give no interval
    scale: Literal["ratio", "change", "difference"] = "ratio"

    def __str__(self) -> str:
        """Return `1.13× (1.10 to 1.16)`, `-5.0% (-6.0% to -4.0%)`, or `+0.0012 (+0.0001 to +0.0023)`."""
        written = self._write(self.value)
        if self.scale == "ratio":
            written += "×"
        if self.bounds is None:
            return written
        low, high = self.bounds
        return f"{written} ({self._write(low)} to {self._write(high)})"

    def _write(self, value: float) -> str:
        """Return the effect or a bound of it; a ratio in a narrow interval has a third digit."""
        if self.scale == "ratio":
            digits = 2
            if self.bounds is not None and self.bounds[1] - self.bounds[0] < FINE:
                digits = 3
            return f"{value:.{digits}f}"
        if self.scale == "difference":
            return f"{value:+.4f}"
        if value > 1 + LARGEST_EFFECT:
            return f">{LARGEST_EFFECT:+,.0%}"
        return f"{value - 1:+.1%}"


def styled(word: str) -> Styled:
    """Return a word that has a look of its own with that look."""
    return Styled(word, LOOKS.get(word, "open"))


# What a field of a table or a line holds. A number is written by the kind of its column; texts in a
# sequence follow each other.
Value = str | float | None | Styled | Effect | Interval | Sequence[str | Styled]


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    total = max(0, round(seconds))
    whole_minutes, whole_seconds = divmod(total, 60)
    hours, minutes = divmod(whole_minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {whole_seconds} s"
    return f"{whole_seconds} s"


def byte_size(size: float) -> str:
    """Return a number of bytes in binary units: `4 B`, `64 KiB`, `8 MiB`."""
    for unit, factor in BINARY_UNITS.items():
        if size / factor >= 0.99995:  # which four digits show as 1
            return f"{size / factor:.4g} {unit}"
    return f"{size:g} B"


def three_digits(value: float) -> str:
    """Return three significant digits, and all digits of 1,000 and more: `0.00123`, `12.3`, `1,234`."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


WRITERS: Mapping[Kind, Callable[[Any], str]] = {
    "text": str,
    "count": "{:,}".format,
    "number": three_digits,
    "rate": three_digits,  # a throughput
    "metric": "{:.4f}".format,
    "milliseconds": "{:.2f}".format,
    "percent": lambda share: f"{share * 100:.3g}%",  # on CPUs it can be a small fraction
    "bytes": byte_size,
    "duration": duration,
}


def write(value: Value, kind: Kind = "text") -> str:
    """Return a value as text, a dash for what was not measured."""
    return "".join(piece.text for piece in pieces(value, kind))


def pieces(value: Value, kind: Kind = "text") -> list[Styled]:
    """Return the texts of a value, each with its look."""
    if isinstance(value, Styled):
        return [value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(itertools.chain.from_iterable(map(pieces, value)))
    text = MISSING
    if isinstance(value, str | Effect):
        text = str(value)
    elif isinstance(value, Interval):
        text = _write_mean(value, kind)
    elif value is not None:
        text = WRITERS[kind](value)
    return [Styled(text, "plain")]


def _write_mean(interval: Interval, kind: Kind) -> str:
    """Return a mean with the half width of its interval: `12,345 ±1.2%`, `0.9123 ±0.0012`.

    That of a rate is in percent. A wide one is far from symmetric, so its bounds are written out.
    """
    written = WRITERS[kind]
    mean = written(interval.mean)
    half_width = interval.half_width
    if interval.bounds is None or half_width is None:
        return mean
    if kind != "rate":
        return f"{mean} ±{written(half_width)}"
    if half_width <= WIDEST_SYMMETRIC * interval.mean:
        return f"{mean} ±{half_width / interval.mean:.1%}"
    low, high = interval.bounds
    return f"{mean} ({written(low)} to {written(high)})"


def effect_of(verdict: MetricVerdict) -> Effect:
    """Return the effect that a verdict is on, with its interval where that says anything."""
    scale: Literal["ratio", "difference"] = "difference"
    if verdict.metric.relative:
        scale = "ratio"
    return Effect(verdict.effect, verdict.interval, scale)
