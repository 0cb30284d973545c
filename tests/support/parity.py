"""Makes the parity of a sweep that never ran."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.analysis.parity import CellParity, FirstDifference, Reference, SweepParity
from harness.analysis.rungs import TensorDistance
from harness.sweep.cell import Cell
from tests.factories import make_cell

REFERENCE = make_cell()
OTHER = make_cell(strategy="ddp", world_size=2)
DISTANCE = TensorDistance(
    step=3, name="weight", dtype="float32", shape=(40, 40), differing=7,
    error=1e-6, reference_error=1e-6, scale=1.0,
)  # fmt: skip


def make_parity(reference: Cell = REFERENCE, other: Cell = OTHER, **changes: Any) -> SweepParity:
    """Return the parity of one cell, which by default only seeds can decide."""
    cell = CellParity(
        cell=other,
        reference=reference.id,
        compared=40,
        first_difference=FirstDifference(step=1, phase="all-reduce", ranks=[0]),
        differing=["strategy"],
        worst=DISTANCE,
    )
    held_against = Reference(cell=reference, control=None, steps=[1, 3], fp64_problem=None)
    return SweepParity(
        sweep="demo",
        seed=0,
        measured=1.0,
        references=[held_against],
        cells=[replace(cell, **changes)],
    )
