"""The report of a sweep as one HTML page of seven sections.

They are the summary, the cells, the effects of axes, curves, failures, parity, and the environment
with a recipe. The page is a single file without a script and without an address, so that it can be
mailed, kept with a result and printed. A section without content is not shown.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.analysis.cells import naming_axes, shown_seeds
from harness.analysis.parity import SweepParity, read_known_parity
from harness.analysis.result import UNRECORDED, CellResult
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput
from harness.core.paths import Results, write_atomically
from harness.core.text import counted
from harness.records.environment import Environment
from harness.records.store import RecordedSweep
from harness.render import format as fmt
from harness.render.cells import cells_table, effects_table
from harness.render.findings import conclusions, remarks
from harness.render.html import origin, plots
from harness.render.html.plots import Plot, PlottedCell
from harness.render.html.template import fill
from harness.render.results import LEGEND
from harness.render.table import Ratio, Table
from harness.spec.cell import Cell

# A browser takes long over thousands of rows, and the steps of a trial milliseconds to be read.
MAX_CELLS = 100  # of a workload, of which all have rows
FASTEST = 40  # cells that have rows where there are more
REACH = 4.0  # how many times beyond the ratios of a table their intervals are drawn


def write_report(path: Path, results: Results, recorded: RecordedSweep) -> None:
    """Write the report of a sweep that has run; raises BadInput as `render` does."""
    write_atomically(path, render(results, recorded))


def render(results: Results, recorded: RecordedSweep) -> str:
    """Return the report of a sweep that has run; the same records give the same text.

    Raises BadInput if there are no records.
    """
    sweep, records = recorded.sweep, recorded.records
    if not records:
        raise BadInput(f"{sweep.name}: found no records; allowed: a sweep that has run")
    folder = results.sweep_folder(sweep.name)
    result = SweepResult.of_records(sweep, records)
    names = fmt.cell_names(result.all_cells, with_workload=True)

    def name(cell: Cell) -> str:
        """Return the short name of a cell."""
        return names.get(cell.id, cell.label)

    parity = read_known_parity(folder, result.cells)
    shown_cells = {label: _shown_cells(cells) for label, cells in result.workloads.items()}
    tables = []
    for label, cells in shown_cells.items():
        tables.append(
            (label, _note(result, label, cells), cells_table(result, cells, parity, wide=True))
        )
    failures, more_failures = origin.troubles(records, folder)
    return fill(
        "report.html",
        sweep=sweep,
        overview=_overview(recorded, result),
        sentences=_sentences(result),
        remarks=remarks(result, records, name),
        cells=tables,
        legend=LEGEND,
        effects=_effects(result),
        curves=_curves(result, shown_cells, names),
        failures=failures,
        more_failures=more_failures,
        parity=_parity(parity),
        environment=origin.environment(records),
        recipe=origin.recipe(sweep, records, folder),
        drawing=drawing_of,
    )


def _overview(recorded: RecordedSweep, result: SweepResult) -> list[tuple[str, str]]:
    """Return the terms at the top of the page with their values.

    They say how much was measured, when and on what. Times are in UTC, so that the page does not
    depend on who writes it.
    """
    sweep, records = recorded.sweep, recorded.records
    started = min(record.started for record in records)
    ended = max(record.ended for record in records)
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))
    seeds = counted(len(shown_seeds(sweep, records)), "seed")
    environments = [record.environment for record in records if record.environment]
    # A dict keeps the order in which the machines were used.
    hardware = dict.fromkeys(_describe_hardware(environment) for environment in environments)
    return [
        ("cells", f"{len(result.cells):,} of {counted(len(result.workloads), 'workload')}"),
        ("trials", f"{_trial_counts(recorded, result)}, {seeds}"),
        ("measured", f"{moment}, in {fmt.duration(ended - started)}"),
        ("on", "; ".join(hardware) or "unknown hardware"),
    ]


def _trial_counts(recorded: RecordedSweep, result: SweepResult) -> str:
    """Return how many trials have which status: `10 done, 1 failed, 1 not run`."""
    counts = fmt.counts(record.status for record in recorded.records)
    unrecorded = sum(cell.left_out.get(UNRECORDED, 0) for cell in result.cells)
    left_out = {
        "not run": unrecorded,
        "left out because their records can't be read": len(recorded.unreadable),
        "left out because they have other code or settings": recorded.other_count,
    }
    for reason, count in left_out.items():
        if count:
            counts += f", {count} {reason}"
    return counts


def _describe_hardware(environment: Environment) -> str:
    """Return what a trial ran on: `Xeon, 32 cores, 8 × H100`.

    Cores are those that the process may use, which a scheduler may have limited.
    """
    hardware = environment.hardware
    parts = [hardware.cpu, f"{hardware.usable_cores} cores"]
    gpus = Counter(gpu.name for gpu in hardware.gpus)
    parts += [f"{count} × {name}" for name, count in gpus.items()]
    return ", ".join(parts)


def _sentences(result: SweepResult) -> list[str]:
    """Say which cell of each workload is fastest, and how accurate it is: speed at that cost is no win."""
    names = fmt.cell_names(result.all_cells)
    sentences = conclusions(result, lambda cell: names[cell.id])
    for ranking in filter(None, map(result.ranking, result.workloads)):
        fastest = ranking[0]
        row = result.metric_row(fastest.cell)
        if row is None or fastest.target is None:
            continue
        value = fmt.metric_value(row.verdict.mean_b)
        reference = f"{fmt.metric_value(row.verdict.mean_a)} of {names[row.a.cell.id]}"
        verdict = {"same": "the same as", "inconclusive": "not certainly other than"}.get(
            row.verdict.outcome, f"{row.verdict.outcome} than"
        )
        sentences.append(
            f"{names[fastest.cell.id]} ends at {fastest.target.name} {value}, {verdict} {reference}."
        )
    return sentences


def _shown_cells(cells: Sequence[CellResult]) -> list[CellResult]:
    """Return the cells of a workload that have rows, in their order.

    Of more than MAX_CELLS these are the fastest, and the first measured cell, which the others are
    compared with.
    """
    if len(cells) <= MAX_CELLS:
        return list(cells)
    fastest = sorted(cells, key=lambda cell: cell.mean_throughput, reverse=True)
    chosen = {cell.cell.id for cell in fastest[:FASTEST]}
    for cell in cells:
        if cell.throughput is not None:
            chosen.add(cell.cell.id)
            break
    return [cell for cell in cells if cell.cell.id in chosen]


def _note(result: SweepResult, label: str, cells: Sequence[CellResult]) -> str:
    """Return which cells of a workload have no row."""
    count = len(result.workloads[label])
    if count == len(cells):
        return ""
    return f"the {FASTEST} fastest of {count:,} cells, and the first; harness show {result.name} has all"


def _effects(result: SweepResult) -> list[tuple[str, Table, str]]:
    """Return the effects of axes of each workload whose cells differ in several, with a note.

    The effect of a single axis is what the verdicts on its cells say.
    """
    shown = []
    for label, attribution in result.attributions.items():
        cells = [cell.cell for cell in result.workloads[label]]
        if len(naming_axes(cells)) < 2:
            continue
        unknown = [" and ".join(term) for term in attribution.unknown]
        note = f"can't be separated from the other axes: {'; '.join(unknown)}" if unknown else ""
        shown.append((label, effects_table(label, attribution), note))
    return shown


def _curves(
    result: SweepResult, shown_cells: Mapping[str, Sequence[CellResult]], names: Mapping[str, str]
) -> list[Plot]:
    """Return the curves of the loss and of the target metric of each workload that has them."""
    drawn = []
    for label, cells in shown_cells.items():
        plotted = []
        for number, cell in enumerate(cells):
            done = result.done_records(cell.cell)
            name = names[cell.cell.id]
            plotted.append(PlottedCell(result=cell, name=name, number=number, done=done))
        drawn += [plots.loss_plot(label, plotted), plots.metric_plot(label, plotted)]
    return [plot for plot in drawn if plot is not None]


def _parity(parity: SweepParity | None) -> list[tuple[str, Table]]:
    """Return the cells that are compared with each reference, with a line on the reference."""
    if parity is None:
        return []
    from harness.render import parity as texts  # here, as it loads torch

    shown = []
    for reference in parity.references:
        line = f"against {reference.cell.label}, {texts.reference_line(reference)}"
        shown.append((line, texts.parity_table(parity, reference)))
    return shown


def drawing_of(table: Table) -> Callable[[float], float]:
    """Return a function that places the ratios of a table on a line, in percent of its length.

    The scale is logarithmic and has 1, all ratios, and their intervals as far as REACH beyond them.
    """
    ratios = [field for row in table.rows for field in row if isinstance(field, Ratio)]
    values = [1.0, *(ratio.value for ratio in ratios if 0 < ratio.value < math.inf)]
    lowest, highest = min(values), max(values)
    ends = [bound for ratio in ratios for bound in ratio.bounds or ()]
    low = math.log(max(min([lowest, *ends]), lowest / REACH))
    high = math.log(min(max([highest, *ends]), highest * REACH))
    margin = max(high - low, 0.02) / 20

    def place(value: float) -> float:
        """Return where a ratio is; one beyond the scale is at its end."""
        inside = min(max(value, math.exp(low)), math.exp(high))
        return 100 * (math.log(inside) - low + margin) / (high - low + 2 * margin)

    return place
