"""The parity of a sweep: how alike each of its cells is to a reference.

`harness.reproduce.parity` measures it by running cells again and writes `parity.json` into the
sweep's folder. The evidence of seeds comes from the sweep's records and is updated whenever the file
is read, because more seeds may have been recorded since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from harness.analysis.questions import ACCURACY_MARGIN, metric_question
from harness.analysis.result import CellResult
from harness.analysis.rungs import Rung, TensorDistance, at_least
from harness.core.errors import BadInput
from harness.core.paths import SweepFolder, write_atomically
from harness.records.format import (
    Amount,
    FileFormat,
    Moment,
    Number,
    Ordinal,
    decode_file,
    sealed_text,
)
from harness.statistics.verdict import MetricVerdict, judge
from harness.sweep.cell import Cell

SCHEMA = 6
PARITY_FORMAT = FileFormat(
    name="parity of a sweep",
    schema=SCHEMA,
    remedy="harness parity measures it again",
    is_sealed=True,
)


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first moment at which two trials differ."""

    step: Ordinal  # counted from 1
    phase: str  # one of `harness.records.trace.PHASES`
    ranks: Sequence[Number]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A cell that others are compared with, and how reliable that comparison is."""

    cell: Cell
    control: FirstDifference | None  # from a second run of it; None: the same bits
    steps: Sequence[Ordinal]  # after which tensors were kept
    fp64_problem: str | None  # why nothing is compared with a run in fp64; None: it is


@dataclass(frozen=True, kw_only=True)
class CellParity:
    """How alike a cell is to its reference."""

    cell: Cell
    reference: str  # the id of the reference's cell
    # The axes by which the two compute something else by design. If there are any, nothing was compared.
    by_design: Sequence[str] = ()
    failure: str | None = None  # of the run to compare
    compared: Number = 0  # moments of training and evaluation whose digests were compared
    first_difference: FirstDifference | None = None  # None: the same bits at all of them
    differing: Sequence[str] = ()  # axes in which it differs from the reference
    tensor_rung: Rung | None = None  # reached by the tensors; None: seeds decide
    # The tensor that decides the rung, None where none differs.
    worst: TensorDistance | None = None
    # On the target metric over seeds; None if it is not needed, or fewer than two seeds are recorded.
    seeds: MetricVerdict | None = None

    @property
    def rung(self) -> Rung | None:
        """Return the highest rung that is shown, None if it is unknown."""
        if self.tensor_rung is not None or self.seeds is None:
            return self.tensor_rung
        if self.seeds.outcome == "inconclusive":
            return None
        if self.seeds.outcome == "same":
            return "equivalent"
        return "different"

    def reaches(self, lowest: Rung, *, is_fp64_known: bool) -> bool | None:
        """Return whether it is on `lowest` or a higher rung, None if that is unknown."""
        if self.failure is not None:
            return False
        is_rounding_open = lowest == "rounding" and not is_fp64_known
        if self.rung == "equivalent" and is_rounding_open:
            return None  # it may be on the rung above
        if self.rung is not None:
            return at_least(self.rung, lowest)
        if lowest in ("bitwise", "rounding") and not is_rounding_open:
            return False
        return None

    @property
    def is_compared(self) -> bool:
        """Return whether the cell was compared: not different by design, and its run succeeded."""
        return not self.by_design and self.failure is None


@dataclass(frozen=True, kw_only=True)
class SweepParity:
    """The parity of a sweep, as `harness parity` has measured it."""

    schema: int = SCHEMA
    sweep: str
    seed: Number  # of all runs
    measured: Moment  # seconds since the epoch
    margin: Amount = ACCURACY_MARGIN  # of the rung `equivalent`, in the target metric's unit
    references: Sequence[Reference]
    cells: Sequence[CellParity]  # all but the references, in the sweep's order

    def of(self, cell: Cell) -> CellParity | None:
        """Return the parity of a cell, None for a reference and for a cell that was not measured."""
        for parity in self.cells:
            if parity.cell.id == cell.id:
                return parity
        return None

    def is_reference(self, cell: Cell) -> bool:
        """Return whether other cells are compared with this one."""
        return any(reference.cell.id == cell.id for reference in self.references)

    def exit_code(self, lowest: Rung) -> int:
        """Return 0 if all compared cells are on `lowest` or higher, 1 if one is not, else 3.

        3 means that it is unknown for a cell. A cell that failed is on no rung.
        """
        with_fp64 = [entry.cell.id for entry in self.references if entry.fp64_problem is None]
        answers = []
        for cell in self.cells:
            if not cell.by_design:
                is_fp64_known = cell.reference in with_fp64
                answers.append(cell.reaches(lowest, is_fp64_known=is_fp64_known))
        if False in answers:
            return 1
        return 3 if None in answers else 0


def with_seeds(parity: SweepParity, results: Sequence[CellResult]) -> SweepParity:
    """Return the parity with the evidence of the target metric over the seeds of these cells.

    Only cells whose tensors reach no rung are tested, by pairs of trials with the same seed, all of
    them as one family.
    """
    by_cell = {result.cell.id: result for result in results}
    questions = {}  # by the id of a cell that seeds decide
    for cell in parity.cells:
        if cell.tensor_rung is not None or not cell.is_compared:
            continue
        if cell.cell.id not in by_cell or cell.reference not in by_cell:
            continue
        result, reference = by_cell[cell.cell.id], by_cell[cell.reference]
        question = metric_question(reference, result, parity.margin)
        if question is None or not question.estimate.paired:
            continue
        if question.estimate.standard_error is not None:
            questions[cell.cell.id] = question
    verdicts = judge(list(questions.values()))
    by_id = dict(zip(questions, verdicts, strict=True))
    cells = []
    for cell in parity.cells:
        seeds = by_id.get(cell.cell.id)
        cells.append(replace(cell, seeds=seeds))
    return replace(parity, cells=cells)


def write_parity(folder: SweepFolder, parity: SweepParity) -> None:
    """Write the parity into the sweep's folder, sealed."""
    write_atomically(folder.parity_path, sealed_text(asdict(parity)))


def read_parity(folder: SweepFolder) -> SweepParity | None:
    """Return the parity of a sweep, None where it was not measured.

    Raises BadFile for a file that is damaged, was changed or is of another major schema.
    """
    if not folder.parity_path.exists():
        return None
    return decode_file(SweepParity, folder.parity_path, PARITY_FORMAT)


def read_known_parity(folder: SweepFolder, results: Sequence[CellResult]) -> SweepParity | None:
    """Return the parity of a sweep with the seeds of its cells, None where it can't be read either."""
    try:
        parity = read_parity(folder)
    except BadInput:
        return None
    if parity is None:
        return None
    return with_seeds(parity, results)
