"""Measures the parity of a sweep: runs every cell unmeasured and compares it with a reference.

Each reference runs three times: once for the others to be compared with, once as a control, which
has to compute the same bits, and once in fp64, which shows how large rounding errors are. If the
control computes other bits, the run in fp64 has a control too: rounding errors vanish in that
precision, and other variation does not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.cells import differing_axes
from harness.analysis.compare import matching_key
from harness.analysis.parity import (
    CellParity,
    FirstDifference,
    Reference,
    SweepParity,
    with_seeds,
    write_parity,
)
from harness.analysis.rungs import Rung, TensorDistance, tensor_rung, worst_distance
from harness.analysis.selection import recorded_results
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import Results
from harness.core.scratch import ScratchFolder
from harness.records.trace import Recording
from harness.reproduce.divergence import TraceComparison, Traces, compare
from harness.reproduce.rebuild import cell_in_fp64
from harness.reproduce.snapshot import list_snapshots
from harness.reproduce.tracing import LAST_STEP, TracedRun, TracedTrial, Tracer
from harness.reproduce.trajectory import distances
from harness.sweep.axes import RECIPE_AXES
from harness.sweep.cell import Cell, Trial, axis_names, changes_recipe
from harness.sweep.cluster import Profile
from harness.sweep.selected import find_cells
from harness.sweep.sweep import Sweep

# All steps, with one mark a moment.
WITH_SNAPSHOTS = Recording(
    last_step=LAST_STEP,
    all_steps=True,
    tensors=False,
    snapshots=True,
)
WITHOUT_SNAPSHOTS = replace(WITH_SNAPSHOTS, snapshots=False)
# The axes that decide which rank, or which micro-step, computes which samples.
SPLITTING = ("world_size", "grad_accum_steps")


@dataclass(frozen=True, kw_only=True)
class ParityGroup:
    """Cells that are meant to train the same, and the one that the others are compared with."""

    reference: Cell
    cells: Sequence[Cell]  # without the reference


@dataclass(frozen=True, kw_only=True)
class ParityPlan:
    """Which cells are compared with which."""

    groups: Sequence[ParityGroup]
    by_design: Sequence[CellParity] = ()  # cells that no reference is meant to match


def plan_parity(sweep: Sweep, reference: str) -> ParityPlan:
    """Return which cells of a sweep are compared with which.

    Cells of one workload that differ in no axis that `changes_recipe` are a group. Its reference is the
    first cell that has the settings of `reference`, such as `strategy=single,precision=fp32`; without
    any settings, the first. A group in which no cell has them, and a group of a single cell,
    differ by design from the reference of their workload. Raises BadInput where no cell has the
    settings, and where no reference has another cell.
    """
    references = set(sweep.cells)
    if reference:
        references = set(find_cells(sweep, reference, "--reference"))
    planned = []
    left: list[Cell] = []
    for cells in _groups_by_recipe(sweep):
        matching = [cell for cell in cells if cell in references]
        if not matching or len(cells) == 1:
            left += cells
            continue
        first = matching[0]
        others = [cell for cell in cells if cell != first]
        planned.append(ParityGroup(reference=first, cells=others))
    if not planned:
        raise BadInput(
            f"{sweep.source}: found no two cells that are meant to train the same; allowed: cells"
            f" that agree in {', '.join(RECIPE_AXES)}, options and data"
        )
    by_design = [_by_design(cell, planned) for cell in left]
    return ParityPlan(groups=planned, by_design=by_design)


def _groups_by_recipe(sweep: Sweep) -> list[list[Cell]]:
    """Return the cells in groups that are meant to train the same."""
    groups: dict[str, list[Cell]] = {}
    how_axes = [name for name in axis_names(sweep.cells) if not changes_recipe(name)]
    for cell in sweep.cells:
        key = f"{cell.workload.label} {matching_key(cell, how_axes)}"
        group = groups.setdefault(key, [])
        group.append(cell)
    return list(groups.values())


def _by_design(cell: Cell, groups: Sequence[ParityGroup]) -> CellParity:
    """Return the entry of a cell that differs by design from the reference of its workload."""
    for group in groups:
        reference = group.reference
        if reference.workload.label != cell.workload.label:
            continue
        axes = [name for name in differing_axes(reference, cell) if changes_recipe(name)]
        return CellParity(cell=cell, reference=reference.id, by_design=axes or ["settings"])
    return CellParity(cell=cell, reference="", by_design=["workload"])


def sweep_parity(
    results: Results,
    sweep: Sweep,
    profile: Profile,
    plan: ParityPlan,
    *,
    seed: int,
    margin: float,
    on_cell: Callable[[CellParity], None],
) -> SweepParity:
    """Measure the parity of a sweep, and write it into the sweep's folder.

    The parity of a part of the sweep is not written. `on_cell` gets each cell as soon as it was
    compared. Raises BadInput for a record of the sweep that can't be read, and HarnessError if a
    reference fails; logs that errors name stay.
    """
    recorded = recorded_results(results, sweep.name)
    with ScratchFolder("parity") as scratch:
        tracer = Tracer(scratch.path, profile, sweep.timeout)
        try:
            measured = measure_parity(
                sweep, plan, tracer, seed=seed, margin=margin, on_cell=on_cell
            )
        except HarnessError:
            scratch.keep()
            raise
        if any(cell.failure for cell in measured.cells):
            scratch.keep()
    parity = with_seeds(measured, recorded)
    if sweep.selected_seeds is None:
        write_parity(results.sweep_folder(sweep.name), parity)
    return parity


def measure_parity(
    sweep: Sweep,
    plan: ParityPlan,
    tracer: Tracer,
    *,
    seed: int,
    margin: float,
    on_cell: Callable[[CellParity], None],
) -> SweepParity:
    """Return the parity of a sweep, without the comparison over seeds.

    `on_cell` gets each cell as soon as it is compared. Raises HarnessError if a run of a reference
    fails; a failure of another cell is noted in its parity.
    """
    references: list[Reference] = []
    by_cell = {parity.cell.id: parity for parity in plan.by_design}
    for group in plan.groups:
        ladder = _Ladder(tracer, sweep.base_folder, group.reference, seed)
        references.append(ladder.reference)
        for cell in group.cells:
            by_cell[cell.id] = ladder.measure(cell)
            on_cell(by_cell[cell.id])
        ladder.close()
    cells = [by_cell[cell.id] for cell in sweep.cells if cell.id in by_cell]
    return SweepParity(
        sweep=sweep.name,
        seed=seed,
        measured=time.time(),
        margin=margin,
        references=references,
        cells=cells,
    )


class _Ladder:
    """A reference with its runs, with which cells are compared one after the other."""

    def __init__(
        self,
        tracer: Tracer,
        base_folder: Path,
        cell: Cell,
        seed: int,
    ) -> None:
        """Run the reference, its control and the one in fp64."""
        self._tracer = tracer
        self._base_folder = base_folder
        self._seed = seed
        self._run = self._trace("reference", cell, WITH_SNAPSHOTS)
        control = self._trace("control", cell, WITHOUT_SNAPSHOTS)
        comparison = compare(self._run.traces, control.traces)
        difference = _first_difference(comparison)
        self._exact, fp64_problem = self._trace_fp64(cell, needs_control=difference is not None)
        self.reference = Reference(
            cell=cell,
            control=difference,
            steps=list(list_snapshots(self._run.folder)),
            fp64_problem=fp64_problem,
        )
        shutil.rmtree(control.folder)

    def close(self) -> None:
        """Remove the files of the reference's runs."""
        shutil.rmtree(self._run.folder)
        if self._exact is not None:
            shutil.rmtree(self._exact.folder)

    def measure(self, cell: Cell) -> CellParity:
        """Return how alike a cell is to the reference."""
        try:
            run = self._trace("cell", cell, WITH_SNAPSHOTS)
            parity = self._compare(run)
        except HarnessError as error:
            return CellParity(cell=cell, reference=self.reference.cell.id, failure=str(error))
        shutil.rmtree(run.folder)
        return parity

    def _compare(self, run: TracedRun) -> CellParity:
        """Return how alike a run is to that of the reference."""
        reference = self.reference.cell
        axes = differing_axes(reference, run.cell)
        global_only = any(name in SPLITTING for name in axes)
        comparison = compare(self._run.traces, run.traces, global_only=global_only)
        difference = _first_difference(comparison)
        exact_folder = None if self._exact is None else self._exact.folder
        gaps = distances(run.folder, self._run.folder, exact_folder)
        return CellParity(
            cell=run.cell,
            reference=reference.id,
            compared=comparison.compared,
            first_difference=difference,
            differing=axes,
            tensor_rung=_rung_of(difference, gaps),
            worst=worst_distance(gaps),
        )

    def _trace(self, name: str, cell: Cell, recording: Recording) -> TracedRun:
        """Run a cell and return its traced run; raises HarnessError if it fails."""
        trial = Trial(cell=cell, seed=self._seed)
        traced = TracedTrial(trial=trial, base_folder=self._base_folder)
        return self._tracer.trace(name, traced, recording)

    def _trace_fp64(
        self, cell: Cell, *, needs_control: bool
    ) -> tuple[TracedRun | None, str | None]:
        """Run a cell in fp64; return the run, or None and why it is unusable.

        It is unusable if it draws other random numbers, or if a second run, as a control, differs by
        more than rounding: its variation would be taken for rounding errors.
        """
        try:
            run = self._trace("fp64", cell_in_fp64(cell), WITH_SNAPSHOTS)
        except HarnessError as error:
            return None, str(error)
        problem = self._fp64_problem(run, needs_control)
        if problem is not None:
            shutil.rmtree(run.folder)
            return None, problem
        return run, None

    def _fp64_problem(self, run: TracedRun, needs_control: bool) -> str | None:
        """Return why a run in fp64 is unusable, None if it is not."""
        expected = _random_states(self._run.traces)
        for rank, states in enumerate(_random_states(run.traces)):
            # The run goes on where the reference has stopped.
            common = len(expected[rank])
            if states[:common] != expected[rank]:
                return "it draws other random numbers than the reference"
        if not needs_control:
            return None
        control = self._trace("fp64", run.cell, WITH_SNAPSHOTS)
        gaps = distances(control.folder, run.folder, run.folder)
        shutil.rmtree(control.folder)
        if not all(gap.repeats_exactly for gap in gaps):
            return "run twice in fp64, it differs by more than rounding errors"
        return None


def _rung_of(difference: FirstDifference | None, gaps: Sequence[TensorDistance]) -> Rung | None:
    """Return the rung that a cell's tensors reach.

    Only rank 0's tensors are kept. Where these are equal and the state of another rank's workload
    differs, the size of that difference is unknown: None.
    """
    is_equal = all(gap.differing == 0 for gap in gaps)
    is_of_state = difference is not None and difference.phase == "workload state"
    if is_of_state and is_equal:
        return None
    return tensor_rung(same_bits=difference is None, distances=gaps)


def _first_difference(comparison: TraceComparison) -> FirstDifference | None:
    """Return the first moment at which two trials differ, None if they do not.

    Where all common tensors are equal, it is the first tensor that only one of them has.
    """
    divergence = comparison.divergence
    if divergence is not None:
        mark = divergence.earliest.mark
        return FirstDifference(step=mark.step, phase=mark.phase, ranks=divergence.ranks)
    unmatched = [*comparison.other_tensors_a, *comparison.other_tensors_b]
    if not unmatched:
        return None
    mark = min(unmatched, key=lambda other: other.moment)
    return FirstDifference(step=mark.step, phase=mark.phase, ranks=[])


def _random_states(traces: Traces) -> list[list[str]]:
    """Return the digests of the generators' states before each forward, by rank."""
    states = []
    for marks in traces:
        digests = [mark.digest for mark in marks if mark.phase == "random"]
        states.append(digests)
    return states
