"""The table and the picture of what faults cost have one definition of the share that trained."""

from __future__ import annotations

import pytest

from harness.records.goodput import Goodput
from harness.render.table import markdown_lines
from tests.programs.perf.faults import ettr_interval, picture_of, table_of


def spent(trained: float, again: float) -> Goodput:
    """Return where the wall time of a trial went that takes a second to start."""
    return Goodput(
        trained=trained, again=again, start=1.0, compile=0, evaluate=0, checkpoint=0, waiting=0
    )


def test_a_trial_weighs_as_much_as_it_took() -> None:
    """Of 9 + 1 + 9 + 81 = 100 seconds, 18 trained: the mean of both shares would be 49.9%."""
    trials = [spent(9.0, 0.0), spent(9.0, 80.0)]
    interval = ettr_interval(trials)
    assert interval.mean == pytest.approx(0.18)
    assert interval.bounds == (0.0, 1.0), "no share is beyond these, however few trials there are"
    (row,) = markdown_lines(table_of({"none": (trials, 3)}))[2:]
    assert row == "| none | 2 | 3 | 18.0% | 0.0% to 100.0% | 80.0% | 2.0% | 0.0% | 0.0% | 0.0% |"
    assert picture_of({"none": (trials, 3)}).startswith(b"\x89PNG")


def test_the_interval_of_trials_of_one_length_is_that_of_their_mean_share() -> None:
    trials = [spent(trained, 19.0 - trained) for trained in (15.0, 16.0, 17.0)]
    interval = ettr_interval(trials)
    assert interval.mean == pytest.approx(0.8)
    # Student's quantile of two degrees of freedom is 4.303, and the deviation is 0.05.
    assert interval.half_width == pytest.approx(4.303 * 0.05 / 3**0.5, rel=1e-3)


def test_one_trial_has_no_interval() -> None:
    assert ettr_interval([spent(9.0, 0.0)]).bounds is None
