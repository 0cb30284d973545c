"""Shows `harness plan` and `harness submit`: the cells and trials of a sweep, and the jobs that run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from harness.analysis.cells import varying_axes
from harness.core.text import counted
from harness.render.console import TerminalConsole, print_json, show_table
from harness.render.format import (
    NUMERIC_AXES,
    axis_texts,
    changed_axes,
    duration,
)
from harness.render.table import Table
from harness.spec.cell import Cell, Fingerprints, Trial, axis_value
from harness.spec.matrix import CONFLICT, ExcludedPoint
from harness.spec.sweep import Sweep

if TYPE_CHECKING:
    from harness.slurm.submit import PreparedSubmission

MOST_ROWS = 200  # cells that are listed one by one, and points that are left out
ENDS = 5  # cells at the beginning and at the end that a summary shows
MOST_VALUES = 12  # of an axis that a summary shows
MOST_CONFLICTS = 2  # whose reasons a line on them gives
QUIET_MACHINE = "wait, or run with --tolerate-load (in a profile, validity.contention: null)"
MOST_REASONS = 20  # for leaving out points that a summary shows
MOST_POINTS = 3  # that are left out and listed one by one


def show_plan(
    sweep: Sweep, estimates: Mapping[str, float], *, as_json: bool, in_full: bool
) -> None:
    """Print the plan of a sweep: cells, trials and duration, and what is left out and why.

    Rules of the sweep that match no cell are named too, because they may be misspelled. Of more than
    MOST_ROWS cells, and of as many that are left out, there is a summary, unless `in_full`. `estimates`
    are the seconds that a trial takes, by the id of its cell.
    """
    if as_json:
        print_json(plan_to_json(sweep, estimates))
        return
    console = TerminalConsole()
    console.print_markup(f"[bold]{escape(sweep.name)}[/]")
    axes = varying_axes(sweep.cells)
    if in_full or len(sweep.cells) <= MOST_ROWS:
        show_table(console, plan_table(sweep.cells, axes, estimates))
    else:
        _show_summary(console, sweep, axes, estimates)
    # As in `4 cells × seeds 0, 1, 2 × 1 repeat = 12 trials`. Workloads may have their own seeds, so
    # cells with the same seeds are a term of the sum.
    repeats = counted(sweep.repeats, "repeat")
    terms: list[str] = []
    trial_count = 0
    for seeds, count in Counter(tuple(sweep.seeds_of(cell)) for cell in sweep.cells).items():
        listed = ", ".join(map(str, seeds))
        terms.append(f"{counted(count, 'cell')} × seeds {listed} × {repeats}")
        trial_count += count * len(seeds) * sweep.repeats
    console.print_text(f"\n{' + '.join(terms)} = {counted(trial_count, 'trial')}")
    # Only the duration needs the trials, of which there may be a hundred thousand.
    trials = sweep.trials() if estimates else []
    console.print(describe_duration(trials, estimates))
    if sweep.profile:
        steps = counted(sweep.profile.steps, "step")
        console.print(f"profile: a trace of {steps} follows the last step of each trial")
    if sweep.fingerprints:
        console.print_markup(_describe_fingerprints(sweep.fingerprints))
    for line in _excluded_lines(sweep.excluded, in_full=in_full):
        console.print_text(line)
    for rule in sweep.unused_rules:
        console.print_text(f"{rule} matches no cell", "open")


def _show_summary(
    console: TerminalConsole, sweep: Sweep, axes: Sequence[str], estimates: Mapping[str, float]
) -> None:
    """Print how many values the `axes` have in which cells differ, and the first and last cells."""
    table = Table(["axis", "values", "cells of each"], ["values"])
    for axis in ("workload", *axes):
        levels: list[Any] = [cell.workload.label for cell in sweep.cells]
        if axis != "workload":
            levels = [cell.level(axis) for cell in sweep.cells]
        counts = Counter(levels)
        first_counts = list(counts.items())[:MOST_VALUES]
        shown = [f"{axis_value(level)}: {count:,}" for level, count in first_counts]
        more = ", …" * (len(counts) > MOST_VALUES)
        table.add_row(axis, str(len(counts)), ", ".join(shown) + more)
    show_table(console, table)
    console.print(f"\nthe first and the last {ENDS} of {len(sweep.cells):,} cells; --all shows all")
    ends = [*sweep.cells[:ENDS], *sweep.cells[-ENDS:]]
    show_table(console, plan_table(ends, axes, estimates))


def _excluded_lines(excluded: Sequence[ExcludedPoint], *, in_full: bool) -> list[str]:
    """Return a line for each point that is left out, or for each reason if there are many."""
    if not in_full and len(excluded) > MOST_POINTS:
        reasons = Counter((point.rule, point.reason) for point in excluded)
        lines = []
        for (rule, reason), count in reasons.most_common(MOST_REASONS):
            lines.append(f"left out by {rule}: {counted(count, 'combination')} ({reason})")
        if len(reasons) > MOST_REASONS:
            lines.append(f"and by {len(reasons) - MOST_REASONS:,} other reasons; --all shows all")
        return lines
    lines = []
    for point in excluded:
        axes = changed_axes(dict(point.axes))
        lines.append(f"left out by {point.rule}: {point.workload} {axes} ({point.reason})")
    return lines


def conflict_lines(sweep: Sweep) -> list[str]:
    """Return a line on the combinations that make no sense, none if there are none.

    Those that an `exclude` of the sweep names do not count: whoever wrote it knows of them.
    """
    reasons = Counter(point.reason for point in sweep.excluded if point.rule == CONFLICT)
    if not reasons:
        return []
    combinations = len(sweep.cells) + len(sweep.excluded)
    shown = [f"{reason} ({count:,})" for reason, count in reasons.most_common(MOST_CONFLICTS)]
    if len(reasons) > MOST_CONFLICTS:
        shown.append(f"{counted(len(reasons) - MOST_CONFLICTS, 'other reason')}")
    return [
        f"{reasons.total():,} of {combinations:,} combinations left out: {'; '.join(shown)};"
        " harness plan lists them"
    ]


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


def _describe_fingerprints(chosen: Fingerprints) -> str:
    """Return at which steps trials are fingerprinted: `steps 1, 100, every 50 steps, and the last`."""
    parts = []
    if chosen.steps:
        numbers = ", ".join(map(str, chosen.steps))
        parts.append(f"{'step' if len(chosen.steps) == 1 else 'steps'} {numbers}")
    if chosen.every is not None:
        parts.append(f"every {counted(chosen.every, 'step')}")
    parts.append("the last step")
    return f"fingerprints: of {', '.join(parts)}; these steps are not measured"


def describe_duration(trials: Sequence[Trial], estimates: Mapping[str, float]) -> str:
    """Return how long trials will take one after the other, as far as earlier records tell.

    `estimates` are the seconds that a trial takes, by the id of its cell.
    """
    if not estimates:
        return "time: unknown, no cell has a record yet"
    counts = Counter(trial.cell.id for trial in trials)
    seconds = 0.0
    for cell_id, count in counts.items():
        seconds += estimates.get(cell_id, 0.0) * count
    total = duration(seconds)
    known_count = len(counts.keys() & estimates.keys())
    if known_count < len(counts):
        return (
            f"time: {total} for {counted(known_count, 'cell')} with records,"
            f" unknown for {len(counts) - known_count}"
        )
    return f"time: {total} by earlier records"


def busy_line(load: float, cores: int) -> str:
    """Return what to do about a machine whose cores other programs want; `load` is how many they want."""
    return f"load {load:.1f} on {cores} cores: trials will be invalid; {QUIET_MACHINE}"


def plan_table(cells: Sequence[Cell], axes: Sequence[str], estimates: Mapping[str, float]) -> Table:
    """Return a table with a row for each of some cells of a sweep, and a column for each of some axes.

    `estimates` are the seconds that a trial takes, by the id of its cell.
    """
    columns = ["cell", "workload", *axes, "length", "estimate"]
    table = Table(columns, [*NUMERIC_AXES, "estimate"])
    for cell in cells:
        estimate = "unknown"
        if cell.id in estimates:
            estimate = duration(estimates[cell.id])
        row = [*axis_texts(cell, axes), cell.length_text, estimate]
        table.add_row(cell.id, cell.workload.label, *row)
    return table


JOB_COLUMNS = ("job", "jobs", "nodes", "ranks a node", "trials")
JOB_NUMBERS = ("jobs", "nodes", "trials")  # aligned to the right


def show_prepared(console: TerminalConsole, prepared: PreparedSubmission) -> None:
    """Print how many trials are submitted, how many are not and why, the remarks, and a row an array."""
    submission = prepared.submission
    line = f"[bold]{escape(submission.sweep.name)}[/]"
    line += f": {counted(len(submission.trial_ids), 'trial')}"
    if prepared.finished_trials:
        line += f"; {prepared.finished_trials} are done"
    if prepared.live_trials:
        line += f"; {prepared.live_trials} are in the queue already"
    console.print_markup(line)
    for line in conflict_lines(submission.sweep):
        console.print_text(line)
    for remark in prepared.remarks:
        console.print_text(remark, "open")
    if not submission.arrays:
        return
    table = Table(JOB_COLUMNS, JOB_NUMBERS)
    for number, array in enumerate(submission.arrays):
        table.add_row(
            submission.job_name(number),
            str(len(array.trial_ids)),
            str(array.nodes),
            str(array.ranks_per_node),
            str(sum(len(trial_ids) for trial_ids in array.trial_ids)),
        )
    show_table(console, table)
