"""The part of a sweep that `--only` names: `KEY=V[,V]` or `KEY!=V[,V]`, any number of them.

A trial is selected if every term holds. A key is an axis, a setting of a workload, `workload` (its label),
`cell` (its id, the start of it, or its label) or `seed`. A selection changes neither the sweep nor
what is recorded of it: `sweep.json` lists all cells, and `harness show` all recorded trials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.core.errors import BadInput, did_you_mean
from harness.spec.cell import Cell, Trial, axis_names, axis_value, has_level, is_named
from harness.spec.sweep import Sweep

ONLY = "--only"
MOST_CELLS = 10  # that an error lists
TERM = re.compile(r"\s*(?P<key>[\w.]+)\s*(?P<operator>!?=)\s*(?P<values>.*\S)\s*", re.DOTALL)
COMMA = re.compile(r"\s*,\s*(?![^\[]*\])")  # not one inside of a list


def select(sweep: Sweep, only: Sequence[str], recorded: Iterable[Trial] = ()) -> Sweep:
    """Return the part of a sweep for which all terms of `only` hold; the sweep itself without any.

    `recorded` are further trials of the sweep's cells which may be chosen, as those that earlier
    commands have left. Raises BadInput for a mistake in a term, and where no trial is chosen.
    """
    if not only:
        return sweep
    trials = [*sweep.trials(), *recorded]
    chosen = select_trials(trials, only)
    if not chosen:
        terms = " ".join(f"{ONLY} {text!r}" for text in only)
        raise BadInput(f"{terms}: found no trial with all of this among {len(trials)}")
    pairs = {(trial.cell.id, trial.seed) for trial in chosen}
    cell_ids = {cell_id for cell_id, _ in pairs}
    cells = [cell for cell in sweep.cells if cell.id in cell_ids]
    seeds = {}
    for cell in cells:
        seeds[cell.id] = [seed for seed in sweep.seeds_of(cell) if (cell.id, seed) in pairs]
    return replace(sweep, cells=cells, selected_seeds=seeds, all_cells=sweep.cells)


def select_trials(trials: Sequence[Trial], only: Sequence[str]) -> list[Trial]:
    """Return the trials for which all terms of `only` hold.

    Raises BadInput for a key or a value that no trial has.
    """
    chosen = list(trials)
    for text in only:
        match = TERM.fullmatch(text)
        if match is None:
            raise BadInput(f"{ONLY} {text!r}: found no term; allowed: KEY=V[,V] or KEY!=V[,V]")
        key, values = match["key"], COMMA.split(match["values"])
        for value in values:
            if not any(_has_value(trial, key, value) for trial in trials):
                raise BadInput(f"{ONLY} {text!r}: {_problem(trials, key, value)}")
        is_equal = match["operator"] == "="
        chosen = [
            trial
            for trial in chosen
            if any(_has_value(trial, key, value) for value in values) == is_equal
        ]
    return chosen


def _has_value(trial: Trial, key: str, value: str) -> bool:
    """Return whether a trial has a value, as `--only` spells it, of a key."""
    if key == "cell":
        return is_named(trial.cell, value)
    if key == "seed":
        return value == str(trial.seed)
    return has_level(trial.cell, key, value)


def _problem(trials: Sequence[Trial], key: str, value: str) -> str:
    """Return the problem of a key that the trials don't have, or of a value that none of them has."""
    cells = list({trial.cell.id: trial.cell for trial in trials}.values())
    names = ["cell", "workload", "seed", *axis_names(cells)]
    settings = {name for cell in cells for name in cell.workload.levels}
    if key not in {*names, *settings}:
        hint = did_you_mean(key, [*names, *sorted(settings)], names)
        return f"unknown key {key!r}; {hint}"
    if key == "seed":
        levels = {str(trial.seed) for trial in trials}
    elif key == "workload":
        levels = {cell.workload.label for cell in cells}
    elif key == "cell":
        levels = {cell.id for cell in cells}
    else:
        levels = {axis_value(cell.level(key)) for cell in cells}
    return f"found {value!r}; {did_you_mean(value, levels, sorted(levels)[:MOST_CELLS])}"


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
    raise BadInput(
        f"{option} {name}: no such cell in {sweep.source}; {did_you_mean(name, ids, ids[:MOST_CELLS])},"
        " or settings that one cell has, such as strategy=ddp,workload=mlp"
    )
