"""How losses are drawn that a script reported of some steps, or of none."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from harness.records.record import Record
from harness.view.plots import Plot, losses, plot
from tests.factories import make_cell, make_record, with_ranks

STEPS = 400


def record_of(seed: int, reported: list[int]) -> Record:
    """Return a record of a trial that reported its loss after these steps, counted from 0."""
    record = make_record(make_cell(steps=STEPS), seed=seed)
    losses = np.full(STEPS, np.nan)
    losses[reported] = seed + np.arange(len(reported)) % 2  # none of which a drawing can leave out
    return with_ranks(record, [replace(record.ranks[0], loss=losses)])


def loss_plot(reported: list[int]) -> Plot | None:
    """Return the plot of two cells of a trial each."""
    cells = {f"lr{number}": [record_of(number, reported)] for number in range(2)}
    return plot("demo", "training loss", cells, losses)


def test_losses_that_no_script_reported_have_no_plot() -> None:
    assert loss_plot([]) is None


def test_losses_of_every_tenth_step_are_all_drawn() -> None:
    drawn = loss_plot(list(range(9, STEPS, 10)))
    assert drawn is not None
    assert [name for _, name in drawn.lines] == ["lr0", "lr1"]
    points = [path.count("L ") + 1 for path in re.findall('<path d="([^"]*)"', drawn.svg)]
    assert points.count(STEPS // 10) == 2  # of each line


def test_curves_have_a_bounded_number_of_points() -> None:
    assert 150 <= len(losses(record_of(0, list(range(STEPS))))) <= 200
