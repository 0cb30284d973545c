"""The sections that show measurements: the matrix, phases, scaling, memory, and all tables.

Each is built from the report's cells, by workload, and is empty without data. Throughput is that of
the model of results; other numbers are means over a cell's done trials.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.cells import naming_axes
from harness.analysis.scalars import joules_per_sample, step_phase_shares
from harness.analysis.stopping import mean_over, summarize_stops
from harness.records.nodes import node_times, speeds_by_trials
from harness.records.record import Record
from harness.render import format as fmt
from harness.render import parity as parity_texts
from harness.render import serving
from harness.render.chart import COLORS, INK
from harness.render.html.report import Report, ReportCell
from harness.render.html.rows import Bar, Part, RowGroup, bars, shade
from harness.render.table import Styled, Table, TableGroup

MAX_COLUMNS = 6  # of the matrix, where the axes allow it
FULL_SHADE_RATIO = 1.2  # the least ratio with the full shade, so that mere noise stays pale
WHITE = "#ffffff"
STEP_COLORS = {  # the phases of a step in their order
    "data_wait": COLORS[5],
    "host_to_device": COLORS[7],
    "forward": COLORS[2],
    "backward": COLORS[0],
    "communication": COLORS[1],
    "optimizer": COLORS[3],
}
TRIAL_COLORS = {  # the phases of a trial in their order
    "startup": "#999999",
    "data": COLORS[5],
    "build": COLORS[4],
    "cool_down": "#666666",
    "loader": COLORS[7],
    "compile": COLORS[1],
    "warmup": COLORS[6],
    "train": COLORS[0],
    "evaluate": COLORS[2],
    "checkpoint": COLORS[3],
    "fingerprint": INK,
    "profile": "#CCCCCC",
}

MIB = 2**20
SCALING_TOP = 1.25  # the share of ideal scaling that a bar of full width stands for


@dataclass(frozen=True, kw_only=True)
class MatrixField:
    """One cell of the matrix."""

    text: str  # samples/s, or why there are none
    ratio: str  # to the reference; empty where nothing was measured
    color: str


@dataclass(frozen=True, kw_only=True)
class CellMatrix:
    """The cells of one workload, by some axes across and the others down."""

    title: str
    columns: Sequence[str]
    # A heading and a field for each column; None where the sweep has no such cell.
    rows: Sequence[tuple[str, Sequence[MatrixField | None]]]


def matrices(report: Report) -> list[CellMatrix]:
    """Return a matrix for each workload of which a cell was measured."""
    measured = filter(report.result.reference, report.shown)
    return [_matrix(report, workload) for workload in measured]


def _matrix(report: Report, workload: str) -> CellMatrix:
    """Return the matrix of a workload: the first axes go down, the last ones across.

    The strongest color is that of the largest ratio in the matrix.
    """
    cells = report.shown[workload]
    axes = naming_axes([cell.cell for cell in cells])
    across = _axes_across(cells, axes)
    down = [axis for axis in axes if axis not in across]
    columns = list(dict.fromkeys(fmt.cell_name(cell.cell, across) for cell in cells))
    ratios = _ratios_to_reference(report, workload)
    largest = max(max(ratio, 1 / ratio) for ratio in ratios.values())
    full_shade_ratio = max(FULL_SHADE_RATIO, largest)
    fields: dict[str, dict[str, MatrixField]] = {}  # by heading, then by column
    for cell in cells:
        heading = fmt.cell_name(cell.cell, down) or workload
        column = fmt.cell_name(cell.cell, across)
        if column in fields.get(heading, {}):  # another cell of these axes, such as a longer one
            heading = cell.name
        field = MatrixField(text=cell.why_unmeasured, ratio="", color=WHITE)
        ratio = ratios.get(cell.cell.id)
        if ratio is not None and cell.result.throughput is not None:
            field = MatrixField(
                text=fmt.samples_per_second(cell.result.throughput.mean),
                ratio=fmt.ratio(ratio, digits=2),
                color=shade(ratio, full_shade_ratio),
            )
        fields.setdefault(heading, {})[column] = field
    rows = []
    for heading, by_column in fields.items():
        rows.append((heading, [by_column.get(column) for column in columns]))
    return CellMatrix(title=workload, columns=columns, rows=rows)


def _ratios_to_reference(report: Report, workload: str) -> dict[str, float]:
    """Return each measured cell's ratio to the reference, by cell id.

    It is the one that the verdict is on, which compares pairs of trials where there are any. The
    ratio of the means differs from it where a trial of one cell failed.
    """
    ratios = {}
    for cell in report.shown[workload]:
        if cell.result.throughput is None:
            continue
        row = report.result.throughput_row(cell.cell)
        ratios[cell.cell.id] = 1.0 if row is None else row.verdict.effect
    return ratios


def _axes_across(cells: Sequence[ReportCell], axes: Sequence[str]) -> Sequence[str]:
    """Return the axes whose values are columns: as many of the last ones as there is room for.

    The first axis always goes down, unless it is the only one.
    """
    for start in range(1, len(axes)):
        columns = {fmt.cell_name(cell.cell, axes[start:]) for cell in cells}
        if len(columns) <= MAX_COLUMNS:
            return axes[start:]
    return axes[-1:]


def step_phases(report: Report) -> list[RowGroup]:
    """Return the shares of a step's phases, over the ranks and the measured steps.

    The text next to a bar names the shares that are not compute.
    """

    def describe(shares: Mapping[str, float]) -> str:
        waiting = fmt.share(shares.get("data_wait", 0.0), digits=0)
        communication = fmt.share(shares.get("communication", 0.0), digits=0)
        return f"{waiting} data wait, {communication} communication"

    return _stacked(report, STEP_COLORS, step_phase_shares, describe)


def trial_phases(report: Report) -> list[RowGroup]:
    """Return the seconds of a trial's phases, from its start to its record.

    Bars are of different lengths, the longest trial of the workload taking all the space.
    """

    def describe(seconds: Mapping[str, float]) -> str:
        return f"{sum(seconds.values()):.1f} s"

    return _stacked(report, TRIAL_COLORS, lambda record: record.phases, describe)


def _stacked(
    report: Report,
    colors: Mapping[str, str],
    read: Callable[[Record], Mapping[str, float]],
    describe: Callable[[Mapping[str, float]], str],
) -> list[RowGroup]:
    """Return a bar for each cell that is made of its phases, in the mean over its trials.

    `colors` are those of the known phases in their order; a phase that is not among them comes
    last and is black. `read` returns a trial's phases, `describe` the text next to a bar.
    """
    groups = []
    for workload, cells in report.shown.items():
        means: dict[str, dict[str, float]] = {}  # by cell name, then by phase
        for cell in cells:
            mean = _mean_phases(map(read, cell.done))
            if mean:
                means[cell.name] = mean
        if not means:
            continue
        present = set().union(*means.values())
        looks = {}  # the color and the title of each phase that a cell has
        for phase in [*colors, *sorted(present - colors.keys())]:
            if phase in present:
                looks[phase] = (colors.get(phase, INK), phase.replace("_", " "))
        longest = max(sum(mean.values()) for mean in means.values())
        rows = []
        for name, mean in means.items():
            parts = _parts(mean, looks, longest)
            rows.append(Bar(label=name, parts=parts, text=describe(mean)))
        groups.append(RowGroup(title=workload, rows=rows, legend=list(looks.values())))
    return groups


def _parts(
    mean: Mapping[str, float], looks: Mapping[str, tuple[str, str]], longest: float
) -> list[Part]:
    """Return the parts of a bar; `looks` are the color and the title of each phase, in order.

    `longest` is the sum of phases whose bar takes all the space.
    """
    parts = []
    for phase, (color, title) in looks.items():
        if phase in mean:
            parts.append(Part(width=100 * mean[phase] / longest, color=color, name=title))
    return parts


def _mean_phases(trials: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each phase over trials, without those that are 0.

    A phase that a trial does not have counts as 0 for it.
    """
    sums: dict[str, float] = {}
    count = 0
    for trial in trials:
        count += 1
        for phase, value in trial.items():
            sums[phase] = sums.get(phase, 0.0) + value
    return {phase: total / count for phase, total in sums.items() if total > 0}


def scaling(report: Report) -> list[RowGroup]:
    """Return throughput on more ranks, as a share of ideal scaling from the fewest ranks.

    Ideal is in proportion to the ranks, at the same global batch size. The strategy may differ,
    because a single rank has none.
    """
    groups = []
    for workload, cells in report.shown.items():
        all_cells = report.workloads[workload]
        if len(set(map(_ranks, all_cells))) == 1:
            continue  # at once, as spelling the settings of thousands of cells takes a while
        bases = _fewest_ranks(all_cells)
        rows = []
        for cell in cells:
            base = bases.get(_key_without_ranks(cell))
            if base is not None and _ranks(cell) > _ranks(base):
                row = _scaling_bar(cell, base)
                if row is not None:
                    rows.append(row)
        if rows:
            note = "the line is ideal scaling"
            groups.append(RowGroup(title=workload, rows=rows, mark=100 / SCALING_TOP, note=note))
    return groups


def _scaling_bar(cell: ReportCell, base: ReportCell) -> Bar | None:
    """Return the bar of a cell against the same settings on fewer ranks, None if not measured.

    The ratio is that of the means: the two cells may have different strategies, and no verdict.
    """
    if cell.result.throughput is None or base.result.throughput is None:
        return None
    speedup = cell.result.throughput.mean / base.result.throughput.mean
    ideal = _ranks(cell) / _ranks(base)
    share = speedup / ideal
    part = Part(width=min(100.0, 100 * share / SCALING_TOP), color=COLORS[0], name="")
    text = (
        f"{fmt.ratio(speedup, digits=2)} on {ideal:g}× the ranks:"
        f" {fmt.share(share, digits=0)} of ideal"
    )
    return Bar(label=cell.name, parts=[part], text=text)


def _ranks(cell: ReportCell) -> int:
    """Return the number of ranks that train a cell."""
    return cell.cell.axes.world_size


def _key_without_ranks(cell: ReportCell) -> str:
    """Return a text that is equal for cells of a workload that differ in ranks and strategy only."""
    axes = cell.cell.levels
    del axes["world_size"], axes["strategy"]
    return json.dumps(axes, sort_keys=True)


def _fewest_ranks(cells: Sequence[ReportCell]) -> dict[str, ReportCell]:
    """Return the measured cell with the fewest ranks for each `_key_without_ranks`."""
    bases: dict[str, ReportCell] = {}
    for cell in cells:
        if cell.result.throughput is None:
            continue
        key = _key_without_ranks(cell)
        if key not in bases or _ranks(cell) < _ranks(bases[key]):
            bases[key] = cell
    return bases


def stopping(report: Report) -> list[RowGroup]:
    """Return the epochs that trials with a rule for stopping trained, in the mean over a cell.

    A bar is cut where the best evaluation was; the longest takes all the space.
    """
    groups = []
    for workload, cells in report.shown.items():
        summaries = {}
        for cell in cells:
            summary = summarize_stops(cell.done)
            if summary is not None:
                summaries[cell.name] = summary
        if not summaries:
            continue
        longest = max(summary.epochs for summary in summaries.values())
        rows = []
        for name, summary in summaries.items():
            best = summary.epochs if summary.epochs_to_best is None else summary.epochs_to_best
            until, after = 100 * best / longest, 100 * (summary.epochs - best) / longest
            parts = [
                Part(width=until, color=COLORS[0], name="until the best evaluation"),
                Part(width=after, color=COLORS[6], name="after it"),
            ]
            epochs, best_epoch = fmt.three_digits(summary.epochs), fmt.three_digits(best)
            ended = fmt.stop_counts(summary)
            text = f"{epochs} epochs, best at {best_epoch}; ended: {ended}"
            rows.append(Bar(label=name, parts=parts, text=text))
        legend = [(COLORS[0], "until the best evaluation"), (COLORS[6], "after it")]
        groups.append(RowGroup(title=workload, rows=rows, legend=legend))
    return groups


def memory(report: Report) -> list[RowGroup]:
    """Return the most memory that training took at a rank, in MiB."""
    return _measured(report, _peak_mib, lambda value: f"{value:,.0f} MiB")


def _peak_mib(record: Record) -> float | None:
    """Return the peak of the rank that took most, in MiB.

    None unless it is known of every rank: the unknown one might be the largest.
    """
    size = record.ranks.across.training_bytes
    return None if size is None else size / MIB


def energy(report: Report) -> list[RowGroup]:
    """Return the energy of all ranks' GPUs for one sample, in joules."""
    return _measured(report, joules_per_sample, lambda value: f"{fmt.three_digits(value)} J")


def _measured(
    report: Report, read: Callable[[Record], float | None], describe: Callable[[float], str]
) -> list[RowGroup]:
    """Return a bar for each cell that has a number, in the mean over its trials.

    `read` returns the number from a record, `describe` its text with the unit.
    """
    groups = []
    for workload, cells in report.shown.items():
        values = []
        for cell in cells:
            mean = mean_over(cell.done, read)
            if mean is not None:
                values.append((cell.name, mean, describe(mean)))
        if values:
            groups.append(RowGroup(title=workload, rows=bars(values)))
    return groups


MOST_CLASSES = 20  # that are listed: of more, those with the lowest F1


def nodes(report: Report) -> list[TableGroup]:
    """Return how fast each node was, none unless trials ran on several."""
    times = [node_times(record) for record in report.records]
    speeds = speeds_by_trials(trial for trial in times if trial is not None)
    if not speeds:
        return []
    table = Table(["node", "speed"])
    for speed in speeds:
        table.add_row(speed.node, Styled(speed.description, "worse" if speed.is_slow else "plain"))
    return [TableGroup(title=report.sweep.name, tables=[table])]


def parity(report: Report) -> list[TableGroup]:
    """Return the cells that are compared with each reference, as `harness parity` measured them."""
    if report.parity is None:
        return []
    groups = []
    for reference in report.parity.references:
        groups.append(
            TableGroup(
                title=f"against {reference.cell.label}",
                about=parity_texts.reference_line(reference),
                tables=[parity_texts.parity_table(report.parity, reference)],
            )
        )
    return groups


def exports(report: Report) -> list[TableGroup]:
    """Return the models and the latencies of each trial that was exported."""
    groups = []
    for export in report.exports:
        notes = [f"on {export.processor}"]
        tables = serving.export_tables(export)
        groups.append(TableGroup(title=export.trial, tables=tables, notes=notes))
    return groups
