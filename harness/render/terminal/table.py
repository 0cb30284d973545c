"""Tables for the terminal: the cells of a plan, the results of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.analysis.cells import group_by_cell, summary_values, varying_axes
from harness.records.record import Record, Target
from harness.render.format import duration
from harness.spec.sweep import Sweep
from harness.statistics.interval import mean_interval

MFU = {
    "MFU": "mfu",
    "MFU measured": "mfu_measured",
}  # columns that are there when something has one
STATUS_STYLE = {
    "done": "green",
    "failed": "red",
    "invalid": "magenta",
    "interrupted": "yellow",
    "missing": "yellow",
}


def show(console: Console, table: Table) -> None:
    """Print a table in full: a narrow terminal wraps its lines rather than cutting its words."""
    natural = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    Console(width=max(console.width, natural), highlight=False).print(table)


def make_table(columns: Iterable[str], numbers: Iterable[str]) -> Table:
    """An empty table; `numbers` are the columns that are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    right = set(numbers)
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", no_wrap=column != "error"
        )
    return table


def plan_table(sweep: Sweep, estimates: dict[str, float]) -> Table:
    """One row a cell; `estimates` are seconds a trial by cell id."""
    axes = varying_axes(sweep.cells)
    table = make_table(
        ["cell", "workload", *axes, "length", "estimate"],
        ["num_workers", "world_size", "batch_size", "estimate"],
    )
    for cell in sweep.cells:
        values = [str(getattr(cell.axes, axis)) for axis in axes]
        estimate = duration(estimates[cell.id]) if cell.id in estimates else "unknown"
        table.add_row(cell.id, cell.workload.label, *values, str(cell.length), estimate)
    return table


def result_table(sweep: Sweep, records: Sequence[Record]) -> Table:
    """One row a cell: means over its trials that are done, of two or more with their 95% intervals; the best of each
    workload is marked."""
    axes, by_cell = varying_axes(sweep.cells), group_by_cell(records)
    wanted = len(sweep.seeds) * sweep.repeats
    metrics = {record.rank0.target.name for record in records if record.rank0}
    metric_column = metrics.pop() if len(metrics) == 1 else "metric"
    shares = {title: name for title, name in MFU.items() if mean(records, name) is not None}
    numbers = [
        "samples/s",
        "step ms",
        *shares,
        metric_column,
        "world_size",
        "num_workers",
        "batch_size",
        "num_threads",
    ]
    table = make_table(
        ["cell", "workload", *axes, "samples/s", "step ms", *shares, metric_column, "trials"],
        numbers,
    )
    fastest, most_accurate = _best(sweep, by_cell)
    for cell in sweep.cells:
        own = by_cell.get(cell.id, [])
        done = [record for record in own if record.status == "done"]
        status = "missing" if len(own) < wanted else _worst(own)
        rates, step, metric = (
            summary_values(done, name) for name in ("throughput", "step_p50", "final")
        )
        name = (
            next((f"{record.rank0.target.name} " for record in done if record.rank0), "")
            if metrics
            else ""
        )
        table.add_row(
            cell.id,
            cell.workload.label,
            *(str(getattr(cell.axes, axis)) for axis in axes),
            _marked(speed(rates), cell.id in fastest),
            f"{fmean(step) * 1e3:.2f}" if step else "–",
            *(
                "–" if (share := mean(done, name)) is None else f"{share * 100:.3g}%"
                for name in shares.values()
            ),
            _marked(f"{name}{_metric(metric)}" if metric else "–", cell.id in most_accurate),
            Text(f"{len(done)}/{wanted} {status}", style=STATUS_STYLE[status]),
        )
    return table


def _worst(records: Sequence[Record]) -> str:
    statuses = {record.status for record in records}
    return next(
        status for status in ("failed", "interrupted", "invalid", "done") if status in statuses
    )


def mean(records: Sequence[Record], name: str) -> float | None:
    """Of a number of the summaries, over the trials that have it."""
    values = summary_values(records, name)
    return fmean(values) if values else None


def speed(values: Sequence[float]) -> str:
    """The mean of trials' samples/s, and half the width of its 95% interval in percent."""
    if not values:
        return "–"
    found = mean_interval(values)
    return f"{found.mean:,.0f}" + (
        "" if found.half_width is None else f" ±{found.half_width / found.mean:.1%}"
    )


def _metric(values: Sequence[float]) -> str:
    found = mean_interval(values)
    return f"{found.mean:.4f}" + ("" if found.half_width is None else f" ±{found.half_width:.4f}")


def _best(sweep: Sweep, by_cell: dict[str, list[Record]]) -> tuple[set[str], set[str]]:
    """The cell of each workload with the highest throughput, and the one with the best target metric."""
    rates: dict[str, dict[str, float]] = {}
    metric: dict[str, dict[str, float]] = {}
    for cell in sweep.cells:
        done = [record for record in by_cell.get(cell.id, []) if record.status == "done"]
        target = next(
            (record.rank0.target for record in done if record.rank0),
            Target(name="", higher_is_better=True),
        )
        for found, name, sign in (
            (rates, "throughput", 1),
            (metric, "final", 1 if target.higher_is_better else -1),
        ):
            value = mean(done, name)
            if value is not None:
                found.setdefault(cell.workload.label, {})[cell.id] = sign * value
    return tuple(
        {max(row, key=row.__getitem__) for row in found.values() if len(row) > 1}
        for found in (rates, metric)
    )  # type: ignore[return-value]


def _marked(text: str, best: bool) -> Text:
    return Text(f"{text} ★", style="bold green") if best else Text(f"{text}  ")
