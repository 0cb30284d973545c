"""`harness gate --against REV`: every cell of a sweep, this working tree against another revision of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.core.errors import HarnessError
from harness.gate.paired import Budget, Paired, measure
from harness.gate.worktree import Tree, commit_of, find_top, worktree
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA

WORKING_TREE = "the working tree"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `harness gate` was asked for."""

    against: str
    min_effect: float = 0.01
    seconds: float = 30.0  # of measuring, for each cell
    bits: bool = False  # whether other losses fail
    control: bool = False  # whether the revision is measured against itself too
    order: int | None = None  # of the random order, for a run to be repeated


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a gate measures on, and how far it can be trusted there, in words."""

    hardware: str  # its key
    torch: str
    certificate: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """On one cell. `control` is the revision against itself."""

    cell: Cell
    found: Paired
    control: Paired | None = None

    @property
    def misled(self) -> bool:
        """Whether the control told equal code apart, or failed: then its cell's speed says nothing."""
        return self.control is not None and (
            self.control.word in ("faster", "slower") or bool(self.control.failure)
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a gate says."""

    asked: Asked
    conditions: Conditions
    commit: str  # what `asked.against` stands for
    verdicts: Sequence[Verdict]

    def failed(self, one: Verdict) -> bool:
        differs = self.asked.bits and one.found.same_bits is False
        return (
            one.found.failure is not None
            or differs
            or (one.found.word == "slower" and not one.misled)
        )

    def unclear(self, one: Verdict) -> bool:
        return not self.failed(one) and (one.misled or one.found.word == "inconclusive")

    @property
    def exit_code(self) -> int:
        """1 if a cell failed, else 3 if one can't be told, else 0."""
        if any(self.failed(one) for one in self.verdicts):
            return 1
        return 3 if any(self.unclear(one) for one in self.verdicts) else 0


def gate(
    sweep: Sweep,
    profile: Profile,
    asked: Asked,
    conditions: Conditions,
    top_of: Path,
    told: Callable[[Cell, str], None],
) -> Outcome:
    """Measure; raises BadInput for a revision that there is not. A side that fails, fails its cell."""
    top = find_top(top_of)
    commit = commit_of(top, asked.against)
    rng = np.random.default_rng(asked.order)
    budget = Budget(
        min_effect=asked.min_effect, seconds=asked.seconds, alpha=ALPHA / len(sweep.cells)
    )
    here = Tree(name=WORKING_TREE, top=top, place=top)
    place = Path(tempfile.mkdtemp(prefix="harness-gate-"))
    try:
        with worktree(top, asked.against, place / "tree") as there:
            verdicts = []
            for cell in sweep.cells:

                def run_paired(a: Tree, b: Tree, words: str, cell: Cell = cell) -> Paired:
                    def tell(found: str) -> None:
                        told(cell, f"{words}: {found}")

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
                        return Paired(failure=str(error))

                control = run_paired(there, there, "control") if asked.control else None
                verdicts.append(
                    Verdict(cell=cell, found=run_paired(there, here, "measuring"), control=control)
                )
            return Outcome(asked=asked, conditions=conditions, commit=commit, verdicts=verdicts)
    finally:
        shutil.rmtree(place, ignore_errors=True)
