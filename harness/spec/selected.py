"""A part of a sweep, as `--only` and `--cell` choose it.

A selection changes neither the sweep nor what is recorded of it: `sweep.json` lists all cells, and
`harness show` all recorded trials. A command that is given a `SelectedSweep` runs or shows its trials
only.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from harness.core.errors import BadInput, did_you_mean
from harness.spec.cell import SECTIONS, Cell, Trial, axis_names, is_named
from harness.spec.condition import Condition, LevelOf, check_condition, parse_condition
from harness.spec.sweep import Sweep

ONLY = "--only"
MOST_CELLS = 10  # that an error lists
MOST_VALUES = 8  # of an axis, that an error lists


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which trials are chosen: those of some cells that satisfy a condition."""

    condition: Condition | None = None  # None: any
    cell_ids: Collection[str] | None = None  # None: of all cells

    def has(self, cell: Cell, seed: int) -> bool:
        """Return whether a cell's trials of a seed are chosen."""
        if self.cell_ids is not None and cell.id not in self.cell_ids:
            return False
        return self.condition is None or self.condition.holds(levels(cell, seed))


@dataclass(frozen=True, kw_only=True)
class SelectedSweep(Sweep):
    """A sweep of which `cells`, `seeds_of` and `trials` are those that are selected."""

    all_cells: Sequence[Cell]  # of the sweep
    selection: Selection

    def seeds_of(self, cell: Cell) -> Sequence[int]:
        """Return the seeds that a cell is trained with and that are selected."""
        return self._seeds[cell.id]

    @property
    def all_seeds(self) -> list[int]:
        """Return the seeds of any selected trial, in the order in which the whole sweep runs."""
        selected = set(super().all_seeds)
        return [seed for seed in self.whole().all_seeds if seed in selected]

    @cached_property
    def _seeds(self) -> dict[str, list[int]]:
        """The selected seeds by cell id."""
        seeds: dict[str, list[int]] = {}
        for cell in self.all_cells:
            of_cell = super().seeds_of(cell)
            seeds[cell.id] = [seed for seed in of_cell if self.selection.has(cell, seed)]
        return seeds

    def whole(self) -> Sweep:
        """Return the sweep with all of its cells and seeds."""
        settings = {key.name: getattr(self, key.name) for key in fields(Sweep)}
        return Sweep(**{**settings, "cells": self.all_cells})

    def trials_left_out(self) -> list[Trial]:
        """Return the trials of the sweep that are not selected."""
        trials = self.whole().trials()
        return [trial for trial in trials if not self.selection.has(trial.cell, trial.seed)]


def select(sweep: Sweep, only: str, cells: Sequence[str], recorded: Iterable[Trial] = ()) -> Sweep:
    """Return the part of a sweep that `--only` and `--cell` name; the sweep itself without both.

    `cells` are ids, beginnings of ids, labels or settings. `recorded` are further trials of the sweep's cells
    which may be chosen, as those that earlier commands have left.

    Raises BadInput for a mistake in either, and where no trial is chosen.
    """
    if not only and not cells:
        return sweep
    condition = None
    if only:
        condition = parse_condition(only, ONLY)
        seeds = {*sweep.all_seeds, *(trial.seed for trial in recorded)}
        values = _values(sweep.cells, seeds, condition)
        check_condition(condition, only, values, ONLY, _listed_names(sweep.cells))
    cell_ids = {find_cell(sweep, name).id for name in cells} if cells else None
    selection = Selection(condition=condition, cell_ids=cell_ids)
    chosen_ids = set()
    for trial in (*sweep.trials(), *recorded):
        if selection.has(trial.cell, trial.seed):
            chosen_ids.add(trial.cell.id)
    if not chosen_ids:
        raise BadInput(_nothing_selected(sweep, only, cells, condition))
    settings = {key.name: getattr(sweep, key.name) for key in fields(Sweep)}
    settings["cells"] = [cell for cell in sweep.cells if cell.id in chosen_ids]
    return SelectedSweep(**settings, all_cells=sweep.cells, selection=selection)


def levels(cell: Cell, seed: int) -> LevelOf:
    """Return a function that returns the values of a trial by the names that conditions use.

    They are the axes, `workload` (its label in the sweep) and `seed`. A setting that the workload
    does not have is None, as is a variable that is unset.
    """

    def level_of(name: str) -> Hashable:
        if name == "seed":
            return seed
        if name == "workload":
            return cell.workload.label
        return cell.level(name)

    return level_of


def names_of(cells: Iterable[Cell]) -> list[str]:
    """Return the names that a condition on trials of these cells may use.

    Every setting of a workload is among them, those too that are no axes of the sweep.
    """
    cells = list(cells)
    names = dict.fromkeys(["workload", "seed", *axis_names(cells)])  # an ordered set
    for cell in cells:
        for section in SECTIONS:
            for name in getattr(cell.workload, section):
                names[f"{section}.{name}"] = None
    return list(names)


def _listed_names(cells: Sequence[Cell]) -> list[str]:
    """Return the names that an error lists: those in which cells differ, and where the others are."""
    differing = []
    for axis in axis_names(cells):
        if len({cell.level(axis) for cell in cells}) > 1:
            differing.append(axis)
    return ["workload", "seed", *differing, "and what harness axes and harness workloads list"]


def _values(
    cells: Sequence[Cell], seeds: Collection[int], condition: Condition
) -> dict[str, Collection[Hashable]]:
    """Return the values that trials have, by name; of names that the condition does not use, none."""
    values: dict[str, Collection[Hashable]] = dict.fromkeys(names_of(cells), ())
    used = {comparison.name for comparison in condition.comparisons()}
    for name in used & set(values):
        values[name] = {levels(cell, 0)(name) for cell in cells}
    if "seed" in used:
        values["seed"] = seeds
    return values


def find_cell(sweep: Sweep, name: str, option: str = "--cell") -> Cell:
    """Return the cell with this id or label, or the only one that `is_named` so; raises BadInput.

    `option` is where the name was given, for errors.
    """
    matching = []
    for cell in sweep.cells:
        if name in (cell.id, cell.label):
            return cell
        if is_named(cell, name):
            matching.append(cell)
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(cell.id for cell in matching[:MOST_CELLS])
        raise BadInput(f"{option} {name}: names {len(matching)} cells; allowed: one, of {listed}")
    ids = [cell.id for cell in sweep.cells]
    hint = did_you_mean(name, ids[:MOST_CELLS])
    more = f" and {len(ids) - MOST_CELLS} more" if len(ids) > MOST_CELLS else ""
    raise BadInput(
        f"{option} {name}: no such cell in {sweep.source}; {hint}{more}; or settings that one cell"
        " has, such as strategy=ddp,workload=mlp"
    )


def _nothing_selected(
    sweep: Sweep, only: str, cells: Sequence[str], condition: Condition | None
) -> str:
    """Return the error for a selection without trials, with the values of the names that it uses."""
    options = [f"{ONLY} {only!r}"] if only else []
    options += [f"--cell {name}" for name in cells]
    problem = f"{' '.join(options)}: found none of the {len(sweep.trials())} trials"
    if condition is None:
        return problem
    described = []
    for name, values in _values(sweep.cells, sweep.all_seeds, condition).items():
        if values:
            described.append(f"{name} {_listed(values)}")
    return f"{problem}; allowed: a condition that some satisfy, of {'; '.join(described)}"


def _listed(values: Collection[Hashable]) -> str:
    """Return values as text, the first few of many."""
    texts = sorted(str(value) for value in values)
    more = ", …" if len(texts) > MOST_VALUES else ""
    return ", ".join(texts[:MOST_VALUES]) + more
