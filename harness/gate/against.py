"""`harness gate --against REV`: every cell of a sweep, this working tree against another revision of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.core.errors import HarnessError
from harness.gate.paired import Budget, PairedResult, measure
from harness.gate.worktree import Tree, find_top, resolve_commit, worktree
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA

WORKING_TREE = "the working tree"


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What `harness gate` was asked for."""

    revision: str
    min_effect: float = 0.01
    budget_seconds: float = 30.0  # of measuring, for each cell
    compare_bits: bool = False  # whether other losses fail
    control: bool = False  # whether the revision is measured against itself too
    order_seed: int | None = None  # of the random order, for a run to be repeated


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a gate measures on, and how far it can be trusted there, in words."""

    hardware: str  # its key
    torch: str
    certificate: str


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """On one cell. `control` is the revision against itself."""

    cell: Cell
    measured: PairedResult
    control: PairedResult | None = None

    @property
    def control_disagrees(self) -> bool:
        """Whether the control on_progress equal code apart, or failed: then its cell's speed says nothing."""
        return self.control is not None and (
            self.control.verdict in ("faster", "slower") or bool(self.control.failure)
        )


@dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """What a gate says."""

    options: GateOptions
    conditions: Conditions
    commit: str  # what `options.revision` stands for
    cells: Sequence[CellOutcome]

    def has_failed(self, one: CellOutcome) -> bool:
        differs = self.options.compare_bits and one.measured.same_bits is False
        return (
            one.measured.failure is not None
            or differs
            or (one.measured.verdict == "slower" and not one.control_disagrees)
        )

    def is_inconclusive(self, one: CellOutcome) -> bool:
        return not self.has_failed(one) and (
            one.control_disagrees or one.measured.verdict == "inconclusive"
        )

    @property
    def exit_code(self) -> int:
        """1 if a cell failed, else 3 if one can't be on_progress, else 0."""
        if any(self.has_failed(one) for one in self.cells):
            return 1
        return 3 if any(self.is_inconclusive(one) for one in self.cells) else 0


def gate(
    sweep: Sweep,
    profile: Profile,
    options: GateOptions,
    conditions: Conditions,
    top_of: Path,
    on_progress: Callable[[Cell, str], None],
) -> GateOutcome:
    """Measure; raises BadInput for a revision that there is not. A side that fails, fails its cell."""
    top = find_top(top_of)
    commit = resolve_commit(top, options.revision)
    rng = np.random.default_rng(options.order_seed)
    budget = Budget(
        min_effect=options.min_effect,
        seconds=options.budget_seconds,
        alpha=ALPHA / len(sweep.cells),
    )
    here = Tree(name=WORKING_TREE, top=top, path=top)
    place = Path(tempfile.mkdtemp(prefix="harness-gate-"))
    try:
        with worktree(top, options.revision, place / "tree") as there:
            cells = []
            for cell in sweep.cells:

                def run_paired(a: Tree, b: Tree, words: str, cell: Cell = cell) -> PairedResult:
                    def tell(found: str) -> None:
                        on_progress(cell, f"{words}: {found}")

                    tell("starting")
                    try:
                        return measure(
                            cell,
                            sweep.seeds[0],
                            {"a": a, "b": b},
                            sweep.base_folder,
                            profile,
                            budget,
                            rng,
                            tell,
                        )
                    except HarnessError as error:
                        return PairedResult(failure=str(error))

                control = run_paired(there, there, "control") if options.control else None
                cells.append(
                    CellOutcome(
                        cell=cell, measured=run_paired(there, here, "measuring"), control=control
                    )
                )
            return GateOutcome(options=options, conditions=conditions, commit=commit, cells=cells)
    finally:
        shutil.rmtree(place, ignore_errors=True)
