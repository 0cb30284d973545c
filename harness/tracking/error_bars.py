"""Draws error bars as text, because the columns of MLflow's table hold nothing else.

Letters of Braille are a grid of dots, two wide and four high, and all of a font's have the same
width, the blank one included. So the bars of several rows share one scale.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.result import CellResult

LETTERS = 16  # of a bar
DOTS = 2 * LETTERS  # of a bar, from left to right
BLANK = 0x2800  # the letter without dots, to which the bits of dots are added
# The bits of dots in the left column of a letter, and in its right one.
LINE_BITS = (0x06, 0x30)  # of the interval: the two in the middle
MEAN_BITS = (0x47, 0xB8)  # of the mean: all four


def error_bars(cells: Sequence[CellResult]) -> dict[str, str]:
    """Return a text with a line for the 95% interval and a mark at the mean, by the cell's id.

    All have the same scale, which goes from the lowest bound of any cell to the highest. Cells
    without a throughput have none.
    """
    intervals = {}
    for result in cells:
        if result.throughput is not None:
            mean = result.throughput.mean
            low, high = result.throughput.bounds or (mean, mean)
            intervals[result.cell.id] = (low, mean, high)
    if not intervals:
        return {}
    lowest = min(low for low, _, _ in intervals.values())
    highest = max(high for _, _, high in intervals.values())
    bars = {}
    for cell_id, (low, mean, high) in intervals.items():
        at = [_position(value, lowest, highest) for value in (low, mean, high)]
        bars[cell_id] = _draw(*at)
    return bars


def _position(value: float, lowest: float, highest: float) -> int:
    """Return the column of dots in which a value lies, from 0; the middle if all are equal."""
    if highest <= lowest:
        return DOTS // 2
    return round((value - lowest) / (highest - lowest) * (DOTS - 1))


def _draw(low: int, mean: int, high: int) -> str:
    """Return the bar of an interval, of which the columns of dots are given."""
    letters = [BLANK] * LETTERS
    for column in range(low, high + 1):
        bits = MEAN_BITS if column == mean else LINE_BITS
        letters[column // 2] |= bits[column % 2]
    return "".join(map(chr, letters))
