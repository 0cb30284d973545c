"""Shows `harness plan` and `harness submit`: the cells and trials of a sweep, and the jobs that run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from harness.analysis.cells import varying_axes
from harness.core.text import counted
from harness.sweep.cell import Trial, axis_value
from harness.sweep.matrix import CONFLICT
from harness.sweep.sweep import Sweep
from harness.view.names import changed_axes
from harness.view.value import Kind, Styled, Value, duration
from harness.view.view import Table, View

if TYPE_CHECKING:
    from harness.slurm.submit import PreparedSubmission

MOST_ROWS = 200  # cells that are listed
QUIET_MACHINE = "wait, or run with --tolerate-load (in a profile, validity.contention: null)"


def plan_view(sweep: Sweep, estimates: Mapping[str, float], *, in_full: bool) -> View:
    """Return the plan of a sweep: cells, trials and duration, and what is left out and why.

    Rules of the sweep that match no cell are named too, because they may be misspelled. Unless `in_full`,
    the first MOST_ROWS cells are listed, and points that are left out are counted by their reason.
    `estimates` are the seconds that a trial takes, by the id of its cell.
    """
    lines: list[Value] = []
    cells = sweep.cells if in_full else sweep.cells[:MOST_ROWS]
    if len(cells) < len(sweep.cells):
        lines.append(f"and {len(sweep.cells) - len(cells):,} more cells; --all lists them")
    # Workloads may have their own seeds.
    trial_count = sum(len(sweep.seeds_of(cell)) for cell in sweep.cells) * sweep.repeats
    seeds = ", ".join(map(str, sweep.all_seeds))
    counts = (
        f"{counted(len(sweep.cells), 'cell')}, seeds {seeds}, {counted(sweep.repeats, 'repeat')}"
    )
    lines.append(f"{counts}: {counted(trial_count, 'trial')}")
    # Only the duration needs the trials, of which there may be a hundred thousand.
    lines.append(describe_duration(sweep.trials() if estimates else [], estimates))
    left_out: Counter[str] = Counter()
    for point in sweep.excluded:
        name = f"{point.workload} {changed_axes(dict(point.axes))} " if in_full else ""
        left_out[f"left out by {point.rule}: {name}({point.reason})"] += 1
    for text, count in left_out.most_common():
        lines.append(f"{text}: {count:,}" if count > 1 else text)
    lines += [Styled(f"{rule} matches no cell", "open") for rule in sweep.unused_rules]
    axes = varying_axes(sweep.cells)
    columns = ["cell", "workload", *axes, "length", "estimate"]
    table = Table(columns, {"estimate": "duration"}, optional=["workload"])
    for cell in cells:
        levels = [axis_value(cell.level(axis)) for axis in axes]
        estimate = estimates.get(cell.id)
        table.add_row(cell.id, cell.workload.label, *levels, cell.length_text, estimate)
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
    return asdict(replace(sweep.whole(), cells=[])) | {"cells": cells, "trials": trials}


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
    seconds = sum(estimates.get(trial.cell.id, 0.0) for trial in trials)
    unknown = {trial.cell.id for trial in trials} - estimates.keys()
    more = f" and {counted(len(unknown), 'cell')} without records" if unknown else ""
    return f"time: {duration(seconds)}{more}, by earlier records"


def busy_line(load: float, cores: int) -> str:
    """Return what to do about a machine whose cores other programs want; `load` is how many they want."""
    return f"load {load:.1f} on {cores} cores: trials will be invalid; {QUIET_MACHINE}"


def submission_view(prepared: PreparedSubmission) -> View:
    """Return how many trials are submitted, how many are not and why, the remarks, and a row an array."""
    submission = prepared.submission
    counts = f": {counted(len(submission.trial_ids), 'trial')}"
    if prepared.finished_trials:
        counts += f"; {prepared.finished_trials} are done"
    if prepared.live_trials:
        counts += f"; {prepared.live_trials} are in the queue already"
    heading: list[Value] = [[Styled(submission.sweep.name, "strong"), counts]]
    heading += conflict_lines(submission.sweep)
    heading += [Styled(remark, "open") for remark in prepared.remarks]
    numbers: dict[str, Kind] = dict.fromkeys(["jobs", "nodes", "trials"], "count")
    table = Table(["job", "jobs", "nodes", "ranks a node", "trials"], numbers)
    for number, array in enumerate(submission.arrays):
        trials = sum(map(len, array.trial_ids))
        ranks = str(array.ranks_per_node)
        table.add_row(submission.job_name(number), len(array.trial_ids), array.nodes, ranks, trials)
    return View(heading=heading, tables=[table])
