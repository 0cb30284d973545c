"""The metrics and tags by which MLflow shows what is certain about a sweep's cells.

They are columns of the page that `harness ui` opens, and can be sorted and filtered by. All of them
are read from the model of results; nothing is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.compare import MetricRow
from harness.analysis.parity import SweepParity
from harness.analysis.result import CellResult
from harness.analysis.scalars import RATE, metric_name
from harness.analysis.sweep_result import SweepResult
from harness.preflight.rates import RateSearch
from harness.render import parity as texts
from harness.spec.cell import Cell
from harness.tracking.markdown import comparison_note


def mean_metrics(result: CellResult) -> dict[str, float]:
    """Return the means of a cell's throughput and target metric, over its done trials.

    They are the centers of their intervals: where a seed has several repeats, it counts once.
    """
    metrics = {}
    if result.throughput is not None:
        metrics[RATE] = result.throughput.mean
    if result.metric is not None and result.target is not None:
        metrics[metric_name(f"final_{result.target.name}")] = result.metric.mean
    return metrics


def interval_metrics(result: CellResult) -> dict[str, float]:
    """Return the 95% interval of the mean throughput, and how many independent values it rests on.

    `harness.ci_low` and `harness.ci_high` are in samples/s; `harness.ci_count` is that of seeds, or
    of trials where there are too few seeds (`independent_values`). A single trial has no interval,
    and a cell that was not measured has no metrics.
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
    return {
        "harness.reference": rows[0].a.cell.label,
        "mlflow.note.content": comparison_note(rows),
        **_verdict_labels(rows),
    }


def parity_tags(parity: SweepParity | None, cell: Cell) -> dict[str, Any]:
    """Return the rung of a cell as tags, with where it parts from its reference and the cause.

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
        tags["harness.parity_parts_in"] = texts.parting(measured.first_difference)
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


def _verdict_labels(rows: Sequence[MetricRow]) -> Mapping[str, str]:
    """Return the label of each row's verdict by the tag that shows it."""
    labels = {}
    for row in rows:
        tag = "harness.verdict" if row.is_throughput else f"harness.verdict_{row.metric.name}"
        labels[tag] = row.verdict.label
    return labels
