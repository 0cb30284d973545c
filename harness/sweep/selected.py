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
    commands have left. Raises BadInput as `select_trials` does.
    """
    if not only:
        return sweep
    chosen = select_trials([*sweep.trials(), *recorded], only)
    seeds = frozenset((trial.cell.id, trial.seed) for trial in chosen)
    ids = {trial.cell.id for trial in chosen}
    cells = [cell for cell in sweep.cells if cell.id in ids]
    return replace(sweep, cells=cells, selected_seeds=seeds, all_cells=sweep.cells)


def select_trials(trials: Sequence[Trial], only: Sequence[str], option: str = ONLY) -> list[Trial]:
    """Return the trials for which all terms of `only` hold, at least one.

    Raises BadInput, which begins with `option`, for a term with a key or a value that no trial has, and
    where no trial has all of them.
    """
    cells = {trial.cell for trial in trials}
    keys = {"cell", "workload", "seed", *axis_names(cells)}
    for cell in cells:
        keys.update(cell.workload.settings)
    chosen = list(trials)
    for text in only:
        term = f"{option} {text!r}"
        match = TERM.fullmatch(text)
        if match is None:
            raise BadInput(f"{term}: found no term; allowed: KEY=V[,V] or KEY!=V[,V]")
        key = match["key"]
        if key not in keys:
            raise BadInput(f"{term}: unknown key {key!r}; {did_you_mean(key, keys)}")
        named = set()
        for value in COMMA.split(match["values"]):
            named |= _trials_with(trials, key, value, term)
        is_equal = match["operator"] == "="
        chosen = [trial for trial in chosen if (trial.id in named) == is_equal]
    if not chosen:
        problem = f"found no trial with all of this among {len(trials)}"
        raise BadInput(f"{option} {' '.join(only)}: {problem}")
    return chosen


def _trials_with(trials: Sequence[Trial], key: str, value: str, term: str) -> set[str]:
    """Return the ids of the trials that have a value of a key; raises BadInput if there are none."""
    ids = {trial.id for trial in trials if _has_value(trial, key, value)}
    if not ids:
        levels = sorted({axis_value(_level(trial, key)) for trial in trials})
        hint = did_you_mean(value, levels, levels[:MOST_CELLS])
        raise BadInput(f"{term}: found {value!r}; {hint}")
    return ids


def _level(trial: Trial, key: str) -> Any:
    """Return the value that a trial has of a key."""
    named = {"cell": trial.cell.id, "workload": trial.cell.workload.label, "seed": trial.seed}
    return named[key] if key in named else trial.cell.level(key)


def _has_value(trial: Trial, key: str, value: str) -> bool:
    """Return whether a trial has a value of a key.

    Values are written as in a sweep file; text needs no quotes, as in `env.NCCL_DEBUG=1`.
    """
    level = _level(trial, key)
    if key == "cell":
        return trial.cell.label == value or trial.cell.id.startswith(value)
    return level == value or same_value(level, _read_value(value))


@lru_cache(maxsize=256)  # the values of one command, each compared with every cell
def _read_value(text: str) -> Any:
    """Return the value that YAML reads in a text; the text if it is no YAML."""
    try:
        return parse_value(text, text)
    except BadInput:
        return text


def find_cells(sweep: Sweep, name: str, option: str) -> list[Cell]:
    """Return the cells of a name: an id, the start of it, a label, or settings, as `strategy=ddp`.

    Raises BadInput, which begins with `option`, if there are none.
    """
    terms = [f"cell={name}"]
    if TERM.match(name):
        terms = COMMA_OF_SETTINGS.split(name)
    trials = [Trial(cell=cell, seed=0) for cell in sweep.cells]
    return [trial.cell for trial in select_trials(trials, terms, option)]


def find_cell(sweep: Sweep, name: str, option: str) -> Cell:
    """Return the only cell of a name; raises BadInput, which begins with `option`."""
    cells = find_cells(sweep, name, option)
    if len(cells) > 1:
        ids = ", ".join(cell.id for cell in cells[:MOST_CELLS])
        problem = f"names {len(cells)} cells of {sweep.source}; allowed: one of {ids}"
        raise BadInput(f"{option} {name}: {problem}, or more settings, such as strategy=ddp")
    return cells[0]
