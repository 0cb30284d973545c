"""Plans a determinism audit: a sweep whose cells turn one setting at a time.

An audit is the parity of such a sweep, but with more than one reference: each cell is compared with
the most similar cell before it. So `cache: cold` is compared with the compiled cell, and FSDP2 around
the whole model with FSDP2 around each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.analysis.compare import setting_differences
from harness.core.errors import BadInput, did_you_mean
from harness.launch.unmeasured import run_unmeasured
from harness.reproduce.catalog import OperationResult, read_operations, single_process
from harness.reproduce.parity import ParityGroup, ParityPlan
from harness.spec.cell import Cell, Trial
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

# Axes that make training deterministic, whose cost is the determinism tax.
TAXED = ("deterministic", "reduction")
# In which operations are measured.
PRECISIONS: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True)
class TaxedPair:
    """Two cells that differ in one setting of TAXED only."""

    setting: str
    reference: Cell
    cell: Cell  # with the setting


def choose_workloads(sweep: Sweep, labels: Sequence[str]) -> Sweep:
    """Return the sweep with the cells of these workloads only, with all of them for no labels.

    Raises BadInput for a label that the sweep does not have.
    """
    available = list(dict.fromkeys(cell.workload.label for cell in sweep.cells))
    for label in labels:
        if label not in available:
            raise BadInput(f"--workload: found {label!r}; {did_you_mean(label, available)}")
    if not labels:
        return sweep
    return replace(sweep, cells=[cell for cell in sweep.cells if cell.workload.label in labels])


def plan_audit(sweep: Sweep) -> ParityPlan:
    """Return each cell's reference: the cell before it with the fewest other settings.

    Of several such cells it is the first. Raises BadInput if no workload has two cells.
    """
    compared: dict[str, list[Cell]] = {}  # the cells of each reference, by its id
    references: dict[str, Cell] = {}
    for number, cell in enumerate(sweep.cells):
        candidates = []
        for earlier in sweep.cells[:number]:
            if earlier.workload.label == cell.workload.label:
                candidates.append(earlier)
        if not candidates:
            continue
        nearest = min(candidates, key=lambda earlier: len(setting_differences(earlier, cell)))
        references[nearest.id] = nearest
        compared.setdefault(nearest.id, []).append(cell)
    if not references:
        raise BadInput(f"{sweep.source}: found no two cells of a workload; allowed: at least two")
    groups = []
    for cell in sweep.cells:
        if cell.id in references:
            groups.append(ParityGroup(reference=cell, cells=compared[cell.id]))
    return ParityPlan(groups=groups, by_design=[])


def taxed_pairs(plan: ParityPlan) -> list[TaxedPair]:
    """Return the cells of a plan that differ from their reference in one setting of TAXED only."""
    pairs = []
    for group in plan.groups:
        for cell in group.cells:
            settings = list(setting_differences(group.reference, cell))
            if len(settings) == 1 and settings[0] in TAXED:
                pair = TaxedPair(setting=settings[0], reference=group.reference, cell=cell)
                pairs.append(pair)
    return pairs


def measure_operations(
    sweep: Sweep, profile: Profile, folder: Path, on_progress: Callable[[str], None]
) -> dict[str, Sequence[OperationResult]]:
    """Return what was measured of the operations of each workload in fp32 and bf16, by its label.

    They are those of the workload's first cell, as one process runs them. Logs and results go below
    `folder`. Raises HarnessError if a process fails.
    """
    measured: dict[str, list[OperationResult]] = {}
    first_cells: dict[str, Cell] = {}  # by workload
    for cell in sweep.cells:
        first_cells.setdefault(cell.workload.label, cell)
    for cell in first_cells.values():
        for precision in PRECISIONS:
            axes = replace(single_process(cell.axes), precision=precision)
            variant = replace(cell, axes=axes)
            on_progress(f"running the operations of {variant.label}")
            trial = Trial(cell=variant, seed=sweep.seeds[0])
            trial_folder = run_unmeasured(
                "operations", trial, sweep.base_folder, profile, sweep.timeout, folder
            )
            operations = read_operations(trial_folder.path)
            measured.setdefault(cell.workload.label, []).extend(operations)
    return dict(measured)
