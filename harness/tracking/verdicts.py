"""The metrics, tags and error bars by which MLflow shows what is certain about a sweep's cells.

They are columns of the page that `harness ui` opens, and can be sorted and filtered by. All of them
are read from the model of results; nothing is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from harness.analysis.parity import SweepParity
from harness.analysis.result import CellResult
from harness.analysis.scalars import RATES, metric_name, target_name
from harness.analysis.sweep_result import SweepResult
from harness.preflight.rates import RateSearch
from harness.render import parity as texts
from harness.render.format import SI_PREFIXES
from harness.spec.cell import Cell
from harness.tracking.markdown import DESCRIPTION_TAG, comparison_note

# Error bars are drawn as text, because the columns of MLflow's table hold nothing else. Letters of
# Braille are a grid of dots, two wide and four high, and all of a font's have the same width, the
# blank one included. So the bars of several rows share one scale.
LETTERS = 10  # of a bar
DOTS = 2 * LETTERS  # of a bar, from left to right
BLANK = 0x2800  # the letter without dots, to which the bits of dots are added
# The bits of dots in the left column of a letter, and in its right one.
LINE_BITS = (0x06, 0x30)  # of the interval: the two in the middle
MEAN_BITS = (0x47, 0xB8)  # of the mean: all four


def mean_metrics(result: CellResult) -> dict[str, float]:
    """Return the means of a cell's throughput and target metric, over its done trials.

    They are the centers of their intervals: where a seed has several repeats, it counts once.
    """
    metrics = {}
    if result.throughput is not None:
        metrics[RATES[result.throughput_unit]] = result.throughput.mean
    if result.metric is not None and result.target is not None:
        name = metric_name(f"final_{target_name(result.target.name)}")
        metrics[name] = result.metric.mean
    return metrics


def interval_metrics(result: CellResult) -> dict[str, float]:
    """Return the 95% interval of the mean throughput, and how many independent values it rests on.

    `harness.ci_low` and `harness.ci_high` are in the unit of the throughput; `harness.ci_count` is that
    of seeds. A single seed has no interval, and a cell that was not measured has no metrics.
    """
    if result.throughput is None:
        return {}
    metrics = {"harness.ci_count": float(result.throughput.count)}
    if result.throughput.bounds is not None:
        metrics["harness.ci_low"], metrics["harness.ci_high"] = result.throughput.bounds
    return _finite(metrics)


def verdict_metrics(result: SweepResult, cell: Cell) -> dict[str, float]:
    """Return a cell's speedup over the reference with its interval, and the detectable effect.

    `harness.speedup` is a ratio, and so are its bounds; `harness.min_detectable_effect` is a
    fraction. The reference has none. A bound that is infinite has no metric.
    """
    row = result.throughput_row(cell)
    if row is None:
        return {}
    metrics = {"harness.speedup": row.verdict.effect}
    if row.verdict.interval is not None:
        metrics["harness.speedup_low"], metrics["harness.speedup_high"] = row.verdict.interval
        if row.verdict.min_detectable_effect is not None:
            metrics["harness.min_detectable_effect"] = row.verdict.min_detectable_effect
    return _finite(metrics)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without infinite ones, which MLflow's charts cannot draw."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def verdict_tags(result: SweepResult, cell: Cell) -> dict[str, Any]:
    """Return the verdicts on a cell as tags, with the label of the cell that it is compared with.

    `harness.verdict` is on throughput, `harness.verdict_NAME` on the target metric. The reference
    itself is tagged `reference`.
    """
    if result.is_reference(cell):
        return {"harness.verdict": "reference"}
    rows = result.rows(cell)
    if not rows:
        return {}
    tags = {
        "harness.reference": rows[0].a.cell.label,
        DESCRIPTION_TAG: comparison_note(rows),
    }
    for row in rows:
        tag = "harness.verdict" if row.is_throughput else f"harness.verdict_{row.metric.name}"
        tags[tag] = row.verdict.label
    return tags


def parity_tags(parity: SweepParity | None, cell: Cell) -> dict[str, Any]:
    """Return the rung of a cell as tags, with the first difference from its reference and the cause.

    The reference itself is tagged `reference`; without a measured parity there are no tags.
    """
    if parity is None:
        return {}
    if parity.is_reference(cell):
        return {"harness.parity": "reference"}
    measured = parity.of(cell)
    if measured is None:
        return {}
    reference = parity.reference_of(measured)
    tags = {"harness.parity": texts.rung_label(measured)}
    if reference is not None:
        tags["harness.parity_reference"] = reference.cell.label
    if measured.first_difference is not None:
        tags["harness.parity_first_difference"] = texts.divergence_text(measured.first_difference)
        tags["harness.parity_cause"] = texts.causes(measured)
    return tags


def rate_metrics(search: RateSearch | None, cell: Cell) -> dict[str, float]:
    """Return the learning rates that are suggested for a cell, with their range over seeds."""
    rates = None if search is None else search.of(cell)
    if rates is None:
        return {}
    metrics = {}
    for name, spread in (
        ("suggested", rates.peak),
        ("steepest", rates.steepest),
        ("tenth", rates.tenth),
    ):
        if spread is not None:
            metrics[f"harness.lr_{name}"] = spread.mean
            metrics[f"harness.lr_{name}_low"] = spread.low
            metrics[f"harness.lr_{name}_high"] = spread.high
    return metrics


def error_bars(cells: Sequence[CellResult]) -> dict[str, str]:
    """Return a text with a line for the 95% interval and a mark at the mean, by the cell's id.

    All have the same scale, whose ends stand before and after the line, as in `4.9k ⠒⡗⠒ 34k`. It
    goes from the lowest bound of any cell to the highest, rounded down and up to two digits. Cells
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
    lowest = _two_digits(min(low for low, _, _ in intervals.values()), ROUND_FLOOR)
    highest = _two_digits(max(high for _, _, high in intervals.values()), ROUND_CEILING)
    bars = {}
    for cell_id, (low, mean, high) in intervals.items():
        at = [_position(value, lowest, highest) for value in (low, mean, high)]
        bars[cell_id] = f"{_short(lowest)} {_draw(*at)} {_short(highest)}"
    return bars


def _two_digits(value: float, rounding: str) -> float:
    """Return a number rounded to two significant digits, up or down."""
    number = Decimal(value)
    if not number:
        return 0.0
    return float(number.quantize(Decimal(1).scaleb(number.adjusted() - 1), rounding))


def _short(value: float) -> str:
    """Return a number of two significant digits in few letters: `0.85`, `530`, `4.9k`, `34k`, `1.2M`."""
    for factor, prefix in SI_PREFIXES:
        if value >= factor:
            return f"{value / factor:g}{prefix}"
    return f"{value:g}"


def _position(value: float, lowest: float, highest: float) -> int:
    """Return the column of dots of a value, from 0; the middle if all are equal."""
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
