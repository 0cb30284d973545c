"""How well cells scale over ranks: throughput against that of the same settings on the fewest ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.analysis.result import CellResult
from harness.sweep.cell import Cell

ALONE = "single"  # the strategy of one rank, which every other one can be compared with


def scaling_shares(cells: Sequence[CellResult]) -> dict[str, float]:
    """Return the share of ideal scaling of cells of one workload, by the id of the cell.

    Ideal is in proportion to the ranks, at the same global batch size. The base is the measured cell
    of the same settings and the same strategy with the fewest ranks, or one without a strategy on a
    single rank. A cell that is its own base has no share.
    """
    measured = [cell for cell in cells if cell.throughput is not None]
    if len({cell.cell.axes.world_size for cell in measured}) < 2:
        return {}
    bases: dict[tuple[str, str], CellResult] = {}  # by the settings and the strategy
    for cell in sorted(measured, key=lambda cell: cell.cell.axes.world_size):
        bases.setdefault((_other_settings(cell.cell), _strategy(cell.cell)), cell)
    shares = {}
    for cell in measured:
        settings = _other_settings(cell.cell)
        base = bases.get((settings, ALONE)) or bases[settings, _strategy(cell.cell)]
        ranks = cell.cell.axes.world_size / base.cell.axes.world_size
        if ranks > 1:
            shares[cell.cell.id] = cell.mean_throughput / base.mean_throughput / ranks
    return shares


def _strategy(cell: Cell) -> str:
    """Return the strategy of a cell; that of a script is its own affair."""
    return str(cell.levels.get("strategy", "script"))


def _other_settings(cell: Cell) -> str:
    """Return a text that is equal for cells that differ in ranks and strategy only."""
    levels = dict(cell.levels)
    levels.pop("world_size", None)
    levels.pop("strategy", None)
    return json.dumps(levels, sort_keys=True, default=str)
