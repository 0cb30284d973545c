"""What a gate lets through: `gate.yaml`, a small file beside the baselines and committed with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from harness.core.errors import BadInput, parse_percentage
from harness.spec.cell import Cell
from harness.spec.document import read_document
from workloads.options import Between, Strict

GATE_FILE_NAME = "gate.yaml"
Policy = Literal["ignore", "warn", "fail"]
Margin = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True)
class CellOverrides(Strict):
    """What the file may say of the cells that a pattern names; what it leaves out is as for all."""

    min_effect: float | str | None = None
    accuracy_margin: Margin | None = None
    bits: Policy | None = None
    inconclusive: Policy | None = None


@dataclass(frozen=True, kw_only=True)
class GateFile(Strict):
    """The keys of the file and their defaults."""

    min_effect: float | str = "1%"  # change of throughput that matters
    accuracy_margin: Margin = 0.01  # the same for the target metric, in its unit
    bits: Policy = "ignore"  # final parameters that differ from the baseline's
    inconclusive: Policy = "warn"
    missing: Policy = "fail"  # cells that the run or the baseline lacks
    across: list[str] = field(
        default_factory=list
    )  # differences that are allowed, as --across takes them
    cells: dict[str, CellOverrides] = field(
        default_factory=dict
    )  # by id, label or pattern (`mlp * bf16 *`); the last one wins


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one cell: `min_effect` is a fraction of throughput."""

    min_effect: float
    accuracy_margin: float
    bits: Policy
    inconclusive: Policy
    missing: Policy


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The file as it was read, and its place for those who are told of it."""

    file: GateFile
    source: str

    def limits(self, cell: Cell) -> Limits:
        """Raises BadInput for a share that is none."""
        found: dict[str, Any] = {name: getattr(self.file, name) for name in _names(Limits)}
        for pattern, some in self.file.cells.items():
            if pattern == cell.id or fnmatchcase(cell.label, pattern):
                given = {name: getattr(some, name) for name in _names(CellOverrides)}
                found |= {name: value for name, value in given.items() if value is not None}
        return Limits(
            **found
            | {
                "min_effect": parse_percentage(
                    str(found["min_effect"]), f"{self.source}: min_effect"
                )
            }
        )


def read_gate(path: Path | None) -> Gate:
    """The gate that a file describes, or the one of defaults; raises BadInput."""
    if path is None:
        return Gate(file=GateFile(), source="defaults")
    document = read_document(path)
    file: GateFile = document.validate(GateFile, document.content)
    for key, value in [
        ((), file.min_effect),
        *((("cells", name), some.min_effect) for name, some in file.cells.items()),
    ]:
        if value is not None:
            try:
                parse_percentage(str(value), "")
            except BadInput as error:
                raise document.error((*key, "min_effect"), str(error).removeprefix(": ")) from None
    return Gate(file=file, source=str(path))


def unused_patterns(gate: Gate, cells: Sequence[Cell]) -> list[str]:
    """The patterns that name none of the cells."""
    return [
        pattern
        for pattern in gate.file.cells
        if not any(pattern == cell.id or fnmatchcase(cell.label, pattern) for cell in cells)
    ]


def _names(kind: Any) -> list[str]:
    return [one.name for one in fields(kind)]
