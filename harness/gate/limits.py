"""Reads the limits of a gate from `gate.yaml`, a small file that is committed with the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from harness.core.errors import BadInput, parse_percentage
from harness.sweep.cell import Cell
from harness.sweep.document import Document, read_document
from workloads.settings import Between

GATE_FILE_NAME = "gate.yaml"
Policy = Literal["ignore", "warn", "fail"]
Margin = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True)
class CellOverrides:
    """The keys for cells that match a pattern; None keeps the value for all cells."""

    min_effect: float | str | None = None
    accuracy_margin: Margin | None = None
    bits: Policy | None = None
    inconclusive: Policy | None = None


@dataclass(frozen=True, kw_only=True)
class GateFile:
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
    # Conditions that may differ, as in --across.
    across: list[str] = field(default_factory=list)
    # Exceptions by a cell's id, label or a pattern of labels (`mlp * bf16 *`); the last one wins.
    cells: dict[str, CellOverrides] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the gate for one cell."""

    min_effect: float  # of throughput, a fraction
    accuracy_margin: float  # in the unit of the target metric
    bits: Policy
    inconclusive: Policy
    missing: Policy


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The content of a gate file."""

    file: GateFile
    source: str  # the file's path, or `defaults`, for messages

    def limits(self, cell: Cell) -> Limits:
        """Return the limits of a cell; raises BadInput for a `min_effect` that is no percentage."""
        values: dict[str, Any] = {}
        for limit in fields(Limits):
            values[limit.name] = getattr(self.file, limit.name)
        for pattern, overrides in self.file.cells.items():
            if not _matches(pattern, cell):
                continue
            for name, value in vars(overrides).items():
                if value is not None:
                    values[name] = value
        min_effect = str(values["min_effect"])
        values["min_effect"] = parse_percentage(min_effect, f"{self.source}: min_effect")
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


def _check_min_effect(
    document: Document,
    keys: tuple[str, ...],
    value: float | str | None,
) -> None:
    """Raise BadInput, which names file, line and key, for a `min_effect` that is no percentage."""
    if value is None:
        return
    try:
        parse_percentage(str(value), "")
    except BadInput as error:
        message = str(error).removeprefix(": ")
        raise document.error((*keys, "min_effect"), message) from None


def unused_patterns(gate: Gate, cells: Sequence[Cell]) -> list[str]:
    """Return the patterns that match none of the cells, which are probably misspelled."""
    unused = []
    for pattern in gate.file.cells:
        if not any(_matches(pattern, cell) for cell in cells):
            unused.append(pattern)
    return unused


def _matches(pattern: str, cell: Cell) -> bool:
    """Return whether a pattern is the id of a cell, the id of its settings, or matches its label.

    The id of the settings stays the same when code changes.
    """
    # A label may hold characters of patterns, as in `hidden=[16]`, and then does not match itself.
    names = (cell.id, cell.settings_id, cell.label)
    return pattern in names or fnmatchcase(cell.label, pattern)
