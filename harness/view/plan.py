"""Shows what can be run: `harness axes` and `workloads`; and what will: `harness plan` and `submit`.

What a sweep can vary comes from the declarations in `harness.sweep.axes` and from the classes of options and
data that workloads declare, which sweep files are checked by: a new one needs no change here.
"""

from __future__ import annotations

import json
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta

from harness.analysis.cells import varying_axes
from harness.core.text import counted
from harness.core.validation import TYPE_NAMES, members_by_source
from harness.sweep.axes import AXIS_TYPES, DEFAULTS, PREFIX, need_of
from harness.sweep.cell import SOURCE, Trial, axis_value
from harness.sweep.matrix import CONFLICT
from harness.sweep.sweep import Sweep
from harness.sweep.workload import default_of
from harness.view.value import Styled, Value, duration
from harness.view.view import Table, View
from workloads.catalog import Declaration

if TYPE_CHECKING:
    from harness.slurm.submit import PreparedSubmission

MOST_ROWS = 200  # cells that are listed
QUIET_MACHINE = "wait, or measure anyway: harness run --tolerate-load, or validity.contention: null in a profile"
PLAIN_TYPES = {**TYPE_NAMES, bool: "false, true", Path: "a path"}


def plan_view(sweep: Sweep, estimates: Mapping[str, float]) -> View:
    """Return the plan of a sweep: cells, trials and duration, and what is left out and why.

    Rules of the sweep that match no cell are named too, because they may be misspelled. The first
    MOST_ROWS cells are listed, and points that are left out are counted by their reason. `estimates` are
    the seconds that a trial takes, by the id of its cell.
    """
    axes = varying_axes(sweep.cells)
    columns = ["cell", "workload", *axes, "length", "estimate"]
    table = Table(columns, {"estimate": "duration"}, optional=["workload"])
    for cell in sweep.cells[:MOST_ROWS]:
        levels = [axis_value(cell.level(axis)) for axis in axes]
        estimate = estimates.get(cell.id)
        table.add_row(cell.id, cell.workload.label, *levels, cell.length_text, estimate)
    lines: list[Value] = []
    further = len(sweep.cells) - MOST_ROWS
    if further > 0:
        lines.append(f"and {further:,} more cells; --json lists them")
    trial_count = sum(map(sweep.count_trials, sweep.cells))
    cells = counted(len(sweep.cells), "cell")
    seeds = ", ".join(map(str, sweep.all_seeds))
    repeats = counted(sweep.repeats, "repeat")
    lines.append(f"{cells}, seeds {seeds}, {repeats}: {counted(trial_count, 'trial')}")
    # Only the duration needs the trials, of which there may be a hundred thousand.
    trials = sweep.trials() if estimates else []
    lines.append(describe_duration(trials, estimates))
    left_out = Counter((point.rule, point.reason) for point in sweep.excluded)
    for (rule, reason), count in left_out.most_common():
        lines.append(f"left out by {rule}: {reason}: {count:,}")
    for rule in sweep.unused_rules:
        lines.append(Styled(f"{rule} matches no cell", "open"))
    return View(heading=[Styled(sweep.name, "strong")], tables=[table], lines=lines)


def plan_to_json(sweep: Sweep, estimates: Mapping[str, float]) -> dict[str, Any]:
    """Return the sweep as JSON, with every default and every id.

    `estimates` are the seconds that a trial takes, by the cell's id.
    """
    cells: list[dict[str, Any]] = []
    for cell in sweep.cells:
        ids = {
            "id": cell.id,
            "settings_id": cell.settings_id,
            "label": cell.label,
            "estimated_seconds": estimates.get(cell.id),
        }
        cells.append(ids | asdict(cell))
    trials = [trial.id for trial in sweep.trials()]
    content = asdict(replace(sweep.whole(), cells=[]))
    return content | {"cells": cells, "trials": trials}


def conflict_lines(sweep: Sweep) -> list[str]:
    """Return a line on the combinations that make no sense, none if there are none.

    Those that an `exclude` of the sweep names do not count: whoever wrote it knows of them.
    """
    senseless = sum(point.rule == CONFLICT for point in sweep.excluded)
    if not senseless:
        return []
    combinations = len(sweep.cells) + len(sweep.excluded)
    return [f"{senseless:,} of {combinations:,} combinations left out; harness plan says why"]


def describe_duration(trials: Sequence[Trial], estimates: Mapping[str, float]) -> str:
    """Return how long trials will take one after the other, as far as earlier records tell.

    `estimates` are the seconds that a trial takes, by the id of its cell.
    """
    if not estimates:
        return "time: unknown, no cell has a record yet"
    seconds = 0.0
    unknown = set()
    for trial in trials:
        cell_id = trial.cell.id
        seconds += estimates.get(cell_id, 0.0)
        if cell_id not in estimates:
            unknown.add(cell_id)
    more = ""
    if unknown:
        more = f" and {counted(len(unknown), 'cell')} without records"
    return f"time: {duration(seconds)}{more}, by earlier records"


def submission_view(prepared: PreparedSubmission, command: str = "") -> View:
    """Return how many trials are submitted, how many are not and why, the remarks, and a row an array.

    `command` follows the jobs.
    """
    submission = prepared.submission
    counts = f": {counted(len(submission.trial_ids), 'trial')}"
    if prepared.finished_trials:
        counts += f"; {prepared.finished_trials} are done"
    if prepared.live_trials:
        counts += f"; {prepared.live_trials} are in the queue already"
    heading: list[Value] = [[Styled(submission.sweep.name, "strong"), counts]]
    for remark in prepared.remarks:
        heading.append(Styled(remark, "open"))
    table = Table(
        ["job", "jobs", "nodes", "ranks a node", "trials"],
        {"jobs": "count", "nodes": "count", "trials": "count"},
    )
    for number, array in enumerate(submission.arrays):
        table.add_row(
            submission.job_name(number),
            len(array.trial_ids),
            array.nodes,
            str(array.ranks_per_node),
            sum(map(len, array.trial_ids)),
        )
    if not submission.arrays:
        command = ""
    return View(heading=heading, tables=[table], next=command)


def axes_view() -> View:
    """Return each axis with its values, its default and what it needs; the guide says what it does."""
    table = Table(["axis", "values"])
    for axis, kind in AXIS_TYPES.items():
        default = ""
        if axis != "batch_size":  # whose default is the workload's
            default = f"  default {axis_value(DEFAULTS[axis])}"
        need = need_of(axis)
        needed = f"\nneeds {need[1]}" if need else ""
        values: Value = [_describe_type(kind), Styled(default, "quiet"), needed]
        table.add_row(axis, values)
    # Axes whose names are not the harness's own.
    table.add_row(
        f"{PREFIX}NAME",
        "text, a whole number, or null for unset\nan environment variable of the ranks",
    )
    table.add_row("options.NAME, data.NAME", "an option or data setting: see harness workloads")
    return View(tables=[table])


def _describe_type(kind: Any) -> str:
    """Return what a type allows, in words: `a list of 1, …`, `tiny, small, base or null`."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        for bounds in arguments[1:]:
            if isinstance(bounds, Meta) and bounds.ge is not None:
                if bounds.le is None:
                    return f"{bounds.ge:.12g}, …"
                return f"{bounds.ge:.12g} to {bounds.le:.12g}"
        return _describe_type(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(map(_describe_type, arguments))
    if origin is Literal:
        return ", ".join(map(axis_value, arguments))
    if origin in (tuple, list) and arguments:
        return f"a list of {_describe_type(arguments[0])}"
    name = getattr(kind, "__name__", str(kind))
    return PLAIN_TYPES.get(kind, name)


def workloads_view(workloads: Mapping[str, Declaration]) -> View:
    """Return a row for each workload."""
    columns = ["workload", "batch_size", "options", "data sources"]
    table = Table(columns, {"batch_size": "count"})
    for name, declaration in workloads.items():
        options = ", ".join(field.name for field in fields(declaration.options))
        sources = ", ".join(members_by_source(declaration.data))
        table.add_row(name, declaration.batch_size, options, sources)
    more = "harness workloads NAME, or file.py:Class, shows what each setting allows"
    return View(tables=[table], lines=[more])


def workload_view(name: str, declaration: Declaration) -> View:
    """Return one workload with all its settings, named as the axes that they may be."""
    table = Table(["setting", "allowed"])
    _add_settings(table, "options", declaration.options)
    for source, settings in members_by_source(declaration.data).items():
        if source:
            table.add_row(f"data.{SOURCE}", source)
        _add_settings(table, "data", settings)
    heading = f"{name}  {declaration.path}, batch_size {declaration.batch_size}"
    return View(heading=[heading], tables=[table])


def _add_settings(table: Table, section: str, kind: Any) -> None:
    """Add a row for each field of a Settings class: what it allows, and its default."""
    hints = get_type_hints(kind, include_extras=True)
    for declared in fields(kind):
        if declared.name == SOURCE:
            continue
        default = default_of(declared)
        text = "  required"
        if default is not MISSING:
            shown = json.loads(json.dumps(default, default=str))
            text = f"  default {axis_value(shown) or repr('')}"
        kind_text = _describe_type(hints[declared.name])
        allowed: Value = [kind_text, Styled(text, "quiet")]
        table.add_row(f"{section}.{declared.name}", allowed)
