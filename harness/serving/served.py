"""What a cell is when its model serves: one process, without what only training needs."""

from __future__ import annotations

from dataclasses import replace

from harness.spec.axes import Axes
from harness.spec.cell import Cell

# The axes of training that a model keeps when it serves. All others decide how it was trained:
# several ranks, a compiler, or autocast, whose parameters are fp32 too.
SERVED_AXES = ("batch_size", "channels_last")


def served_cell(cell: Cell, threads: int = 1) -> Cell:
    """Return a cell as it is served: by one process, in the precision of its parameters."""
    axes = {name: getattr(cell.axes, name) for name in SERVED_AXES}
    served = Axes(**axes, num_threads=threads)
    if cell.axes.precision == "fp64":
        served = replace(served, precision="fp64")
    return replace(cell, axes=served)
