"""The one model of a sweep's results, computed once from records and shown by every renderer.

The terminal, the HTML report and MLflow only format what is here. Verdicts and attributions are
computed when they are first read, because some callers only need means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harness.analysis.cells import group_by_cell, varying_axes
from harness.analysis.compare import CellComparison, MetricRow, Side, against_first
from harness.analysis.questions import SPEED, throughput_question
from harness.analysis.result import UNRECORDED, CellResult, cell_result
from harness.core.errors import BadInput
from harness.records.record import Record
from harness.statistics.attribution import Attribution, TrialThroughput, attribute
from harness.statistics.verdict import ALPHA
from harness.sweep.cell import Cell
from harness.sweep.sweep import Sweep

LANES = "lanes"  # in attributions, the axis that says how many trials ran side by side


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The cells of a sweep with what their trials measured, and what is certain about them.

    A `CellResult` holds the cell, its trials, the intervals of throughput and of the target metric
    and the counts of trials that are not done; this class adds what takes several cells.
    """

    name: str  # of the sweep
    cells: Sequence[CellResult]  # in the order in which they are shown
    records: Mapping[str, Sequence[Record]] = field(default_factory=dict)  # by cell id, if at hand

    @staticmethod
    def of_records(sweep: Sweep, records: Sequence[Record]) -> SweepResult:
        """Return the result of a sweep from its records, every planned cell included.

        Cells are in the sweep's order; trials that have no record count as unrecorded.
        """
        by_cell = group_by_cell(records)
        recorded = {record.trial.id for record in records}
        missing: Counter[str] = Counter()  # the trials that have no record, by the id of their cell
        for trial in sweep.trials():
            # Records that an earlier command asked for make up for none.
            if trial.id not in recorded:
                missing[trial.cell.id] += 1
        cells = []
        for cell in sweep.cells:
            cells.append(cell_result(cell, by_cell.get(cell.id, ()), missing[cell.id]))
        return SweepResult(name=sweep.name, cells=cells, records=by_cell)

    @property
    def all_cells(self) -> list[Cell]:
        """The cells without their results."""
        return [result.cell for result in self.cells]

    @cached_property
    def workloads(self) -> dict[str, list[CellResult]]:
        """The cells by the label of their workload."""
        workloads: dict[str, list[CellResult]] = {}
        for result in self.cells:
            workloads.setdefault(result.cell.workload.label, []).append(result)
        return workloads

    def done_records(self, cell: Cell) -> list[Record]:
        """Return the records of a cell's trials that are done."""
        records = self.records.get(cell.id, ())
        return [record for record in records if record.status == "done"]

    @cached_property
    def side(self) -> Side:
        """The recorded cells, as one side of a comparison with another sweep or a baseline."""
        recorded = []
        for cell in self.cells:
            if cell.planned > cell.left_out.get(UNRECORDED, 0):
                recorded.append(cell)
        return Side(name=self.name, cells=recorded)

    @cached_property
    def comparison(self) -> CellComparison | None:
        """The comparison of each cell with the reference of its workload.

        None where no two cells share a workload.
        """
        return against_first(self.side)

    @cached_property
    def attributions(self) -> Mapping[str, Attribution]:
        """What each axis contributes, by workload; without those that have too few trials."""
        return attributions(self.side)

    @cached_property
    def _rows(self) -> dict[str, list[MetricRow]]:
        """The rows of the comparison by the id of the cell that is judged."""
        rows: dict[str, list[MetricRow]] = {}
        for row in [] if self.comparison is None else self.comparison.rows:
            rows.setdefault(row.b.cell.id, []).append(row)
        return rows

    @cached_property
    def _reference_ids(self) -> set[str]:
        """The ids of all cells that others are compared with."""
        return {rows[0].a.cell.id for rows in self._rows.values()}

    def rows(self, cell: Cell) -> list[MetricRow]:
        """Return the verdicts on a cell against its reference, throughput first.

        The reference itself has none.
        """
        return self._rows.get(cell.id, [])

    def throughput_row(self, cell: Cell) -> MetricRow | None:
        """Return the verdict on a cell's throughput, None for the reference of its workload."""
        return next((row for row in self.rows(cell) if row.is_throughput), None)

    def metric_row(self, cell: Cell) -> MetricRow | None:
        """Return the verdict on a cell's target metric, None for the reference of its workload."""
        return next((row for row in self.rows(cell) if row.is_target_metric), None)

    def is_reference(self, cell: Cell) -> bool:
        """Return whether other cells are compared with this one."""
        return cell.id in self._reference_ids

    def ranking(self, workload: str) -> list[CellResult]:
        """Return the measured cells of a workload from the fastest to the slowest."""
        measured = [cell for cell in self.workloads[workload] if cell.throughput]
        return sorted(measured, key=lambda cell: cell.mean_throughput, reverse=True)

    def contenders(self, workload: str) -> list[CellResult]:
        """Return the cells that can't be distinguished from the fastest of a workload.

        The fastest itself is not among them. A cell is distinguished by the test among the cells of
        the workload (`contenders`), and by the comparison of the whole sweep where that has a
        verdict on the two: one of them says nothing that the other denies.
        Raises ValueError where no cell was measured.
        """
        fastest, *slower = self.ranking(workload)
        open_ids = {cell.cell.id for cell in contenders(fastest, slower)}
        open_cells = []
        for cell in slower:
            if cell.cell.id in open_ids or self._is_denied(fastest, cell):
                open_cells.append(cell)
        return open_cells

    def _is_denied(self, fastest: CellResult, slower: CellResult) -> bool:
        """Return whether a verdict speaks against one cell being faster than another.

        There is a verdict only where one of the two is the reference of the other.
        """
        for judged, reference, outcome in ((fastest, slower, "better"), (slower, fastest, "worse")):
            row = self.throughput_row(judged.cell)
            if row is not None and row.a.cell.id == reference.cell.id:
                return row.verdict.outcome != outcome
        return False

    def has_single_trials(self, workload: str) -> bool:
        """Return whether no measured cell of a workload has a second trial to show variation."""
        return all(len(cell.measured_trials) < 2 for cell in self.ranking(workload))

    def is_winner_certain(self, workload: str) -> bool:
        """Return whether the fastest cell of a workload is the winner, not merely ahead.

        That takes another measured cell, and every other one to be slower for certain. All that
        calls a cell the winner (the terminal's star, the report's badge, MLflow's description) asks
        this.
        """
        if len(self.ranking(workload)) < 2 or self.has_single_trials(workload):
            return False
        return not self.contenders(workload)


def contenders(fastest: CellResult, slower: Sequence[CellResult]) -> list[CellResult]:
    """Return the cells that are not significantly slower than the fastest by as much as matters.

    Bonferroni over the others: if another cell is truly the best, a false winner has to be better
    than that cell, which is one of `len(slower)` comparisons, however the winner was picked (Hsu
    1981, doi:10.1214/aos/1176345582). The test is two-sided, as that of every verdict, so that the
    interval that is shown of a difference which counts leaves out 1.
    """
    found = []
    for cell in slower:
        question = throughput_question(cell, fastest, SPEED.min_effect)
        if question is not None:
            _, upper_margin = question.metric.margins
            is_significant = question.estimate.p_change() <= ALPHA / len(slower)
            if is_significant and question.estimate.value >= upper_margin:
                continue
        found.append(cell)
    return found


def attributions(side: Side) -> dict[str, Attribution]:
    """Return the attribution of each workload that allows one, by its label.

    Throughputs of different workloads have nothing in common, so each has its own model. Its cells have
    to differ in an axis, and it needs more trials than the model has parameters. Trials of all cells with
    the same seed and repeat ran interleaved and are one block: they have the seed and the drift of the
    machine in common. What else ran on the machine counts as one more axis.
    """
    cells = [result.cell for result in side.cells]
    varying = varying_axes(cells)  # one that is the same everywhere has no effect
    points: dict[str, list[TrialThroughput]] = {}
    for result in side.cells:
        levels: dict[str, Hashable] = {axis: result.cell.level(axis) for axis in varying}
        of_workload = points.setdefault(result.cell.workload.label, [])
        for trial, value in zip(result.measured_trials, result.log_throughputs, strict=True):
            of_trial = {**levels, LANES: str(trial.lanes)}
            block = (trial.seed, trial.repeat)
            of_workload.append(TrialThroughput(levels=of_trial, block=block, value=value))
    by_workload = {}
    for workload, of_workload in points.items():
        attribution = attribute(of_workload) if of_workload else None
        if attribution is not None and attribution.effects:
            by_workload[workload] = attribution
    return by_workload


def effects(side: Side) -> Mapping[str, Attribution]:
    """Return what `attributions` returns; raises BadInput if it is empty."""
    by_workload = attributions(side)
    if not by_workload:
        raise BadInput(
            f"{side.name}: found too few trials to tell effects from noise;"
            " allowed: cells that differ in an axis, and more seeds or repeats"
        )
    return by_workload
