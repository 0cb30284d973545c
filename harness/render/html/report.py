"""What every section of the report starts from: the result of a sweep, and its cells' records.

Means, intervals, verdicts and attributions are those of the model of results (`SweepResult`).
Records are there for what the model does not hold: curves, step times, phases, environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.analysis.compare import CellComparison, Rules, Side, compare
from harness.analysis.parity import SweepParity, read_parity, with_seeds
from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder
from harness.hardware.machine import Machine
from harness.preflight.rates import RateSearch, read_search
from harness.preflight.report import Preflight, read_preflight
from harness.records.record import Record, Summary
from harness.render.format import cell_names
from harness.render.roofline import with_measured_peaks
from harness.serving.record import TrialExport, read_export
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep

REASONS = ("failed", "invalid", "interrupted")  # why a cell has no numbers, the worst first
# A browser takes long over thousands of rows, and the steps of a trial milliseconds to be read.
MAX_CELLS = 100  # of a workload, of which all have rows
FASTEST = 40  # cells that have rows where there are more


@dataclass(frozen=True, kw_only=True)
class ReportCell:
    """A cell of the report: its result, and the records of its done trials.

    Cells of the sweep that have not run are there too, with an empty result.
    """

    result: CellResult
    name: str  # distinguishes it from the other cells of its workload
    number: int  # counts the cells of its workload, from 0
    done: Sequence[Record]  # those of its trials that are done

    @property
    def cell(self) -> Cell:
        """The cell itself: its workload and axes."""
        return self.result.cell

    @property
    def summaries(self) -> list[Summary]:
        """The summaries of the done trials."""
        return [record.summary for record in self.done if record.summary]

    @property
    def why_unmeasured(self) -> str:
        """Why the cell has no throughput, in one or two words for a field of the matrix."""
        if not self.result.is_recorded:
            return "not run"
        for status in REASONS:
            if self.result.left_out.get(status):
                return status
        return "not measured"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a report shows."""

    sweep: Sweep
    folder: SweepFolder
    records: Sequence[Record]  # with MFU against the peaks of `machines`
    machines: Mapping[str, Machine]  # those that `harness peak` has measured, by key
    result: SweepResult
    workloads: dict[str, list[ReportCell]]  # all cells, by label
    shown: dict[str, list[ReportCell]]  # those that have rows, by label
    against: tuple[str, CellComparison] | None  # the name of what the sweep is compared with
    parity: SweepParity | None  # how alike cells compute; None if `harness parity` never ran
    preflight: Preflight | None  # what `harness check` has found out; None if it never ran
    rates: RateSearch | None  # what `harness find-lr` has found out; None if it never ran
    exports: Sequence[TrialExport]  # of those trials that `harness export` was used on
    unreadable_count: int = 0  # records that are left out
    other_code_count: int = 0  # and those of trials whose workload had other code

    @property
    def repeats(self) -> int:
        """The repeats that the sweep asks for, or that an earlier command has left if more."""
        return max(self.sweep.repeats, *(record.trial.repeat + 1 for record in self.records))

    @property
    def cells(self) -> list[ReportCell]:
        """The cells of all workloads."""
        return [cell for cells in self.workloads.values() for cell in cells]

    @property
    def omitted_count(self) -> int:
        """How many cells have no rows."""
        return len(self.cells) - sum(map(len, self.shown.values()))

    def name(self, cell: Cell) -> str:
        """Return the short name of a cell of this sweep, by which its workload's rows call it."""
        return self._names.get(cell.id, cell.label)

    @cached_property
    def _names(self) -> dict[str, str]:
        """The short names of all cells by their ids."""
        return {cell.cell.id: cell.name for cell in self.cells}


def make_report(
    results: Results,
    sweep: Sweep,
    records: Sequence[Record],
    against: Side | None,
    goal: float | None = None,
) -> Report:
    """Return the report of a sweep, compared with `against` if that is not None.

    Records from before `harness peak` has measured their machine get their MFU now.

    Raises BadInput if there are no records, if `against` cannot be compared with them, and for a
    damaged file of a pre-flight.
    """
    records, machines = with_measured_peaks(records, results)
    if not records:
        raise BadInput(f"{sweep.name}: found no records; allowed: a sweep that has run")
    result = SweepResult.of_records(sweep, records, goal)
    comparison = None
    if against is not None:
        rules = Rules(goal=goal)
        comparison = (against.name, compare(against, [result.side], rules))
    parity = read_parity(results.sweep_folder(sweep.name))
    workloads = {label: _report_cells(result, label) for label in result.workloads}
    return Report(
        sweep=sweep,
        folder=results.sweep_folder(sweep.name),
        records=records,
        machines=machines,
        result=result,
        workloads=workloads,
        shown={label: _shown_cells(cells) for label, cells in workloads.items()},
        against=comparison,
        parity=None if parity is None else with_seeds(parity, result.cells),
        preflight=read_preflight(results.sweep_folder(sweep.name).preflight_path),
        rates=read_search(results.sweep_folder(sweep.name)),
        exports=_exports(results.sweep_folder(sweep.name), records),
    )


def _exports(folder: SweepFolder, records: Sequence[Record]) -> list[TrialExport]:
    """Return the exports of all trials that have any; raises BadFile for a damaged file."""
    exported_ids = set(folder.exported_ids())
    exports = []
    for record in records:
        if record.trial.id not in exported_ids:
            continue
        export = read_export(folder.trial_folder(record.trial.id))
        if export is not None:
            exports.append(export)
    return exports


def _report_cells(result: SweepResult, workload: str) -> list[ReportCell]:
    """Return the cells of a workload, named by the axes in which they differ.

    The only cell of a workload differs from none, and has its full label.
    """
    cell_results = result.workloads[workload]
    names = cell_names(cell_result.cell for cell_result in cell_results)
    cells = []
    for number, cell_result in enumerate(cell_results):
        cell = cell_result.cell
        cells.append(
            ReportCell(
                result=cell_result,
                name=names[cell.id],
                number=number,
                done=result.done_records(cell),
            )
        )
    return cells


def _shown_cells(cells: Sequence[ReportCell]) -> list[ReportCell]:
    """Return the cells of a workload that have rows, in their order.

    Of more than MAX_CELLS these are the fastest, and the first measured cell, which the others are
    compared with.
    """
    if len(cells) <= MAX_CELLS:
        return list(cells)
    fastest = sorted(cells, key=lambda cell: cell.result.mean_throughput, reverse=True)
    chosen = {cell.number for cell in fastest[:FASTEST]}
    for cell in cells:
        if cell.result.throughput is not None:
            chosen.add(cell.number)
            break
    return [cell for cell in cells if cell.number in chosen]
