"""Reads what a gate lets through: `gate.yaml`, a small file beside the baselines and committed with
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from harness.core.errors import BadInput, parse_percentage
from harness.spec.cell import Cell
from harness.spec.document import Document, read_document
from workloads.options import Between, Strict

GATE_FILE_NAME = "gate.yaml"
Policy = Literal["ignore", "warn", "fail"]
Margin = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True)
class CellOverrides(Strict):
    """What the file may set for the cells that match a pattern; None leaves what holds for all."""

    min_effect: float | str | None = None
    accuracy_margin: Margin | None = None
    bits: Policy | None = None
    inconclusive: Policy | None = None


@dataclass(frozen=True, kw_only=True)
class GateFile(Strict):
    """The keys of the file and their defaults."""

    # The smallest change of throughput that matters, as a percentage.
    min_effect: float | str = "1%"
    # The smallest change of the target metric that matters, in the metric's unit.
    accuracy_margin: Margin = 0.01
    # Final parameters that differ from the baseline's.
    bits: Policy = "ignore"
    # Cells whose verdict is inconclusive.
    inconclusive: Policy = "warn"
    # Cells that the run or the baseline lacks.
    missing: Policy = "fail"
    # Conditions that may differ, as --across takes them.
    across: list[str] = field(default_factory=list)
    # Exceptions by a cell's id, label or a pattern of labels (`mlp * bf16 *`); the last one wins.
    cells: dict[str, CellOverrides] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the gate lets through of one cell."""

    min_effect: float  # of throughput, a fraction
    accuracy_margin: float  # in the unit of the target metric
    bits: Policy
    inconclusive: Policy
    missing: Policy


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A gate file that was read."""

    file: GateFile
    source: str  # the file's path, or `defaults`, for messages

    def limits(self, cell: Cell) -> Limits:
        """Return the limits of a cell; raises BadInput for a `min_effect` that is no percentage."""
        values: dict[str, Any] = _values(self.file, _names(Limits))
        for pattern, overrides in self.file.cells.items():
            if _matches(pattern, cell):
                for name, value in _values(overrides, _names(CellOverrides)).items():
                    if value is not None:
                        values[name] = value
        context = f"{self.source}: min_effect"
        values["min_effect"] = parse_percentage(str(values["min_effect"]), context)
        return Limits(**values)


def read_gate(path: Path | None) -> Gate:
    """Return the gate that a file describes, or the default one without a file.

    Raises BadInput, which names file, line and key, for a key that does not exist or a value that
    is not allowed.
    """
    if path is None:
        return Gate(file=GateFile(), source="defaults")
    document = read_document(path)
    file: GateFile = document.validate(GateFile, document.content)
    _check_min_effect(document, (), file.min_effect)
    for pattern, overrides in file.cells.items():
        _check_min_effect(document, ("cells", pattern), overrides.min_effect)
    return Gate(file=file, source=str(path))


def _check_min_effect(document: Document, keys: tuple[str, ...], value: float | str | None) -> None:
    """Raise BadInput, which names file, line and key, for a `min_effect` that is no percentage."""
    if value is None:
        return
    try:
        parse_percentage(str(value), "")
    except BadInput as error:
        message = str(error).removeprefix(": ")
        raise document.error((*keys, "min_effect"), message) from None


def unused_patterns(gate: Gate, cells: Sequence[Cell]) -> list[str]:
    """Return the patterns that match none of the cells: most likely they are misspelled."""
    unused = []
    for pattern in gate.file.cells:
        if not any(_matches(pattern, cell) for cell in cells):
            unused.append(pattern)
    return unused


def _matches(pattern: str, cell: Cell) -> bool:
    """Whether a pattern is an id of a cell or matches its label.

    The file lives longer than any code, so that an id of settings is best.
    """
    return pattern in (cell.id, cell.settings_id) or fnmatchcase(cell.label, pattern)


def _names(kind: Any) -> list[str]:
    """Return the names of a dataclass's fields."""
    return [field.name for field in fields(kind)]


def _values(instance: object, names: Sequence[str]) -> dict[str, Any]:
    """Return an object's attributes of these names."""
    return {name: getattr(instance, name) for name in names}
