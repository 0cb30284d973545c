"""Measures the cost of a setting: a cell with it and the same cell without it train in turn.

As in a gate, both arms train in turn, in pairs of fresh processes. But they have the same files and
train two cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.core.cores import usable_cores
from harness.core.worktree import Tree
from harness.gate.paired import Budget, PairedResult, run_paired
from harness.gate.pairs import PairStarter
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.statistics.verdict import ALPHA

MIN_EFFECT = 0.01  # a fraction of throughput; a smaller cost counts as none
# The share of the cost that must be certain before measuring ends, because its size is of interest.
CERTAIN_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Tax:
    """The cost of a setting for a cell."""

    setting: str  # the name of the axis
    reference: Cell  # as it was measured, without the setting
    cell: Cell  # with it
    measured: PairedResult  # of the cell with the setting, over the reference


def ranks_side_by_side(cell: Cell, profile: Profile) -> int:
    """Return how many of the cell's ranks this machine can run at once, without taking turns.

    A power of two, as the number of ranks of a tree has to be, times the ranks that a mesh of groups
    needs at least; at most the cell's own.
    """
    slots = profile.gpus or len(usable_cores()) // cell.axes.num_threads
    ranks = cell.axes.tensor_parallel
    if cell.axes.shard_size is not None:
        ranks = 2 * cell.axes.shard_size
    while 2 * ranks <= min(slots, cell.axes.world_size):
        ranks *= 2
    return ranks


def with_ranks(cell: Cell, ranks: int) -> Cell:
    """Return the cell with another number of ranks, which share its batch."""
    return replace(cell, axes=replace(cell.axes, world_size=ranks))


def measure_tax(
    setting: str,
    reference: Cell,
    cell: Cell,
    *,
    seed: int,
    base: Path,
    profile: Profile,
    seconds: float,
) -> Tax:
    """Measure the cost of a cell's setting against the reference, for at most `seconds`.

    Both train with as many ranks as the machine can run at once: with more, waiting for cores would
    hide the cost of the setting. The cells' paths are relative to the folder `base`. Raises
    HarnessError if a rank fails.
    """
    ranks = ranks_side_by_side(reference, profile)
    reference, cell = with_ranks(reference, ranks), with_ranks(cell, ranks)
    folder = Path.cwd()
    trees = {
        "a": Tree(name="without", top=folder, path=folder),
        "b": Tree(name=f"with {setting}", top=folder, path=folder),
    }
    budget = Budget(
        min_effect=MIN_EFFECT, seconds=seconds, alpha=ALPHA, certain_share=CERTAIN_SHARE
    )
    rng = np.random.default_rng()
    with PairStarter(reference, seed, trees, base, profile, other_cells={"b": cell}) as starter:
        measured = run_paired(reference, starter.pair, budget, rng, lambda text: None)
    return Tax(setting=setting, reference=reference, cell=cell, measured=measured)
