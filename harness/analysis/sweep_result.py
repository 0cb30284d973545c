"""The one model of a sweep's results, computed once from records and shown by every renderer.

The terminal, the HTML report and MLflow only format what is here. Verdicts and attributions are
computed when they are first read, because some callers only need means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from harness.analysis.cells import group_by_cell, varying_axes
from harness.analysis.compare import CellComparison, Match, Side, against_first, matching_key
from harness.analysis.questions import SPEED, throughput_question
from harness.analysis.result import UNRECORDED, CellResult, cell_result
from harness.core.errors import BadInput
from harness.records.record import Record
from harness.statistics.attribution import Attribution, TrialThroughput, attribute
from harness.statistics.verdict import ALPHA, MetricVerdict
from harness.sweep.cell import Cell
from harness.sweep.sweep import Sweep

LANES = "lanes"  # in attributions, the axis that says how many trials ran side by side


@dataclass(frozen=True, kw_only=True)
class SweepResult(Side):
    """The cells of a sweep with what their trials measured, and what is certain about them.

    A `CellResult` holds the cell, its trials, the intervals of throughput and of the target metric
    and the counts of trials that are not done; this class adds what takes several cells.
    """

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
            of_cell = by_cell.get(cell.id, ())
            cells.append(cell_result(cell, of_cell, missing[cell.id]))
        return SweepResult(name=sweep.name, cells=cells, records=by_cell)

    @cached_property
    def workloads(self) -> dict[str, list[CellResult]]:
        """The cells by the label of their workload."""
        workloads: dict[str, list[CellResult]] = {}
        for result in self.cells:
            of_workload = workloads.setdefault(result.cell.workload.label, [])
            of_workload.append(result)
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
    def comparison(self) -> CellComparison:
        """The comparison of each cell with the reference of its workload."""
        return against_first(self.side)

    @cached_property
    def _matches(self) -> dict[str, Match]:
        """The matches of the comparison by the id of the cell that is judged."""
        judged = filter(attrgetter("verdicts"), self.comparison.matches)
        return {match.b.cell.id: match for match in judged}

    @cached_property
    def _reference_ids(self) -> set[str]:
        """The ids of all cells that others are compared with."""
        return {match.a.cell.id for match in self._matches.values()}

    def match_of(self, cell: Cell) -> Match | None:
        """Return the verdicts on a cell against the reference of its workload, which has none itself."""
        return self._matches.get(cell.id)

    def speed(self, cell: Cell) -> MetricVerdict | None:
        """Return the verdict on a cell's throughput, None for the reference of its workload."""
        match = self.match_of(cell)
        return None if match is None else match.speed

    def is_reference(self, cell: Cell) -> bool:
        """Return whether other cells are compared with this one."""
        return cell.id in self._reference_ids

    def answers(self, result: CellResult) -> dict[str, float | None]:
        """Return what a cell has shown: throughput, target metric, and its speed against the first cell.

        Each is followed by the bounds of its interval, as in `speedup_low`, None where too few values
        give none. What was not measured is absent; the first cell has no speedup.
        """
        answers: dict[str, float | None] = {}
        intervals = {"throughput": result.throughput, "metric": result.metric}
        for name, interval in intervals.items():
            if interval is not None:
                low, high = interval.bounds or (None, None)
                answers[name] = interval.mean
                answers[f"{name}_low"] = low
                answers[f"{name}_high"] = high
        verdict = self.speed(result.cell)
        if verdict is not None:
            low, high = verdict.interval or (None, None)
            answers["speedup"] = verdict.effect
            answers["speedup_low"] = low
            answers["speedup_high"] = high
        return answers

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
        pairs = ((fastest, slower, "better"), (slower, fastest, "worse"))
        for judged, reference, outcome in pairs:
            match = self.match_of(judged.cell)
            if match is None or match.a is not reference or match.speed is None:
                continue
            return match.speed.outcome != outcome
        return False

    def has_single_trials(self, workload: str) -> bool:
        """Return whether no measured cell of a workload has a second trial to show variation."""
        measured = self.ranking(workload)
        return all(len(cell.measured_trials) < 2 for cell in measured)


def contenders(fastest: CellResult, slower: Sequence[CellResult]) -> list[CellResult]:
    """Return the cells that are not significantly slower than the fastest by as much as matters.

    Bonferroni over the others: if another cell is truly the best, a false winner has to be better
    than that cell, which is one of `len(slower)` comparisons, however the winner was picked (Hsu
    1981, doi:10.1214/aos/1176345582). The test is two-sided, as that of every verdict, so that the
    interval that is shown of a difference which counts leaves out 1.
    """
    open_cells = []
    level = ALPHA / max(1, len(slower))
    for cell in slower:
        question = throughput_question(cell, fastest, SPEED.min_effect)
        is_slower = False
        if question is not None and question.estimate.p_change() <= level:
            _, upper_margin = question.metric.margins
            is_slower = question.estimate.value >= upper_margin
        if not is_slower:
            open_cells.append(cell)
    return open_cells


def scaling_shares(cells: Sequence[CellResult]) -> dict[str, float]:
    """Return the share of ideal scaling of cells of one workload, by the id of the cell.

    Ideal is in proportion to the ranks, at the same global batch size. The base is the measured cell
    of the same settings and the same strategy with the fewest ranks, or one without a strategy on a
    single rank. A cell that is its own base has no share.
    """
    measured = [cell for cell in cells if cell.throughput is not None]
    fewest_first = sorted(measured, key=lambda cell: cell.cell.axes.world_size)
    bases: dict[tuple[str, str], CellResult] = {}  # by the other settings and the strategy
    shares = {}
    for cell in fewest_first:
        axes = cell.cell.axes
        settings = matching_key(cell.cell, ("strategy", "world_size"))
        base = bases.setdefault((settings, axes.strategy), cell)
        base = bases.get((settings, "single"), base)
        ranks = axes.world_size / base.cell.axes.world_size
        if ranks > 1:
            speedup = cell.mean_throughput / base.mean_throughput
            shares[cell.cell.id] = speedup / ranks
    return shares


def attributions(side: Side) -> dict[str, Attribution]:
    """Return the attribution of each workload that allows one, by its label.

    Throughputs of different workloads have nothing in common, so each has its own model. Its cells have
    to differ in an axis, and it needs more trials than the model has parameters. Trials of all cells with
    the same seed and repeat ran interleaved and are one block: they have the seed and the drift of the
    machine in common. What else ran on the machine counts as one more axis.
    """
    varying = varying_axes(side.all_cells)  # others have no effect
    points: dict[str, list[TrialThroughput]] = {}
    for result in side.cells:
        of_workload = points.setdefault(result.cell.workload.label, [])
        of_workload += _trial_throughputs(result, varying)
    by_workload = {}
    for workload, of_workload in points.items():
        if not of_workload:
            continue
        attribution = attribute(of_workload)
        if attribution is not None and attribution.effects:
            by_workload[workload] = attribution
    return by_workload


def _trial_throughputs(result: CellResult, axes: Sequence[str]) -> list[TrialThroughput]:
    """Return the throughput of each measured trial of a cell, with its levels of these axes."""
    levels: dict[str, Hashable] = {axis: result.cell.level(axis) for axis in axes}
    points = []
    for trial, value in zip(result.measured_trials, result.log_throughputs, strict=True):
        point = TrialThroughput(
            levels={**levels, LANES: str(trial.lanes)},
            block=(trial.seed, trial.repeat),
            value=value,
        )
        points.append(point)
    return points


def effects(side: Side) -> Mapping[str, Attribution]:
    """Return what `attributions` returns; raises BadInput if it is empty."""
    by_workload = attributions(side)
    if not by_workload:
        raise BadInput(
            f"{side.name}: found too few trials to tell effects from noise;"
            " allowed: cells that differ in an axis, and more seeds or repeats"
        )
    return by_workload
