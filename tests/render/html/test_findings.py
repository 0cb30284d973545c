"""Who is said to have won."""

from __future__ import annotations

import numpy as np

from harness.analysis.sweep_result import contenders
from tests.factories import make_cell
from tests.support.results import make_result

BATCHES = (16, 32, 64, 128, 256, 512)


def test_who_is_clearly_slower_is_no_contender() -> None:
    fastest = make_result([200.0, 201.0, 199.0], cell=make_cell(batch_size=1))
    slow, close = (
        make_result([rate, rate * 1.02, rate * 0.98], cell=make_cell(batch_size=size))
        for rate, size in ((100.0, 2), (199.0, 4))
    )
    assert contenders(fastest, [slow, close]) == [close]


def test_a_difference_too_small_to_matter_makes_no_winner() -> None:
    fastest = make_result([200.2, 200.2001, 200.2002], cell=make_cell(batch_size=1))
    other = make_result([200.0, 200.0001, 200.0002], cell=make_cell(batch_size=2))
    assert contenders(fastest, [other]) == [other]


def test_of_equals_the_luckiest_is_seldom_called_certain() -> None:
    """Two are equally best and the others far behind, where picking the winner by the data misleads most."""
    rng, wrong, rounds = np.random.default_rng(7), 0, 600
    speeds = np.array([200.0, 200.0, 100.0, 100.0, 100.0, 100.0])
    for _ in range(rounds):
        drawn = speeds[:, None] * np.exp(rng.normal(0, 0.03, (len(speeds), 4)))
        cells = [
            make_result(list(row), cell=make_cell(batch_size=size))
            for row, size in zip(drawn, BATCHES, strict=True)
        ]
        best = int(np.log(drawn).mean(axis=1).argmax())
        wrong += not contenders(
            cells[best], [cell for place, cell in enumerate(cells) if place != best]
        )
    assert wrong / rounds <= 0.05
