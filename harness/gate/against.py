"""`harness gate --against REV`: measures every cell of a sweep in the working tree against another
revision of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.progress import progress_of, report_progress
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree, checked_out, find_repository, resolve_commit
from harness.gate.certify import describe_machine
from harness.gate.paired import Budget, PairedResult, measure
from harness.gate.pairs import arm_server, compare_losses
from harness.hardware.machine import machine_key
from harness.launch.hold import hold_machine
from harness.measure.validity import load_of_others
from harness.statistics.verdict import ALPHA
from harness.sweep.cell import Cell
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep, load_sweep, ready_sweeps

WORKING_TREE = "the working tree"


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """The options of `harness gate`, with the defaults of the command line."""

    revision: str  # to measure against
    min_effect: float = 0.01  # smallest slowdown that matters, a fraction of throughput
    budget_seconds: float = 30.0  # of measuring, for each cell
    compare_bits: bool = False  # whether other losses fail a cell
    settings: Sequence[str] = ()  # `--set`, for the revision's sweep
    data: Sequence[str] = ()  # `--data`, likewise


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """The measurement of one cell."""

    cell: Cell
    measured: PairedResult  # the working tree (B) against the revision (A)
    # With `compare_bits`, whether the revision computes the same losses when it trains twice: where it
    # does not, other losses of the working tree prove nothing.
    is_repeatable: bool = True


@dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """The decision of a gate for each cell."""

    options: GateOptions
    hardware: str  # the key of this machine
    load: float | None  # threads of other programs that wanted a core as the gate began
    commit: str  # the full id of `options.revision`
    cells: Sequence[CellOutcome]
    lost: Sequence[str] = ()  # labels of cells that the sweep has lost, or has with other settings
    new: Sequence[str] = ()  # labels of cells that the revision lacks, not measured

    def has_failed(self, outcome: CellOutcome) -> bool:
        """Whether a cell could not be measured, is slower, or computes other losses where they count."""
        measured = outcome.measured
        if measured.failure is not None or measured.verdict == "slower":
            return True
        return self._has_other_losses(outcome) and outcome.is_repeatable

    def is_inconclusive(self, outcome: CellOutcome) -> bool:
        """Whether a cell neither fails nor passes."""
        if self.has_failed(outcome):
            return False
        return outcome.measured.verdict == "inconclusive" or self._has_other_losses(outcome)

    def _has_other_losses(self, outcome: CellOutcome) -> bool:
        """Return whether a cell computes other losses, and they are compared."""
        return self.options.compare_bits and outcome.measured.same_bits is False

    @property
    def exit_code(self) -> int:
        """1 if a cell failed; 3 if one is inconclusive or was lost, or none was measured; else 0."""
        if any(map(self.has_failed, self.cells)):
            return 1
        some_inconclusive = any(map(self.is_inconclusive, self.cells))
        if self.lost or not self.cells or some_inconclusive:
            return 3
        return 0


def gate(
    sweep: Sweep,
    profile: Profile,
    options: GateOptions,
    on_cell: Callable[[CellOutcome], None],
) -> GateOutcome:
    """Measure all cells of a sweep; `on_cell` gets each as soon as it is measured.

    The other revision is checked out in a temporary folder; the working tree, including uncommitted
    changes, stays as it is. If an arm fails, only its cell fails. Raises BadInput outside of a
    repository and for a revision that does not exist, before the machine is waited for.
    """
    repository = find_repository(repository_folder(sweep))
    commit = resolve_commit(repository, options.revision)
    working_tree = Tree(name=WORKING_TREE, top=repository, path=repository)
    with (
        hold_machine(profile, f"measuring {sweep.name}"),
        ScratchFolder("gate") as scratch,
        checked_out(repository, options.revision, scratch.path / "tree") as revision,
    ):
        load = load_of_others()
        if sweep.cells:
            arm_server(sweep.cells[0], profile)
        # While the forkserver loads torch, so does this process: the one that reads the revision's
        # sweep is forked from it.
        import_module("torch")
        before = cells_of_revision(sweep, revision, options)
        labels = {cell.label for cell in before}
        cells = []
        for cell in sweep.cells:
            if cell.label in labels or is_among(cell, before):
                cells.append(cell)
        trees = {"a": revision, "b": working_tree}
        budget = Budget(
            min_effect=options.min_effect,
            seconds=options.budget_seconds,
            alpha=ALPHA / max(1, len(cells)),  # cells share the allowed chance of a false alarm
        )
        outcomes = []
        for cell in cells:
            with progress_of(cell.label):
                outcome = _judge(sweep, cell, trees, profile, budget, options.compare_bits)
            outcomes.append(outcome)
            on_cell(outcome)
    return GateOutcome(
        options=options,
        hardware=machine_key(*describe_machine(profile)),
        load=load,
        commit=commit,
        cells=outcomes,
        lost=[cell.label for cell in before if not is_among(cell, sweep.cells)],
        new=[cell.label for cell in sweep.cells if cell not in cells],
    )


def repository_folder(sweep: Sweep) -> Path:
    """Return a folder in the repository to measure: the sweep file's, or the current one.

    A ready sweep is in the harness's own repository, which is not what its user changed.
    """
    if sweep.source in ready_sweeps().values():
        return Path()
    return sweep.base_folder


def cells_of_revision(sweep: Sweep, revision: Tree, options: GateOptions) -> Sequence[Cell]:
    """Return the cells that a revision's sweep has, under the same `--set` and `--data`.

    They are those of the working tree if the revision has no such sweep. Raises BadInput for one that
    can't be read.
    """
    source = revision.counterpart(sweep.source)
    if source == sweep.source.absolute() or not source.is_file():
        return sweep.cells
    try:
        return load_sweep(source, options.settings, options.data).cells
    except Exception as error:  # the revision's workloads are imported, which may raise anything
        raise BadInput(
            f"{source.name} of {revision.name} can't be read: {one_line(error)}"
        ) from None


def is_among(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Return whether one of the cells has the same settings.

    Settings that the sweep leaves to the code are not compared: each arm of a gate takes them from its
    own code.
    """
    written_ids = set(map(_written_id, cells))
    return _written_id(cell) in written_ids


def _written_id(cell: Cell) -> str:
    """Return the id of the settings that a sweep sets for a cell."""
    written = cell.with_any_code()
    if "batch_size" in cell.workload.unset:
        axes = replace(cell.axes, batch_size=1)
        written = replace(written, axes=axes)
    return written.settings_id


def _judge(
    sweep: Sweep,
    cell: Cell,
    trees: Mapping[str, Tree],
    profile: Profile,
    budget: Budget,
    compare_bits: bool,
) -> CellOutcome:
    """Measure a cell of the trees `a` and `b`; if one fails, that is the outcome."""
    report_progress("starting")
    try:
        measured = measure(sweep, cell, trees, profile, budget)
        is_repeatable = True
        if compare_bits and measured.same_bits is False:
            report_progress("training the revision twice")
            twice = {"a": trees["a"], "b": trees["a"]}
            is_repeatable, _ = compare_losses(sweep, cell, twice, profile, seconds=budget.seconds)
    except HarnessError as error:
        failed = PairedResult(failure=str(error))
        return CellOutcome(cell=cell, measured=failed)
    return CellOutcome(cell=cell, measured=measured, is_repeatable=is_repeatable)
