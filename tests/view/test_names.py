"""How cells are called, and the values of axes."""

from __future__ import annotations

from dataclasses import replace

from harness.view.names import axis_levels, cell_name, cell_names
from harness.view.reproduce import differing_settings
from tests.factories import make_cell


def test_values_of_axes_are_spelled_as_in_a_sweep_file() -> None:
    assert axis_levels({"precision": "bf16", "num_workers": 2}) == "bf16 with num_workers=2"
    assert axis_levels({"stack": "new", "cache": "cold"}) == "stack=new with cache=cold"
    cells = make_cell(deterministic=True), make_cell()
    assert differing_settings(*cells) == ["deterministic (true, false)"]


def test_a_cells_name_spells_axes_as_its_label_does() -> None:
    cell = make_cell(strategy="ddp", world_size=2, precision="bf16", num_workers=4)
    cell = replace(cell, axes=replace(cell.axes, compile_fullgraph=True))
    name = cell_name(cell, ["precision", "strategy", "num_workers", "batch_size"])
    assert name == "bf16 ddp×2 w4 b64"
    assert name in cell.label
    assert cell_name(cell, ["compile.fullgraph"]) == "compile.fullgraph=true"
    assert cell_name(make_cell(), ["strategy"]) == "single"


def test_cells_that_differ_in_what_no_name_tells_have_their_id() -> None:
    cell = make_cell()
    changed = replace(cell, workload=replace(cell.workload, identity={"uses": "other"}))
    assert set(cell_names([cell, changed]).values()) == {cell.id, changed.id}
    (name,) = cell_names([cell]).values()
    assert name == cell.label
