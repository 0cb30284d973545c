"""Names cells: by settings such as `strategy=ddp,workload=mlp`, and by the terms of `--only`.

A term is `KEY=V[,V]` or `KEY!=V[,V]`. A trial is selected if every term holds. A key is an axis, a
setting of a workload, `workload` (its label), `cell` (its id, the start of it, or its label) or
`seed`. A selection changes neither the sweep nor what is recorded of it: `sweep.json` lists all
cells, and `harness show` all recorded trials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from harness.core.errors import BadInput, did_you_mean
from harness.sweep.cell import (
    Cell,
    Trial,
    axis_names,
    axis_value,
    is_axis,
    same_value,
)
from harness.sweep.document import parse_value
from harness.sweep.sweep import Sweep

ONLY = "--only"
MOST_CELLS = 10  # that an error lists
TERM = re.compile(r"\s*(?P<key>[\w.]+)\s*(?P<operator>!?=)\s*(?P<values>.*\S)\s*", re.DOTALL)
COMMA = re.compile(r"\s*,\s*(?![^\[]*\])")  # not one inside of a list
COMMA_OF_SETTINGS = re.compile(r",(?=\s*[\w.]+\s*=)")  # in `precision=bf16,options.hidden=[32, 16]`


def select(sweep: Sweep, only: Sequence[str], recorded: Iterable[Trial] = ()) -> Sweep:
    """Return the part of a sweep for which all terms of `only` hold; the sweep itself without any.

    `recorded` are further trials of the sweep's cells which may be chosen, as those that earlier
    commands have left. Raises BadInput for a mistake in a term, and where no trial is chosen.
    """
    if not only:
        return sweep
    trials = [*sweep.trials(), *recorded]
    chosen: dict[str, set[int]] = {}  # seeds by the cell's id
    for trial in select_trials(trials, only):
        chosen.setdefault(trial.cell.id, set()).add(trial.seed)
    if not chosen:
        problem = f"found no trial with all of this among {len(trials)}"
        raise BadInput(f"{ONLY} {' '.join(only)}: {problem}")
    cells = [cell for cell in sweep.cells if cell.id in chosen]
    seeds = {}
    for cell in cells:
        seeds[cell.id] = [seed for seed in sweep.seeds_of(cell) if seed in chosen[cell.id]]
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
        key, named = match["key"], set()
        for value in COMMA.split(match["values"]):
            having = {trial.id for trial in trials if _has_value(trial, key, value)}
            if not having:
                raise BadInput(f"{ONLY} {text!r}: {_problem(trials, key, value)}")
            named |= having
        is_equal = match["operator"] == "="
        chosen = [trial for trial in chosen if (trial.id in named) == is_equal]
    return chosen


def _has_value(trial: Trial, key: str, value: str) -> bool:
    """Return whether a trial has a value, as `--only` spells it, of a key."""
    if key == "seed":
        return value == str(trial.seed)
    return _has_level(trial.cell, key, value)


def _has_level(cell: Cell, key: str, value: str) -> bool:
    """Return whether a cell has a value of a key other than `seed`; False for what is no key.

    Values are written as in a sweep file; text needs no quotes, as in `env.NCCL_DEBUG=1`.
    """
    if key == "cell":
        return is_named(cell, value)
    if key == "workload":
        return cell.workload.label == value
    if not is_axis(key):
        return False
    level = cell.level(key)
    return level == value or same_value(level, _read_value(value))


@lru_cache(maxsize=256)  # the settings of one command, each compared with every cell
def _read_value(text: str) -> Any:
    """Return the value that YAML reads in a text; the text if it is no YAML."""
    try:
        return parse_value(text, text)
    except BadInput:
        return text


def is_named(cell: Cell, name: str) -> bool:
    """Return whether a name is a cell's id, the start of it, its label, or settings that it has."""
    if cell.id.startswith(name) or cell.label == name:
        return True
    for setting in COMMA_OF_SETTINGS.split(name):
        key, _, value = setting.partition("=")
        if not _has_level(cell, key.strip(), value.strip()):
            return False
    return True


def find_cell(sweep: Sweep, name: str, option: str) -> Cell:
    """Return the cell that `is_named` so; raises BadInput, which begins with `option`."""
    cells = [cell for cell in sweep.cells if is_named(cell, name)]
    if len(cells) != 1:
        ids = [cell.id for cell in cells or sweep.cells]
        hint = did_you_mean(name, ids, ids[:MOST_CELLS])
        problem = f"names {len(cells)} cells of {sweep.source}; {hint}"
        raise BadInput(f"{option} {name}: {problem}, or settings of one, such as strategy=ddp")
    return cells[0]


def _problem(trials: Sequence[Trial], key: str, value: str) -> str:
    """Return the problem of a key that the trials don't have, or of a value that none of them has."""
    cells = list(dict.fromkeys(trial.cell for trial in trials))
    keys = ["cell", "workload", "seed", *axis_names(cells)]
    for cell in cells:
        keys += cell.workload.settings
    if key not in keys:
        return f"unknown key {key!r}; {did_you_mean(key, set(keys))}"
    levels = set()
    for trial in trials:
        cell = trial.cell
        named = {"cell": cell.id, "workload": cell.workload.label, "seed": str(trial.seed)}
        levels.add(named[key] if key in named else axis_value(cell.level(key)))
    return f"found {value!r}; {did_you_mean(value, levels, sorted(levels)[:MOST_CELLS])}"
