"""Which cells may be as fast as the fastest one."""

from __future__ import annotations

import numpy as np

from harness.analysis.sweep_result import contenders
from tests.factories import make_cell
from tests.support.results import make_result

BATCH_SIZES = (16, 32, 64, 128, 256, 512)


def test_a_clearly_slower_cell_is_no_contender() -> None:
    fastest = make_result([200.0, 201.0, 199.0], cell=make_cell(batch_size=1))
    slow = make_result([100.0, 102.0, 98.0], cell=make_cell(batch_size=2))
    close = make_result([199.0, 203.0, 195.0], cell=make_cell(batch_size=4))
    assert contenders(fastest, [slow, close]) == [close]


def test_a_difference_too_small_to_matter_makes_no_winner() -> None:
    fastest = make_result([200.2, 200.2001, 200.2002], cell=make_cell(batch_size=1))
    other = make_result([200.0, 200.0001, 200.0002], cell=make_cell(batch_size=2))
    assert contenders(fastest, [other]) == [other]


def test_the_luckiest_of_equal_cells_is_rarely_certain() -> None:
    """Two cells are equally best and the others far behind.

    Picking the winner by the data misleads most in that case.
    """
    rng = np.random.default_rng(7)
    rounds = 600
    false_winners = 0
    true_speeds = np.array([200.0, 200.0, 100.0, 100.0, 100.0, 100.0])
    for _ in range(rounds):
        noise = np.exp(rng.normal(0, 0.03, (len(true_speeds), 4)))
        speeds = true_speeds[:, None] * noise
        cells = []
        for cell_speeds, batch_size in zip(speeds, BATCH_SIZES, strict=True):
            cells.append(make_result(list(cell_speeds), cell=make_cell(batch_size=batch_size)))
        fastest = cells.pop(int(np.log(speeds).mean(axis=1).argmax()))
        false_winners += not contenders(fastest, cells)
    assert false_winners / rounds <= 0.05
