"""A race: which of some cells are the best, decided after every block, with few false departures.

A cell leaves once it is certainly worse than `keep` others that are still in, by the sequential test
on paired differences within blocks (`harness.statistics.sequential`).

The error rate is the probability that any cell ever leaves that is one of the `keep` best; of equal
cells, all are. With K cells of which m are still in, each ordered pair is tested at error_rate /
(m (K - 1)), one-sided. The first false departure is of one of the t best cells, when all t are still
in, so that m >= t; and it takes one of the at most K - 1 comparisons of that cell with a cell that is
no better. So its probability is at most t (K - 1) error_rate / (t (K - 1)). That m falls as cells
leave, within a look too, is Holm's idea (1979); that looks may be repeated is that of confidence
sequences.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.statistics.sequential import FEWEST_VALUES, Numbers, confidence_sequence, fewest_values

# Cells of a matrix differ by far more than their noise, and levels are small: a smaller prior than a
# gate's decides those after 4 to 8 blocks instead of 10, and makes later intervals a tenth wider.
PRIOR = 0.005
CHUNK = 20_000  # pairs that are compared at a time

Mask = NDArray[np.bool_]


class Race:
    """A race of some cells, whose values come block by block; larger ones are better."""

    def __init__(
        self, cells: int, *, keep: int, error_rate: float, with_goal: bool = False
    ) -> None:
        """Begin with all cells in.

        `with_goal` says that a cell must also reach a goal, for which half of the error rate is kept.
        """
        self.keep = keep
        self.cells = cells
        self.error_rate = error_rate / 2 if with_goal else error_rate
        self.is_in: Mask = np.ones(cells, dtype=bool)
        self.reaches: Mask = np.full(cells, not with_goal)  # which certainly reach the goal

    @property
    def is_over(self) -> bool:
        """Whether no more than `keep` cells are in, all of which reach the goal if there is one."""
        return bool(self.is_in.sum() <= self.keep and self.reaches[self.is_in].all())

    def pair_level(self, cells_in: int) -> float:
        """Return the error of the two-sided interval of a pair while `cells_in` cells are in."""
        return 2 * self.error_rate / (max(1, cells_in) * max(1, self.cells - 1))

    def fewest_blocks(self) -> int:
        """Return the number of blocks before which no cell can leave."""
        return fewest_values(self.pair_level(self.cells), PRIOR)

    def fewest_seeds(self) -> int:
        """Return the number of seeds before which no cell can be certain to reach the goal."""
        return fewest_values(self.error_rate / self.cells, PRIOR)

    def look(self, values: Numbers, margins: Numbers | None = None) -> tuple[Mask, Mask]:
        """Let the cells leave that have to after another block.

        Returns which leave because others are better, and which because they miss the goal.
        `values`, of shape (cells, blocks), are NaN where a trial gave none; those of cells that have
        left don't count. `margins`, of shape (cells, seeds), are by how much cells exceed the goal.
        """
        misses = np.zeros(self.cells, dtype=bool)
        if margins is not None:
            for cell in np.flatnonzero(self.is_in):
                low, high = _last_interval(margins[cell], self.error_rate / self.cells)
                self.reaches[cell], misses[cell] = low > 0, high < 0
        self.is_in &= ~misses
        has_better = np.zeros(self.cells, dtype=bool)
        # Fewer cells are tested at a less strict level, at which others may have to leave as well.
        while (leaves := self._cells_with_better(values)).any():
            self.is_in &= ~leaves
            has_better |= leaves
        return has_better, misses

    def _cells_with_better(self, values: Numbers) -> Mask:
        """Return which cells are certainly worse than `keep` others that are in and reach the goal."""
        cells_in = np.flatnonzero(self.is_in)
        is_worse = certainly_worse(values[cells_in], self.pair_level(len(cells_in)))
        better_cells = is_worse[:, self.reaches[cells_in]].sum(axis=1)
        has_better = np.zeros(self.cells, dtype=bool)
        has_better[cells_in] = better_cells >= self.keep
        return has_better

    def drop(self, cells: Mask) -> None:
        """Let cells leave for another reason."""
        self.is_in &= ~cells


def certainly_worse(values: Numbers, level: float) -> Mask:
    """Return which rows of (cells, blocks) are certainly lower than which, shape (cells, cells)."""
    count = len(values)
    is_worse = np.zeros((count, count), dtype=bool)
    rows, columns = np.triu_indices(count, 1)
    for start in range(0, len(rows), CHUNK):
        i, j = rows[start : start + CHUNK], columns[start : start + CHUNK]
        differences = values[i] - values[j]
        low, high = _last_intervals(differences, level)
        is_worse[i, j] = high < 0
        is_worse[j, i] = low > 0
    return is_worse


def _last_intervals(values: Numbers, level: float) -> tuple[Numbers, Numbers]:
    """Return the intervals of the means of rows (rows, n), of which some values may be NaN."""
    low = np.full(len(values), -np.inf)
    high = np.full(len(values), np.inf)
    is_known = ~np.isnan(values)
    is_whole = is_known.all(axis=1)
    if values.shape[1] >= FEWEST_VALUES:
        lows, highs = confidence_sequence(values[is_whole], level, PRIOR)
        low[is_whole], high[is_whole] = lows[:, -1], highs[:, -1]
    for row in np.flatnonzero(~is_whole):
        low[row], high[row] = _last_interval(values[row, is_known[row]], level)
    return low, high


def _last_interval(values: Numbers, level: float) -> tuple[float, float]:
    """Return the interval of the mean of some values, infinite for too few."""
    values = values[~np.isnan(values)]
    if len(values) < FEWEST_VALUES:
        return -np.inf, np.inf
    low, high = confidence_sequence(values, level, PRIOR)
    return float(low[-1]), float(high[-1])
