"""What every section of the report starts from: the cells of a sweep with what their trials measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis.cells import group_by_cell, summary_values, varying_axes
from harness.analysis.compare import (
    Comparison,
    Row,
    Rules,
    Side,
    against_first,
    certified_drifts,
    compare,
)
from harness.analysis.effects import attributions
from harness.analysis.questions import SPEED
from harness.analysis.result import CellResult, aggregate
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.records.record import Record, Summary
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep
from harness.statistics.attribution import Attribution
from harness.statistics.interval import Interval, mean_interval

INITIALS = ("num_workers", "batch_size", "num_threads")  # axes that labels abbreviate


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """A cell and its trials; `name` tells it from the others of its workload, `number` is its place among them."""

    cell: Cell
    name: str
    number: int
    records: Sequence[Record]
    result: CellResult | None  # None without records

    @property
    def done(self) -> list[Record]:
        return [record for record in self.records if record.status == "done"]

    @property
    def absent(self) -> str:
        """Why there is nothing of it to show."""
        statuses = {record.status for record in self.records}
        worst = (status for status in ("failed", "invalid", "interrupted") if status in statuses)
        return next(worst, "not measured" if statuses else "not run")

    @property
    def rate(self) -> Interval | None:
        """Samples/s over trials."""
        return self._interval("throughput")

    @property
    def metric(self) -> Interval | None:
        """The target metric at the end."""
        return self._interval("final_metric")

    @property
    def target(self) -> str:
        """The target metric's name, or nothing."""
        return next((record.rank0.target.name for record in self.done if record.rank0), "")

    def _interval(self, name: str) -> Interval | None:
        values = summary_values(self.done, name)
        return mean_interval(values) if values else None

    def mean(self, number: Callable[[Record], float | None]) -> float | None:
        """Over its done trials that have the number."""
        found = [value for value in map(number, self.done) if value is not None]
        return fmean(found) if found else None

    @property
    def summaries(self) -> list[Summary]:
        return [record.summary for record in self.done if record.summary]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A sweep, its cells by workload, and what is certain about them. `against` is what another side says of it."""

    sweep: Sweep
    records: Sequence[Record]
    workloads: dict[str, list[CellFacts]]
    comparison: Comparison | None  # of each cell with the first of its workload
    attributions: dict[str, Attribution]  # by workload
    against: tuple[str, Comparison] | None

    @property
    def cells(self) -> list[CellFacts]:
        return [cell for cells in self.workloads.values() for cell in cells]

    def row(self, cell: Cell, metric: str = SPEED.name) -> Row | None:
        """The verdict on a cell against the reference of its workload; None for the reference itself."""
        rows = self.comparison.rows if self.comparison else ()
        return next(
            (
                r
                for r in rows
                if r.b.cell.id == cell.id and r.verdict.question.metric.name == metric
            ),
            None,
        )

    def reference(self, workload: str) -> CellFacts | None:
        """The cell that the others of the workload are held against."""
        return next((cell for cell in self.workloads[workload] if cell.rate), None)


def gather(place: Results, sweep: Sweep, records: Sequence[Record], against: Side | None) -> Facts:
    """Raises BadInput if there are no records, or if `against` can't be compared with them."""
    if not records:
        raise BadInput(f"{sweep.name}: found no records of it; allowed: what has run")
    by_cell = group_by_cell(records)
    labels: dict[str, list[Cell]] = {}
    for cell in sweep.cells:
        labels.setdefault(cell.workload.label, []).append(cell)
    axes = {label: telling(cells) for label, cells in labels.items()}
    results = {
        cell.id: aggregate(by_cell[cell.id])[0] for cell in sweep.cells if cell.id in by_cell
    }
    workloads: dict[str, list[CellFacts]] = {}
    for cell in sweep.cells:
        own = workloads.setdefault(cell.workload.label, [])
        found, name = by_cell.get(cell.id, []), words(cell, axes[cell.workload.label]) or cell.label
        own.append(
            CellFacts(
                cell=cell, name=name, number=len(own), records=found, result=results.get(cell.id)
            )
        )
    side = Side(name=sweep.name, cells=list(results.values()))
    held = None
    if against:
        held = (
            against.name,
            compare(against, [side], Rules(drift=certified_drifts(place, (against, side)))),
        )
    return Facts(
        sweep=sweep,
        records=records,
        workloads=workloads,
        comparison=against_first(side),
        attributions=attributions(side),
        against=held,
    )


def telling(cells: Sequence[Cell]) -> list[str]:
    """The axes in which cells differ; strategy stands for the number of ranks too."""
    found = varying_axes(cells)
    return [axis for axis in found if axis != "world_size" or "strategy" not in found]


def words(cell: Cell, axes: Sequence[str]) -> str:
    """The values of some axes, as a cell's label has them: `compile bf16 ddp×2 w0`."""
    return " ".join(_word(cell, axis) for axis in axes)


def _word(cell: Cell, axis: str) -> str:
    value = getattr(cell.axes, axis)
    if axis in ("strategy", "world_size"):
        strategy = cell.axes.strategy
        return strategy if strategy == "single" else f"{strategy}×{cell.axes.world_size}"
    if axis in INITIALS:
        return f"{axis[0]}{value}"
    return value if isinstance(value, str) else f"{axis}={value}"
