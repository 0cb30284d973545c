"""The part of a sweep that `--only` names: `KEY=V[,V]` or `KEY!=V[,V]`, any number of them.

A trial is selected if every term holds. A key is an axis, a setting of a workload, `workload` (its label),
`cell` (its id, the start of it, or its label) or `seed`. A selection changes neither the sweep nor
what is recorded of it: `sweep.json` lists all cells, and `harness show` all recorded trials.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from harness.core.errors import BadInput, did_you_mean
from harness.spec.cell import SECTIONS, Cell, Trial, axis_names, axis_value, has_level, is_named
from harness.spec.sweep import Sweep

ONLY = "--only"
MOST_CELLS = 10  # that an error lists
TERM = re.compile(r"\s*(?P<key>[\w.]+)\s*(?P<operator>!?=)\s*(?P<values>.*\S)\s*", re.DOTALL)
COMMA = re.compile(r"\s*,\s*(?![^\[]*\])")  # not one inside of a list


@dataclass(frozen=True)
class Term:
    """One condition: a key has one of these values, or none of them."""

    text: str
    key: str
    values: Sequence[str]
    is_negated: bool

    def holds(self, cell: Cell, seed: int) -> bool:
        """Return whether a cell's trials of a seed satisfy it."""
        has_value = any(_has_value(cell, seed, self.key, value) for value in self.values)
        return has_value != self.is_negated


@dataclass(frozen=True, kw_only=True)
class SelectedSweep(Sweep):
    """A sweep of which `cells`, `seeds_of` and `trials` are those that are selected."""

    all_cells: Sequence[Cell]  # of the sweep
    terms: Sequence[Term]

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
            seeds[cell.id] = [seed for seed in of_cell if self.has(cell, seed)]
        return seeds

    def has(self, cell: Cell, seed: int) -> bool:
        """Return whether a cell's trials of a seed are selected."""
        return all(term.holds(cell, seed) for term in self.terms)

    def whole(self) -> Sweep:
        """Return the sweep with all of its cells and seeds."""
        settings = {key.name: getattr(self, key.name) for key in fields(Sweep)}
        return Sweep(**{**settings, "cells": self.all_cells})

    def trials_left_out(self) -> list[Trial]:
        """Return the trials of the sweep that are not selected."""
        return [trial for trial in self.whole().trials() if not self.has(trial.cell, trial.seed)]


def select(sweep: Sweep, only: Sequence[str], recorded: Iterable[Trial] = ()) -> Sweep:
    """Return the part of a sweep for which all terms of `only` hold; the sweep itself without any.

    `recorded` are further trials of the sweep's cells which may be chosen, as those that earlier
    commands have left. Raises BadInput for a mistake in a term, and where no trial is chosen.
    """
    if not only:
        return sweep
    trials = [*sweep.trials(), *recorded]
    seeds = {*sweep.all_seeds, *(trial.seed for trial in trials)}
    terms = parse_terms(only, sweep.cells, seeds)
    chosen_ids = set()
    for trial in trials:
        if all(term.holds(trial.cell, trial.seed) for term in terms):
            chosen_ids.add(trial.cell.id)
    if not chosen_ids:
        raise BadInput(f"{_written(only)}: found no trial with all of this among {len(trials)}")
    settings = {key.name: getattr(sweep, key.name) for key in fields(Sweep)}
    settings["cells"] = [cell for cell in sweep.cells if cell.id in chosen_ids]
    return SelectedSweep(**settings, all_cells=sweep.cells, terms=terms)


def select_trials(trials: Sequence[Trial], only: Sequence[str]) -> list[Trial]:
    """Return those of some trials for which all terms of `only` hold; raises BadInput for a mistake."""
    cells = list({trial.cell.id: trial.cell for trial in trials}.values())
    terms = parse_terms(only, cells, {trial.seed for trial in trials})
    return [trial for trial in trials if all(term.holds(trial.cell, trial.seed) for term in terms)]


def parse_terms(only: Sequence[str], cells: Sequence[Cell], seeds: Collection[int]) -> list[Term]:
    """Return the terms of texts; raises BadInput for a key or a value that no trial has.

    `cells` and `seeds` are those that may be selected.
    """
    terms = []
    for text in only:
        match = TERM.fullmatch(text)
        if match is None:
            raise BadInput(f"{ONLY} {text!r}: found no term; allowed: KEY=V[,V] or KEY!=V[,V]")
        term = Term(text, match["key"], COMMA.split(match["values"]), match["operator"] == "!=")
        _check_term(term, cells, seeds)
        terms.append(term)
    return terms


def _check_term(term: Term, cells: Sequence[Cell], seeds: Collection[int]) -> None:
    """Raise BadInput for a key that the cells don't have, and for a value that none of them has."""
    names = ["cell", "workload", "seed", *axis_names(cells)]
    settings: set[str] = set()
    for cell in cells:
        for section in SECTIONS:
            settings.update(f"{section}.{name}" for name in getattr(cell.workload, section))
    if term.key not in {*names, *settings}:
        hint = did_you_mean(term.key, [*names, *sorted(settings)], names)
        raise BadInput(f"{ONLY} {term.text!r}: unknown key {term.key!r}; {hint}")
    for value in term.values:
        if any(_has_value(cell, seed, term.key, value) for cell in cells for seed in seeds):
            continue
        levels = sorted({_shown(cell, seed, term.key) for cell in cells for seed in seeds})
        hint = did_you_mean(value, levels, levels[:MOST_CELLS])
        raise BadInput(f"{ONLY} {term.text!r}: found {value!r}; {hint}")


def _has_value(cell: Cell, seed: int, key: str, value: str) -> bool:
    """Return whether a trial has a value, as `--only` spells it, of a key."""
    if key == "cell":
        return is_named(cell, value)
    if key == "seed":
        return value == str(seed)
    return has_level(cell, key, value)


def _shown(cell: Cell, seed: int, key: str) -> str:
    """Return the value of a key of a trial, for errors."""
    if key == "seed":
        return str(seed)
    if key == "workload":
        return cell.workload.label
    return cell.id if key == "cell" else axis_value(cell.level(key))


def _written(only: Sequence[str]) -> str:
    """Return terms as the command line has them."""
    return " ".join(f"{ONLY} {text!r}" for text in only)


def find_cell(sweep: Sweep, name: str, option: str) -> Cell:
    """Return the cell that `is_named` so; raises BadInput, which begins with `option`."""
    matching = [cell for cell in sweep.cells if is_named(cell, name)]
    exact = [cell for cell in matching if name in (cell.id, cell.label)]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        listed = ", ".join(cell.id for cell in matching[:MOST_CELLS])
        raise BadInput(f"{option} {name}: names {len(matching)} cells; allowed: one, of {listed}")
    ids = [cell.id for cell in sweep.cells]
    hint = did_you_mean(name, ids, ids[:MOST_CELLS])
    more = f" and {len(ids) - MOST_CELLS} more" if len(ids) > MOST_CELLS else ""
    raise BadInput(
        f"{option} {name}: no such cell in {sweep.source}; {hint}{more}; or settings that one cell"
        " has, such as strategy=ddp,workload=mlp"
    )
