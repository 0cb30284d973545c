"""`harness gate --against REV`: measures every cell of a sweep in the working tree against another
revision of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from harness.analysis.questions import ACCURACY_MARGIN
from harness.core.errors import HarnessError
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree, checked_out, find_repository, resolve_commit
from harness.gate.accuracy import AccuracyResult, RevisionTrainer, choose_seeds, judge_accuracy
from harness.gate.limits import Policy
from harness.gate.paired import (
    FRESH_PAIRS_PER_BUDGET,
    PAIRS_PER_BUDGET,
    Budget,
    PairedResult,
    measure,
)
from harness.gate.sweep_changes import SweepChange, compare_with_revision
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA

MIN_EFFECT = 0.01
WORKING_TREE = "the working tree"
EXIT_CODES: Mapping[Policy, int] = {"ignore": 0, "warn": 3, "fail": 1}  # of inconclusive cells


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """The options of `harness gate`, with the defaults of the command line."""

    revision: str = ""  # to measure against
    stack: str = ""  # to measure against instead, by its name in the sweep
    min_effect: float = MIN_EFFECT  # smallest slowdown that matters, a fraction of throughput
    # Where `min_effect` comes from, if not from the user or the default.
    min_effect_source: str = ""
    budget_seconds: float = 30.0  # of measuring, for each cell
    compare_bits: bool = False  # whether other losses fail a cell
    control: bool = False  # whether the revision is measured against itself too
    order_seed: int | None = None  # of the random order of arms, to repeat a run
    accuracy_seeds: int = 0  # number of seeds to train each cell to the end with; 0: speed only
    # The smallest difference of the target metric that matters, in its unit.
    accuracy_margin: float = ACCURACY_MARGIN
    inconclusive: Policy = "warn"  # for cells that neither fail nor pass
    accept_sweep_changes: bool = False  # whether cells that the sweep has lost pass
    settings: Sequence[str] = ()  # `--set`, for the revision's sweep
    data: Sequence[str] = ()  # `--data`, likewise

    def budget(self, cells: int) -> Budget:
        """Return the budget of each of so many cells, which share the allowed chance of a false alarm."""
        return Budget(
            min_effect=self.min_effect,
            seconds=self.budget_seconds,
            alpha=ALPHA / max(1, cells),
            pairs=FRESH_PAIRS_PER_BUDGET if self.stack else PAIRS_PER_BUDGET,
            one_sided=True,
        )


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The machine of a gate, and its certificate."""

    hardware: str  # the key of this machine
    torch: str  # version
    certificate: str  # the A/A certificate of this machine, as a sentence


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """The measurements of one cell.

    Whether it fails also depends on the gate's options: `GateOutcome` decides that.
    """

    cell: Cell
    measured: PairedResult  # the working tree (B) against the revision (A)
    control: PairedResult | None = None  # the revision against itself
    accuracy: AccuracyResult | None = None  # None if it was not requested

    @property
    def control_disagrees(self) -> bool:
        """Whether the control failed or found a difference between equal code.

        The verdict on the cell's speed is then not reliable.
        """
        if self.control is None:
            return False
        return self.control.verdict in ("faster", "slower") or bool(self.control.failure)

    @property
    def is_slower(self) -> bool:
        """Whether the cell is slower, by measurements that its control does not contradict."""
        return self.measured.verdict == "slower" and not self.control_disagrees


@dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """The decision of a gate for each cell."""

    options: GateOptions
    conditions: Conditions
    commit: str  # the full id of `options.revision`; empty against a stack
    cells: Sequence[CellOutcome]
    sweep_changes: Sequence[SweepChange] = ()
    # By measured stack, the packages that differ from those of `options.stack`.
    package_changes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def refused_changes(self) -> list[SweepChange]:
        """The changes of the sweep that fail the gate."""
        if self.options.accept_sweep_changes:
            return []
        return [change for change in self.sweep_changes if change.may_hide]

    def has_failed(self, outcome: CellOutcome) -> bool:
        """Whether a cell fails.

        It fails if it could not be measured, is slower, is less accurate, or computes other losses
        with `compare_bits`.
        """
        if outcome.measured.failure is not None:
            return True
        if outcome.accuracy is not None and outcome.accuracy.outcome in ("worse", "failed"):
            return True
        if self.options.compare_bits and outcome.measured.same_bits is False:
            return True
        return outcome.is_slower

    @property
    def slower_cells(self) -> list[CellOutcome]:
        """The cells that fail because they are slower."""
        return [outcome for outcome in self.cells if outcome.is_slower]

    def is_inconclusive(self, outcome: CellOutcome) -> bool:
        """Whether a cell neither fails nor passes."""
        if self.has_failed(outcome):
            return False
        if outcome.accuracy is not None and outcome.accuracy.outcome == "inconclusive":
            return True
        return outcome.control_disagrees or outcome.measured.verdict == "inconclusive"

    @property
    def has_no_cells(self) -> bool:
        """Whether nothing was judged: no cell was measured, and no change of the sweep is refused."""
        return not self.cells and not self.refused_changes

    @property
    def exit_code(self) -> int:
        """1 if a cell failed or was lost, else 3 if one is inconclusive or none was measured, else 0.

        `options.inconclusive` makes an inconclusive cell a failure, or lets it pass. A gate that
        measured nothing never passes.
        """
        if self.has_no_cells:
            return 1 if self.options.inconclusive == "fail" else EXIT_CODES["warn"]
        is_inconclusive = any(self.is_inconclusive(outcome) for outcome in self.cells)
        if self.refused_changes or any(self.has_failed(outcome) for outcome in self.cells):
            return 1
        if is_inconclusive:
            return EXIT_CODES[self.options.inconclusive]
        return 0


def gate(
    sweep: Sweep,
    profile: Profile,
    options: GateOptions,
    conditions: Conditions,
    inside: Path,
    on_progress: Callable[[Cell, str], None],
) -> GateOutcome:
    """Measure all cells of a sweep, in the repository that contains the path `inside`.

    The other revision is checked out in a temporary folder; the working tree, including uncommitted
    changes, stays as it is. If an arm fails, only its cell fails. Raises BadInput outside of a
    repository and for a revision that does not exist.
    """
    repository = find_repository(inside)
    commit = resolve_commit(repository, options.revision)
    working_tree = Tree(name=WORKING_TREE, top=repository, path=repository)
    with (
        ScratchFolder("gate") as scratch,
        checked_out(repository, options.revision, scratch.path / "tree") as revision,
    ):
        compared = compare_with_revision(sweep, revision, options.settings, options.data)
        arms = [Arms(cell=cell, reference=revision, tree=working_tree) for cell in compared.cells]
        outcomes = measure_cells(arms, sweep, profile, options, on_progress)
    return GateOutcome(
        options=options,
        conditions=conditions,
        commit=commit,
        cells=outcomes,
        sweep_changes=compared.changes,
    )


@dataclass(frozen=True, kw_only=True)
class Arms:
    """A cell, and the two trees that it is measured in."""

    cell: Cell
    reference: Tree  # arm A
    tree: Tree  # arm B, which is judged


def measure_cells(
    arms: Sequence[Arms],
    sweep: Sweep,
    profile: Profile,
    options: GateOptions,
    on_progress: Callable[[Cell, str], None],
) -> list[CellOutcome]:
    """Measure each cell's tree against its reference, and compare their accuracy if that is asked for.

    If an arm fails, its cell has the failure instead of a measurement.
    """
    rng = np.random.default_rng(options.order_seed)
    budget = options.budget(len(arms))

    def measure_tree(cell: Cell, a: Tree, b: Tree, activity: str) -> PairedResult:
        """Measure a cell in two trees; `activity` is the prefix of progress messages."""
        on_progress(cell, f"{activity}: starting")
        try:
            return measure(
                cell,
                sweep.seeds[0],
                {"a": a, "b": b},
                sweep.base_folder,
                profile,
                budget,
                rng,
                lambda text: on_progress(cell, f"{activity}: {text}"),
            )
        except HarnessError as error:
            return PairedResult(failure=str(error))

    outcomes = []
    for entry in arms:
        control = None
        if options.control:
            control = measure_tree(entry.cell, entry.reference, entry.reference, "control")
        measured = measure_tree(entry.cell, entry.reference, entry.tree, "measuring")
        outcomes.append(CellOutcome(cell=entry.cell, measured=measured, control=control))
    if not options.accuracy_seeds:
        return outcomes
    trained = []
    for entry in arms:
        trees = {"a": entry.reference, "b": entry.tree}
        with ScratchFolder("gate") as scratch:
            trainer = RevisionTrainer(trees, sweep.base_folder, profile, sweep.timeout, scratch)
            seeds = choose_seeds(sweep.seeds_of(entry.cell), options.accuracy_seeds)
            trained.append(trainer.train(entry.cell, seeds, partial(on_progress, entry.cell)))
    results = judge_accuracy(trained, options.accuracy_margin)
    with_accuracy = []
    for outcome, result in zip(outcomes, results, strict=True):
        with_accuracy.append(replace(outcome, accuracy=result))
    return with_accuracy
