"""How losses are drawn that a script reported of some steps, or of none."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from harness.analysis.result import aggregate
from harness.records.record import Record
from harness.render.html.plots import PlottedCell, loss_plot
from tests.factories import make_cell, make_record, with_ranks

STEPS = 400


def record_of(seed: int, reported: list[int]) -> Record:
    """Return a record of a trial that reported its loss after these steps, counted from 0."""
    record = make_record(make_cell(steps=STEPS), seed=seed)
    losses = np.full(STEPS, np.nan)
    losses[reported] = seed + np.arange(len(reported)) % 2  # none of which a drawing can leave out
    return with_ranks(record, [replace(record.ranks[0], loss=losses)])


def report_cells(reported: list[int]) -> list[PlottedCell]:
    """Return two cells of a trial each."""
    cells = []
    for number in range(2):
        record = record_of(number, reported)
        (result,) = aggregate([record])
        cell = PlottedCell(result=result, name=f"lr{number}", number=number, done=[record])
        cells.append(cell)
    return cells


def test_losses_that_no_script_reported_have_no_plot() -> None:
    assert loss_plot("demo", report_cells([])) is None


def test_losses_of_every_tenth_step_are_all_drawn() -> None:
    plot = loss_plot("demo", report_cells(list(range(9, STEPS, 10))))
    assert plot is not None
    assert [line.name for line in plot.lines] == ["lr0", "lr1"]
    points = [path.count("L ") + 1 for path in re.findall('<path d="([^"]*)"', plot.svg)]
    assert points.count(STEPS // 10) == 2  # of each line
