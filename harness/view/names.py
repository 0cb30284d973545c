"""Names cells by the axes in which they differ, and the values of axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.analysis.cells import naming_axes
from harness.sweep.axes import DEFAULTS
from harness.sweep.cell import LABEL_AXES, Cell, axis_value, short_axis

MOST_NAMED = 4  # axes of which a cell's name has all values


def axis_levels(levels: Mapping[str, Any]) -> str:
    """Return levels of axes as short as they are clear: `bf16 with num_workers=2`.

    A text stands without its axis where the label of a cell has it so.
    """
    texts = []
    for axis, value in levels.items():
        is_clear = isinstance(value, str) and axis in LABEL_AXES
        texts.append(value if is_clear else f"{short_axis(axis)}={axis_value(value)}")
    return " with ".join(texts)


def cell_name(cell: Cell, axes: Sequence[str]) -> str:
    """Return a cell by some of its axes, as its label spells them: `compile bf16 ddp×2 w0`.

    Of many axes, `name=value` is left out where the value is the default.
    """
    parts = []
    for axis in axes:
        part = cell.label_part(axis)
        is_default = cell.level(axis) == DEFAULTS.get(axis)  # None for a variable that is not set
        if len(axes) <= MOST_NAMED or "=" not in part or not is_default:
            parts.append(part)
    return " ".join(parts)


def cell_names(cells: Iterable[Cell], *, with_workload: bool = False) -> dict[str, str]:
    """Return a short name for each cell by its id: the axes in which those of its workload differ.

    `with_workload`, the workload's label comes first if there are several workloads. The only cell of
    all has its whole label, and cells that no axis tells apart have their id too.
    """
    by_workload: dict[str, list[Cell]] = {}
    for cell in cells:
        of_workload = by_workload.setdefault(cell.workload.label, [])
        of_workload.append(cell)
    names = {}
    for workload, of_workload in by_workload.items():
        axes = naming_axes(of_workload)
        prefix = ""
        if with_workload and len(by_workload) > 1:
            prefix = f"{workload} "
        short_names = [cell_name(cell, axes) for cell in of_workload]
        counts = Counter(short_names)
        for cell, name in zip(of_workload, short_names, strict=True):
            if counts[name] > 1:
                name = f"{name} {cell.id}"
            names[cell.id] = cell.label
            if name:
                names[cell.id] = f"{prefix}{name}".strip()
    return names
