"""Lists the differences between the sweeps of two revisions.

A gate trains the working tree's sweep. A sweep that lost the slower cell, or trains it for a shorter
time, would pass. So the gate compares it with the sweep of the other revision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.analysis.compare import setting_differences
from harness.core.errors import BadInput, one_line
from harness.core.worktree import Tree
from harness.spec.cell import Cell
from harness.spec.files import changed_parts
from harness.spec.sweep import Sweep, load_sweep
from workloads.importing import forget

LONGEST_VALUE = 80  # characters of a setting in a message


@dataclass(frozen=True, kw_only=True)
class SweepChange:
    """A difference between the sweeps of two revisions, as a sentence."""

    # `unreadable`: the other revision's sweep can't be read, so lost cells are unknown.
    kind: Literal["dropped", "changed", "new", "unreadable", "note"]
    text: str

    @property
    def may_hide(self) -> bool:
        """Whether it may hide a regression."""
        return self.kind in ("dropped", "changed", "unreadable")


@dataclass(frozen=True, kw_only=True)
class ComparedSweeps:
    """The cells of a sweep that another revision has too, and the differences of the sweeps."""

    cells: Sequence[Cell]  # of the working tree's sweep, except those that are new
    changes: Sequence[SweepChange]


def compare_with_revision(
    sweep: Sweep, revision: Tree, sets: Sequence[str], data: Sequence[str]
) -> ComparedSweeps:
    """Compare a sweep with that of another revision, under the same `--set` and `--data`.

    All cells are measured if the revision has no such sweep, or one that can't be read.
    """
    source = revision.counterpart(sweep.source)
    name = revision.name
    if source == sweep.source.absolute():
        text = f"{sweep.source} is in no revision, so what it has lost is unknown"
        return ComparedSweeps(cells=sweep.cells, changes=[SweepChange(kind="note", text=text)])
    if not source.resolve().is_relative_to(revision.path.resolve()):
        text = f"{sweep.source.name} of {name} is a link to outside of the repository"
        change = SweepChange(kind="unreadable", text=f"{text}, so what has been lost is unknown")
        return ComparedSweeps(cells=sweep.cells, changes=[change])
    if not source.is_file():
        text = f"{name} has no {sweep.source.name}: all cells are measured"
        return ComparedSweeps(cells=sweep.cells, changes=[SweepChange(kind="note", text=text)])
    try:
        before = load_sweep(source, sets, data)
    except Exception as error:  # the revision's workloads are imported, which may raise anything
        message = one_line(error)
        if not isinstance(error, BadInput):
            message = f"{type(error).__name__}: {message}"
        text = f"{source.name} of {name} can't be read: {message}"
        change = SweepChange(kind="unreadable", text=text)
        return ComparedSweeps(cells=sweep.cells, changes=[change])
    finally:
        forget(revision.path)  # its checkout is removed after the gate
    return compare_sweeps(before, sweep, name)


def compare_sweeps(before: Sweep, now: Sweep, name: str) -> ComparedSweeps:
    """Compare a sweep with that of the revision `name`.

    Cells are the same if they have the same settings. A change of the workload's code is only noted,
    because a gate is there to measure it. Cells with the same label are the same cell, changed.
    """
    same_before = {_written_id(cell): cell for cell in before.cells}
    ids_now = {_written_id(cell) for cell in now.cells}
    lost = {cell.label: cell for cell in before.cells if _written_id(cell) not in ids_now}
    cells, new, changes, notes = [], [], [], []
    for cell in now.cells:
        old = same_before.get(_written_id(cell)) or lost.pop(cell.label, None)
        if old is None:
            text = f"{cell.label}: new, so {name} has nothing to compare it with"
            new.append(SweepChange(kind="new", text=text))
            continue
        cells.append(cell)
        defaults = _default_differences(old, cell)
        if defaults:
            text = f"{cell.label}: other defaults than {name}: {'; '.join(defaults)}"
            notes.append(SweepChange(kind="note", text=text))
        differences = _differences(before, old, now, cell)
        if differences:
            text = f"{cell.label}: changed: {'; '.join(differences)}"
            changes.append(SweepChange(kind="changed", text=text))
    for label in lost:
        text = f"{label}: in the sweep of {name}, and no longer in this one"
        changes.append(SweepChange(kind="dropped", text=text))
    notes += _code_notes(before, now, name)
    return ComparedSweeps(cells=cells, changes=changes + new + notes)


def _written_id(cell: Cell) -> str:
    """Return the id of the settings in the sweep, without a batch size that the code chooses."""
    if "batch_size" not in cell.workload.unset:
        return cell.settings_id
    return replace(cell, axes=replace(cell.axes, batch_size=1)).settings_id


def _default_differences(before: Cell, now: Cell) -> list[str]:
    """Return each setting that neither sweep sets and whose default differs between the revisions.

    It can't hide a regression: each arm is measured with the defaults of its revision.
    """
    differences = []
    for name in _unset_in_both(before, now):
        values = before.level(name), now.level(name)
        if values[0] != values[1]:
            differences.append(_describe_difference(name, *values))
    return differences


def _unset_in_both(before: Cell, now: Cell) -> list[str]:
    """Return the settings that neither sweep sets, so that the code of each revision decides them."""
    return [name for name in now.workload.unset if name in before.workload.unset]


def _code_notes(before: Sweep, now: Sweep, name: str) -> list[SweepChange]:
    """Return a note for each workload whose code differs between the revisions, with its files."""
    codes_before = {cell.workload.label: cell.workload.code for cell in before.cells}
    notes = []
    for label, code in {cell.workload.label: cell.workload.code for cell in now.cells}.items():
        code_before = codes_before.get(label)
        if code is None or code_before is None or code == code_before:
            continue
        text = f"{label}: other code than {name}: {', '.join(changed_parts(code_before, code))}"
        notes.append(SweepChange(kind="note", text=text))
    return notes


def _differences(sweep_before: Sweep, before: Cell, sweep_now: Sweep, now: Cell) -> list[str]:
    """Return each setting of a cell and of its trials that has changed: `length 20 epochs → 5 epochs`."""
    lengths = {"length": (before.length, now.length), "evaluate": (before.evaluate, now.evaluate)}
    differences = []
    for name, values in setting_differences(before, now, _unset_in_both(before, now)).items():
        if values[0] != values[1]:  # the same value may be the default of one revision only
            differences.append(_describe_difference(name, *lengths.get(name, values)))
    seeds_before = list(sweep_before.seeds_of(before))
    seeds_now = list(sweep_now.seeds_of(now))
    if seeds_before != seeds_now:
        differences.append(_describe_difference("seeds", seeds_before, seeds_now))
    if sweep_before.repeats != sweep_now.repeats:
        differences.append(_describe_difference("repeats", sweep_before.repeats, sweep_now.repeats))
    return differences


def _describe_difference(name: str, before: Any, now: Any) -> str:
    """Return a setting with both of its values."""
    return f"{name} {_as_text(before)} → {_as_text(now)}"


def _as_text(value: Any) -> str:
    """Return a setting as text that fits into a message."""
    text = json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)
    return one_line(text, LONGEST_VALUE)
