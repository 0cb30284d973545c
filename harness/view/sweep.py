"""Shows the results of a sweep: what it has shown, one table of its cells, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from harness.analysis.parity import SweepParity, read_known_parity
from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult, scaling_shares
from harness.core.paths import Results, tracking_flag
from harness.records.store import RecordedSweep
from harness.statistics.attribution import Attribution
from harness.statistics.verdict import MetricVerdict
from harness.sweep.cell import ThroughputUnit
from harness.view.findings import conclusions, remarks
from harness.view.names import axis_levels, cell_names
from harness.view.parity import cell_rung
from harness.view.value import LOOKS, Effect, Kind, Styled, Value, effect_of, styled, write
from harness.view.view import Table, View

MOST_SENTENCES = 4  # on the fastest cells, one for each workload
MOST_REMARKS = 3
LEGEND = (
    "speed: against the first cell of the workload, same seeds paired; 95% intervals, corrected for the"
    " number of cells"
)
# Columns with the mean of a number over the done trials: its name in MLflow, and what it is.
NUMBERS: Mapping[str, tuple[str, Kind]] = {
    "step ms": ("step_time_p50_ms", "milliseconds"),
    "MFU": ("mfu", "percent"),
    "MFU measured": ("mfu_measured", "percent"),
    "epochs": ("epochs", "number"),
    "best at": ("epochs_to_best", "number"),
}
# Of a wide table, and of the report.
FURTHER_NUMBERS: Mapping[str, tuple[str, Kind]] = {
    "p99 ms": ("step_time_p99_ms", "milliseconds"),
    "data wait": ("data_wait_share", "percent"),
    "communication": ("communication_share", "percent"),
    "memory MiB": ("memory_training_mib", "number"),
    "J/sample": ("joules_per_sample", "number"),
    "load/core": ("load_per_core", "number"),
}
# Of a terminal that the table is too wide for, in the order in which they are left out.
OPTIONAL_COLUMNS = ("MFU measured", "best at", "MFU", "epochs", "step ms")


def sweep_view(
    recorded: RecordedSweep,
    results: Results,
    *,
    trouble: str | None = None,
    tracking_uri: str | None = None,
    wide: bool = False,
) -> View:
    """Return which cells are fastest, the table of all cells, what to beware of, and what to do next.

    `trouble` is what MLflow at `tracking_uri` failed with. A `wide` table has all columns, however wide
    it gets, and all remarks follow it.
    """
    sweep, records = recorded.sweep, recorded.records
    result = SweepResult.of_records(sweep, records)
    heading: list[Value] = []
    lines: list[Value] = []
    if trouble:
        collect = results.collect_command(sweep.name, tracking_uri)
        lines.append(Styled(f"MLflow is missing trials; deliver them later: {collect}", "open"))
    for remark in remarks(result, records):
        if remark.look == "worse":  # the numbers are not what the sentences make of them
            heading.append(remark)
        else:
            lines.append(remark)
    heading += conclusions(result)[:MOST_SENTENCES]
    if heading:
        heading.append("")
    command = results.command(f"ui{tracking_flag(tracking_uri)}")
    if not wide and len(lines) > MOST_REMARKS:
        command = results.command(f"show {shlex.quote(sweep.name)} --wide")
        lines = lines[:MOST_REMARKS]
    if result.comparison.matches:
        lines.insert(0, Styled(LEGEND, "quiet"))
    folder = results.sweep_folder(sweep.name)
    parity = read_known_parity(folder, result.cells)
    return View(
        result=result,
        heading=heading,
        tables=[cells_table(result, label, parity, wide=wide) for label in result.workloads],
        lines=lines,
        next=command,
    )


def common_unit(cells: Iterable[CellResult]) -> ThroughputUnit:
    """Return the unit of a column of throughputs: steps/s if no cell has its samples counted."""
    units = {cell.throughput_unit for cell in cells if cell.trials}
    if units == {"steps/s"}:
        return "steps/s"
    return "samples/s"


def cells_table(
    result: SweepResult,
    workload: str,
    parity: SweepParity | None = None,
    *,
    wide: bool = False,
) -> Table:
    """Return a table with a row for each cell of a workload.

    Means have their 95% interval where there are three or more independent values. A cell is compared
    with the first measured one of its workload; the interval is that of the test behind the verdict.
    A `wide` table has ids and all numbers.
    """
    cells = result.workloads[workload]
    names = cell_names([cell.cell for cell in cells])
    numbers = dict(NUMBERS)
    scaling: Mapping[str, float] = {}
    if wide:
        numbers |= FURTHER_NUMBERS
        scaling = scaling_shares(cells)
    table = _empty_table(cells, numbers)
    if len(result.workloads) > 1:
        table.title = workload
    if wide:
        table.wraps = False
    else:
        table.optional = OPTIONAL_COLUMNS
        table.without = ["id"] if _differ_in_trials(cells) else ["id", "trials"]
    for cell in cells:
        id_ = cell.cell.id
        table.add_row(
            names[id_],
            id_,
            cell.throughput,
            *_speed(result, cell),
            _metric(result, cell),
            *[cell.numbers.get(name) for name, _ in numbers.values()],
            scaling.get(id_),
            cell_rung(parity, cell.cell),
            _trial_counts(cell),
        )
    return table


def _empty_table(cells: Sequence[CellResult], numbers: Mapping[str, tuple[str, Kind]]) -> Table:
    """Return the table of some cells without a row; `numbers` are those of NUMBERS that it has."""
    unit = common_unit(cells)
    metric = "metric"
    for cell in cells:
        if cell.target is not None:
            metric = cell.target.name
    columns = ["cell", "id", unit, "speed", "verdict", metric, *numbers]
    columns += ["scaling", "parity", "trials"]
    kinds: dict[str, Kind] = {unit: "rate", metric: "number", "scaling": "percent"}
    for column, (_, kind) in numbers.items():
        kinds[column] = kind
    return Table(columns, kinds)


def _differ_in_trials(cells: Sequence[CellResult]) -> bool:
    """Return whether cells have trials that are not done, or different numbers of trials."""
    counts = {len(cell.trials) for cell in cells}
    return len(counts) > 1 or any(cell.status != "done" for cell in cells)


def _speed(result: SweepResult, cell: CellResult) -> tuple[Value, Value]:
    """Return a cell's speed against the first cell of its workload, and the verdict."""
    verdict = result.speed(cell.cell)
    if verdict is not None:
        return effect_of(verdict), verdict_badge(verdict)
    if result.is_reference(cell.cell):
        return "1×", styled("first")
    return None, None


def verdict_badge(verdict: MetricVerdict) -> Styled:
    """Return a verdict with its look."""
    return Styled(verdict.label, LOOKS[verdict.outcome])


def _metric(result: SweepResult, cell: CellResult) -> Value:
    """Return a cell's target metric, and whether it is better or worse than the first cell's."""
    if cell.metric is None:
        return None
    pieces: list[str | Styled] = [write(cell.metric, "metric")]
    match = result.match_of(cell.cell)
    verdict = None if match is None else match.accuracy
    if verdict is not None and verdict.outcome in ("better", "worse"):
        pieces += [" ", styled(verdict.outcome)]
    return pieces


def _trial_counts(cell: CellResult) -> Styled:
    """Return how many of a cell's trials are done, and the worst status among them."""
    counts = f"{len(cell.trials)}/{cell.planned}"
    if cell.status == "done":
        return Styled(counts, "plain")
    status = cell.status.replace("unrecorded", "missing")
    return Styled(f"{counts} {status}", LOOKS[status])


def effects_table(label: str, attribution: Attribution) -> Table:
    """Return a table of the effects of axes on throughput, then of those of pairs of axes.

    The effect of one axis is averaged over the values of the others; that of two is how much more the
    first contributes with the second than without it.
    """
    table = Table([label, "against", "speed", "verdict"])
    for effect in attribution.effects:
        word = "faster" if effect.ratio > 1 else "slower"
        if not effect.is_certain:
            word = "not certain"
        levels = axis_levels(effect.levels)
        reference = axis_levels(effect.reference)
        ratio = Effect(effect.ratio, (effect.low, effect.high))
        table.add_row(levels, reference, ratio, styled(word))
    return table
