"""Which axes differ between cells."""

from __future__ import annotations

from dataclasses import asdict, replace

from harness.analysis.cells import varying_axes
from harness.core.validation import decode_value
from harness.sweep.cell import Cell
from tests.factories import make_cell


def test_a_cell_that_was_recorded_before_an_axis_existed_has_its_default() -> None:
    content = asdict(make_cell())
    del content["axes"]["input"]
    recorded = decode_value(Cell, content)
    other = replace(recorded, axes=replace(recorded.axes, precision="bf16"))
    assert varying_axes([recorded, other]) == ["precision"]
