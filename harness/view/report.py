"""The report of a sweep as one HTML page of seven sections.

They are the summary, the cells, the effects of axes, curves, failures, parity, and the environment
with a recipe. The page is a single file without a script and without an address, so that it can be
mailed, kept with a result and printed. A section without content is not shown.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from harness.analysis.cells import naming_axes, shown_seeds
from harness.analysis.parity import read_known_parity
from harness.analysis.result import UNRECORDED
from harness.analysis.sweep_result import SweepResult, attributions
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.core.text import counted
from harness.records.store import RecordedSweep
from harness.view import origin, plots
from harness.view.findings import conclusions, remarks
from harness.view.names import cell_names
from harness.view.parity import parity_view
from harness.view.sweep import LEGEND, cells_table, effects_table
from harness.view.value import Effect, duration
from harness.view.view import Table

MAX_CURVES = 40  # cells of a workload whose losses are read: the fastest
MAX_TROUBLES = 20  # trials that are described with their logs
REACH = 2.0  # how many times as far as the median end of an interval the scale goes


def render(results: Results, recorded: RecordedSweep) -> str:
    """Return the report of a sweep that has run; the same records give the same text.

    Raises BadInput if there are no records.
    """
    sweep, records = recorded.sweep, recorded.records
    if not records:
        raise BadInput(f"{sweep.name}: found no records; allowed: a sweep that has run")
    folder = results.sweep_folder(sweep.name)
    result = SweepResult.of_records(sweep, records)
    parity = read_known_parity(folder, result.cells)
    names = cell_names(result.all_cells)
    tables: list[Table] = []
    curves: list[plots.Plot] = []
    effects: list[Table] = []
    by_workload = attributions(result.side)
    for label, cells in result.workloads.items():
        table = cells_table(result, label, parity, wide=True)
        table.without = ["id"]
        tables.append(table)
        curves += _curves(result, label, names)
        attribution = by_workload.get(label)
        # The effect of a single axis is what the verdicts on its cells say.
        axes = naming_axes([cell.cell for cell in cells])
        if attribution is not None and len(axes) > 1:
            effects.append(effects_table(label, attribution))
    failures = origin.troubles(records, folder)
    commands, warnings = origin.recipe(sweep, records, folder)
    return _fill_template(
        sweep=sweep,
        overview=_overview(recorded, result),
        sentences=conclusions(result),
        remarks=remarks(result, records),
        cells=tables,
        legend=LEGEND,
        effects=effects,
        curves=curves,
        failures=failures[:MAX_TROUBLES],
        more_failures=len(failures[MAX_TROUBLES:]),
        parity=parity_view(parity).tables if parity else (),
        environment=origin.environment_table(records),
        commands="\n".join(commands),
        warnings=warnings,
        drawing=drawing_of,
    )


def _fill_template(**content: Any) -> str:
    """Return the page with its contents, escaped: a name or a log may hold markup."""
    loader = jinja2.PackageLoader("harness.view")
    templates = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, _, _ = loader.get_source(templates, "report.css")
    page = templates.get_template("report.html")
    return page.render(style=Markup(css), **content)


def _curves(
    result: SweepResult,
    workload: str,
    names: Mapping[str, str],
) -> list[plots.Plot]:
    """Return plots of the loss and of the target metric of a workload's fastest cells.

    `names` are the cells' by their ids.
    """
    target = "target metric"
    done = {}
    for cell in result.ranking(workload)[:MAX_CURVES]:
        name = names[cell.cell.id]
        done[name] = result.done_records(cell.cell)
        if cell.target is not None:
            target = cell.target.name
    losses = plots.plot(workload, "training loss", done, plots.losses)
    metrics = plots.plot(workload, target, done, plots.metrics)
    return list(filter(None, (losses, metrics)))


def _overview(recorded: RecordedSweep, result: SweepResult) -> dict[str, str]:
    """Return the terms at the top of the page: how much was measured, when and on what.

    Times are in UTC, so that the page does not depend on who writes it.
    """
    records = recorded.records
    started = min(record.started for record in records)
    ended = max(record.ended for record in records)
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))
    counts = Counter(f"{record.status}" for record in records)
    hardware: dict[str, None] = {}  # an ordered set
    for cell in result.cells:
        counts["not run"] += cell.left_out.get(UNRECORDED, 0)
        hardware |= dict.fromkeys(cell.hardware)
    counts["unreadable"] = len(recorded.unreadable)
    counts["of other code or settings"] = recorded.other_count
    trials = [f"{count} {status}" for status, count in counts.items() if count]
    seeds = shown_seeds(recorded.sweep, records)
    trials.append(counted(len(seeds), "seed"))
    workloads = counted(len(result.workloads), "workload")
    return {
        "cells": f"{len(result.cells):,} of {workloads}",
        "trials": ", ".join(trials),
        "measured": f"{moment}, in {duration(ended - started)}",
        "on": "; ".join(hardware) or "unknown hardware",
    }


def drawing_of(table: Table) -> Callable[[float], float]:
    """Return a function that places the ratios of a table on a line, in percent of its length.

    The scale is logarithmic and has 1, all ratios and their intervals. Where an interval reaches much
    further than most do, and would flatten the others, its end is beyond the scale: at 0 or 100.
    """
    low, high = _log_range(table)
    margin = max(high - low, 0.02) / 8  # has room for an arrow
    length = high - low + 2 * margin

    def place(value: float) -> float:
        """Return where a ratio is."""
        logarithm = -math.inf
        if value > 0:
            logarithm = math.log(value)
        if logarithm < low:
            return 0
        if logarithm > high:
            return 100
        return 100 * (logarithm - low + margin) / length

    return place


def _log_range(table: Table) -> tuple[float, float]:
    """Return the logarithms between which a table's ratios are drawn, 1 among them."""
    drawn = [0.0]
    ends = []  # of intervals: the logarithms of the ratio and of the end
    for value in itertools.chain.from_iterable(table.rows):
        if not isinstance(value, Effect) or not 0 < value.value < math.inf:
            continue
        ratio = math.log(value.value)
        drawn.append(ratio)
        for end in value.bounds or ():
            if 0 < end < math.inf:
                ends.append((ratio, math.log(end)))
    if ends:
        distances = sorted(abs(end - ratio) for ratio, end in ends)
        median = distances[len(distances) // 2]
        reach = REACH * median
        for ratio, end in ends:
            clipped = max(end, ratio - reach)
            clipped = min(clipped, ratio + reach)
            drawn.append(clipped)
    return min(drawn), max(drawn)
