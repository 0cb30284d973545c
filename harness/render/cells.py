"""The table of a sweep's cells with their verdicts: the same in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.cells import varying_axes
from harness.analysis.parity import SweepParity
from harness.analysis.result import CellResult
from harness.analysis.scaling import scaling_shares
from harness.analysis.sweep_result import SweepResult
from harness.render import format as fmt
from harness.render.table import Content, Ratio, Styled, Table
from harness.spec.cell import ThroughputUnit
from harness.statistics.attribution import Attribution

STATUS_LABELS = {"unrecorded": "missing"}  # as people call it; the others are called as they are


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A column with a number of each cell: the mean over its done trials."""

    title: str
    name: str  # in MLflow and in tables of trials
    text: Callable[[float], str]


def _percent(share: float) -> str:
    """Return three significant digits in percent: on CPUs it can be a small fraction."""
    return f"{share * 100:.3g}%"


STEP_TIME = NumberColumn(
    title="step ms", name="step_time_p50_ms", text=lambda value: f"{value:.2f}"
)
MFU_COLUMNS = (
    NumberColumn(title="MFU", name="mfu", text=_percent),
    NumberColumn(title="MFU measured", name="mfu_measured", text=_percent),
)
STOP_COLUMNS = (
    NumberColumn(title="epochs", name="epochs", text=fmt.three_digits),
    NumberColumn(title="best at", name="epochs_to_best", text=fmt.three_digits),
)
# Of a wide table, and of the report.
FURTHER_COLUMNS = (
    NumberColumn(title="p99 ms", name="step_time_p99_ms", text=lambda value: f"{value:.2f}"),
    NumberColumn(title="data wait", name="data_wait_share", text=_percent),
    NumberColumn(title="communication", name="communication_share", text=_percent),
    NumberColumn(
        title="memory MiB", name="memory_training_mib", text=lambda value: f"{value:,.0f}"
    ),
    NumberColumn(title="J/sample", name="joules_per_sample", text=fmt.three_digits),
    NumberColumn(title="load/core", name="load_per_core", text=lambda value: f"{value:.1f}"),
)
# Of a terminal that the table is too wide for, in the order in which they are left out.
OPTIONAL_COLUMNS = ("MFU measured", "best at", "MFU", "epochs", "step ms")


def cells_table(
    result: SweepResult,
    cells: Sequence[CellResult],
    parity: SweepParity | None = None,
    *,
    wide: bool = False,
    has_axes: bool = False,
) -> Table:
    """Return a table with a row for each of some cells of a result.

    Means have their 95% interval where there are three or more independent values. A cell is compared
    with the first measured one of its workload; the interval is that of the test behind the verdict.
    What no cell has is no column. A `wide` table has all numbers; one that `has_axes` has ids and axes.
    """
    names = fmt.cell_names(result.all_cells, with_workload=True)
    axes = varying_axes(result.all_cells) if has_axes else []
    unit = fmt.common_unit(result.cells)
    shown = [STEP_TIME, *MFU_COLUMNS, *STOP_COLUMNS, *(FURTHER_COLUMNS if wide else ())]
    present = set().union(*(cell.numbers for cell in cells))
    shown = [column for column in shown if column.name in present]
    targets = {cell.target.name for cell in result.cells if cell.target is not None}
    metric = next(iter(targets)) if len(targets) == 1 else "metric"
    optional = _optional_columns(result, cells, parity, wide=wide)
    titles = [column.title for column in shown]
    identity = ["id", *axes] if has_axes else []
    right = [unit, metric, *titles, "scaling", *fmt.NUMERIC_AXES]
    columns = ["cell", *identity, unit, "speed", "verdict", metric, *titles, *optional]
    table = Table(columns, right, optional=OPTIONAL_COLUMNS)
    for cell in cells:
        row: list[Content] = [names[cell.cell.id]]
        if has_axes:
            row += [cell.cell.id, *fmt.axis_texts(cell.cell, axes)]
        row += _answers(result, cell, unit, has_names=len(targets) > 1)
        for column in shown:
            value = cell.numbers.get(column.name)
            row.append(fmt.MISSING if value is None else column.text(value))
        row += [texts.get(cell.cell.id, fmt.MISSING) for texts in optional.values()]
        table.add_row(*row)
    return table


def _answers(
    result: SweepResult, cell: CellResult, unit: ThroughputUnit, *, has_names: bool
) -> list[Content]:
    """Return the throughput, the speed against the first cell, the verdict and the target metric.

    With `has_names`, the metric has its name: workloads have different ones.
    """
    row = result.throughput_row(cell.cell)
    speed: Content = fmt.MISSING
    verdict: Content = fmt.MISSING
    if row is not None:
        speed = Ratio(row.verdict.effect, fmt.shown_effect_bounds(row.verdict))
        verdict = fmt.verdict_badge(row)
    elif result.is_reference(cell.cell):
        speed, verdict = "1×", Styled("first", "quiet")
    metric = fmt.metric(cell.metric)
    if has_names and cell.metric and cell.target:
        metric = f"{cell.target.name} {metric}"
    pieces = [Styled(metric, "plain")]
    metric_row = result.metric_row(cell.cell)
    if metric_row is not None and metric_row.verdict.outcome in ("better", "worse"):
        outcome = metric_row.verdict.outcome
        pieces.append(Styled(f" {outcome}", fmt.OUTCOME_LOOKS[outcome]))
    throughput = fmt.in_column(fmt.throughput(cell.throughput), cell, unit)
    return [throughput, speed, verdict, pieces]


def _optional_columns(
    result: SweepResult,
    cells: Sequence[CellResult],
    parity: SweepParity | None,
    *,
    wide: bool,
) -> dict[str, Mapping[str, Content]]:
    """Return further columns by their titles, each with its fields by the id of the cell.

    Trials are listed where not all of them are done, scaling where cells have different ranks.
    """
    columns: dict[str, Mapping[str, Content]] = {}
    if wide:
        shares: dict[str, Content] = {}
        for of_workload in result.workloads.values():
            for cell_id, share in scaling_shares(of_workload).items():
                shares[cell_id] = f"{share:.0%}"
        if shares:
            columns["scaling"] = shares
    if parity is not None:
        # Here, as it loads torch, which takes as long as many a sweep.
        from harness.render.parity import rung_label, rung_look

        rungs: dict[str, Content] = {}
        for cell in cells:
            measured = parity.of(cell.cell)
            if parity.is_reference(cell.cell):
                rungs[cell.cell.id] = Styled("reference", "quiet")
            elif measured is not None:
                rungs[cell.cell.id] = Styled(rung_label(measured), rung_look(measured))
        columns["parity"] = rungs
    if wide or any(cell.status != "done" for cell in cells) or _has_unequal_trials(cells):
        columns["trials"] = {cell.cell.id: _trial_counts(cell) for cell in cells}
    return columns


def _has_unequal_trials(cells: Sequence[CellResult]) -> bool:
    """Return whether cells have different numbers of trials."""
    return len({len(cell.trials) for cell in cells}) > 1


def _trial_counts(cell: CellResult) -> Styled:
    """Return how many of a cell's trials are done, and the worst status among them."""
    status = STATUS_LABELS.get(cell.status, cell.status)
    shown = "" if status == "done" else f" {status}"
    return Styled(f"{len(cell.trials)}/{cell.planned}{shown}", fmt.STATUS_LOOKS[status])


def effects_table(label: str, attribution: Attribution) -> Table:
    """Return a table of the effects of axes on throughput, then of those of pairs of axes.

    The effect of one axis is averaged over the values of the others; that of two is how much more the
    first contributes with the second than without it.
    """
    table = Table([label, "against", "speed", "verdict"])
    for effect in attribution.effects:
        verdict = Styled("not certain", "open")
        if effect.is_certain and effect.ratio > 1:
            verdict = Styled("faster", "better")
        elif effect.is_certain:
            verdict = Styled("slower", "worse")
        table.add_row(
            fmt.short_axis_levels(effect.levels),
            fmt.short_axis_levels(effect.reference),
            Ratio(effect.ratio, (effect.low, effect.high)),
            verdict,
        )
    return table
