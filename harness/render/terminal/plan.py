"""`harness plan`: what a sweep will do, before it does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.records.record import read_record
from harness.render.format import changed_axes, duration
from harness.render.terminal.table import plan_table
from harness.render.terminal.table import show as show_table
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep


def show(sweep: Sweep, results: Results, *, as_json: bool) -> None:
    estimates = {
        cell.id: seconds
        for cell in sweep.cells
        if (seconds := estimate_trial_seconds(cell, results)) is not None
    }
    if as_json:
        print(json.dumps(describe(sweep, estimates), indent=1, default=str))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{escape(sweep.name)}[/]  {escape(sweep.description)}", soft_wrap=True)
    show_table(console, plan_table(sweep, estimates))
    trials = len(sweep.trials())
    seeds = ", ".join(map(str, sweep.seeds))
    console.print(
        f"\n{len(sweep.cells)} cells × seeds {seeds} × {sweep.repeats} repeats = {trials} trials"
    )
    _print_time(console, sweep, estimates)
    if sweep.profile:
        console.print(
            f"profile: {sweep.profile.steps} more steps of every trial are traced once it is over"
        )
    for left_out in sweep.excluded:
        axes = changed_axes(dict(left_out.axes))
        line = f"left out by {left_out.rule}: {left_out.workload} {axes} ({left_out.reason})"
        console.print(line, markup=False, soft_wrap=True)
    for rule in sweep.unused_rules:
        console.print(f"{rule} matches no cell", style="yellow", markup=False)


def describe(sweep: Sweep, estimates: Mapping[str, float]) -> dict[str, Any]:
    """A sweep with every default and every id."""
    return {
        **asdict(sweep),
        "cells": [
            {
                "id": cell.id,
                "label": cell.label,
                "estimated_seconds": estimates.get(cell.id),
                **asdict(cell),
            }
            for cell in sweep.cells
        ],
        "trials": [trial.id for trial in sweep.trials()],
    }


def _print_time(console: Console, sweep: Sweep, estimates: dict[str, float]) -> None:
    each = len(sweep.trials()) // len(sweep.cells)
    total = duration(sum(estimates.values()) * each)
    unknown = len(sweep.cells) - len(estimates)
    if not estimates:
        console.print("time: unknown, no cell has a record yet")
    elif unknown:
        console.print(
            f"time: {total} for the {len(estimates)} cells that have records, unknown for {unknown}"
        )
    else:
        console.print(f"time: {total} by earlier records")


def estimate_trial_seconds(cell: Cell, results: Results) -> float | None:
    """Mean seconds of the cell's earlier trials that were done, in any sweep; None without any."""
    seconds = []
    for path in results.record_paths_of(cell.id):
        try:
            found = read_record(path)
        except BadInput:
            continue  # an estimate needs no record in particular
        if found.status == "done":
            seconds.append(found.ended - found.started)
    return fmean(seconds) if seconds else None
