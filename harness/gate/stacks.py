"""`harness gate --against-stack NAME`: measures cells under their own stack against another one.

Both arms have the same files, harness and cell; only the installed packages differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.core.errors import BadInput, did_you_mean
from harness.core.packages import installed_packages
from harness.gate.against import Arms, Conditions, GateOptions, GateOutcome, measure_cells
from harness.gate.ranks import StackTree, present_stack
from harness.launch.stack import ReadyStack, ready_stacks
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

PRESENT = "of the harness"  # the stack of cells without one
# A distribution that is no part of a stack: ranks import the harness that starts them.
HARNESS = "distributed-training-harness"


def gate_stacks(
    sweep: Sweep,
    profile: Profile,
    options: GateOptions,
    conditions: Conditions,
    on_progress: Callable[[Cell, str], None],
) -> GateOutcome:
    """Measure the cells of a sweep under their own stacks against `options.stack`.

    Cells with that stack are left out. If an arm fails, only its cell fails. Raises BadInput for a
    stack that the sweep does not declare or that ranks can't run under, and for a sweep without
    cells of another stack.
    """
    cells = [cell for cell in sweep.cells if cell.axes.stack != options.stack]
    before = under_stack(sweep, cells or sweep.cells, options.stack, "--against-stack")
    if not cells:
        raise BadInput(
            f"--against-stack {options.stack}: found no cell with another stack; allowed: a sweep"
            " with cells of other stacks, or of none"
        )
    trees = stack_trees(sweep, [*before, *cells], profile)
    reference = trees[options.stack]
    arms = []
    for cell in cells:
        arms.append(Arms(cell=cell, reference=reference, tree=trees[cell.axes.stack]))
    outcomes = measure_cells(arms, sweep, profile, options, on_progress)
    used = dict.fromkeys(cell.axes.stack for cell in cells)
    changes = {trees[name].stack.name: changed_packages(reference, trees[name]) for name in used}
    return GateOutcome(
        options=options,
        conditions=replace(conditions, torch=reference.stack.packages.get("torch", "")),
        commit="",
        cells=outcomes,
        package_changes=changes,
    )


def under_stack(sweep: Sweep, cells: Sequence[Cell], name: str, argument: str) -> list[Cell]:
    """Return the cells with another stack of the sweep; raises BadInput for an unknown one."""
    check_declared(sweep, name, argument)
    moved = []
    for cell in cells:
        axes = replace(cell.axes, stack=name)
        moved.append(replace(cell, axes=axes, stack=sweep.stacks[name]))
    return moved


def check_declared(sweep: Sweep, name: str, argument: str) -> None:
    """Raise BadInput for a stack that the sweep does not declare."""
    if name not in sweep.stacks:
        declared = did_you_mean(name, sweep.stacks) if sweep.stacks else "allowed: none is declared"
        raise BadInput(f"{argument} {name}: found no such stack in {sweep.source}; {declared}")


def stack_trees(
    sweep: Sweep, cells: Sequence[Cell], profile: Profile
) -> dict[str | None, StackTree]:
    """Return the sweep's files under each stack of some cells; None is the harness's own.

    Raises BadInput for a stack that ranks can't run under.
    """
    stacks: dict[str | None, ReadyStack] = {None: present_stack(PRESENT, installed_packages())}
    for name, stack in ready_stacks(sweep, cells, with_gpus=profile.gpus > 0).items():
        stacks[name] = stack
    trees: dict[str | None, StackTree] = {}
    for key, ready in stacks.items():
        trees[key] = StackTree.of(ready.with_environment(profile.environment), sweep.base_folder)
    return trees


def changed_packages(before: StackTree, now: StackTree) -> list[str]:
    """Return the packages whose versions differ between two stacks: `numpy 2.2.0 → 2.3.1`."""
    versions_before, versions = before.stack.packages, now.stack.packages
    changes = []
    for name in sorted({*versions_before, *versions}, key=str.lower):
        old, new = versions_before.get(name, "none"), versions.get(name, "none")
        if old != new and name != HARNESS:
            changes.append(f"{name} {old} → {new}")
    return changes
