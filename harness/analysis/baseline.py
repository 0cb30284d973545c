"""Baselines: what later runs are held against, one small file a cell under `results/baselines/<hardware>/`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.analysis.result import UNKNOWN, CellResult
from harness.core.errors import BadInput, did_you_mean, one_line
from harness.core.paths import Results, write_atomically
from harness.records.restore import restore

KIND = "harness baseline"
SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A baseline file that was written; `replaced` if it had another content before."""

    path: Path
    result: CellResult
    replaced: bool


def save(results: Results, cells: Sequence[CellResult]) -> list[Saved]:
    """Write the baselines of cells, all or none; raises BadInput for one that nothing could be held against."""
    placed = {_place(results, cell): cell for cell in cells}
    saved = []
    for path, cell in placed.items():
        content = dump(cell)
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if content != before:
            write_atomically(path, content)
        saved.append(
            Saved(path=path, result=cell, replaced=before is not None and content != before)
        )
    return saved


def _place(results: Results, cell: CellResult) -> Path:
    label, hardware = cell.cell.label, cell.conditions.get("hardware", [])
    if not any(trial.throughput for trial in cell.trials):
        left_out = (
            ", ".join(f"{count} {status}" for status, count in cell.left_out.items()) or "none done"
        )
        raise BadInput(
            f"{label}: found no trial with a measured throughput ({left_out}); allowed: at least one"
        )
    if list(hardware) == [UNKNOWN] or len(hardware) != 1:
        raise BadInput(
            f"{label}: found trials of {' and '.join(hardware)}; allowed: one known hardware"
        )
    if len(cell.conditions["code"]) > 1:
        raise BadInput(
            f"{label}: found trials of code {' and '.join(cell.conditions['code'])}; allowed: one"
        )
    return results.baselines / hardware[0] / f"{cell.cell.id}.json"


def dump(cell: CellResult) -> str:
    """The file's content: the same for the same trials, rows of numbers on one line, no path of this machine."""
    choice = replace(cell.cell.workload, data=cell.cell.workload.identity.get("data") or {})
    content = {"kind": KIND, "schema": SCHEMA, "id": cell.cell.id, "label": cell.cell.label}
    content |= asdict(replace(cell, cell=replace(cell.cell, workload=choice)))
    text = json.dumps(content, indent=1, allow_nan=False, default=str)
    return re.sub(r"\[[-\d.e+,\s]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def read(path: Path) -> CellResult:
    """Raises BadInput for what is no baseline, not whole, of another schema or of another meaning of cells."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: can't be read as a baseline: {one_line(error)}") from None
    return parse(content, path)


def parse(content: Any, path: Path) -> CellResult:
    """The baseline in JSON that was read from `path`; raises BadInput."""
    if not isinstance(content, dict) or content.pop("kind", None) != KIND:
        raise BadInput(
            f"{path}: kind: found no {KIND!r}; allowed: what harness baseline save writes"
        )
    if (found := content.pop("schema", None)) != SCHEMA:
        raise BadInput(
            f"{path}: schema: found {found!r}; {did_you_mean(found, [str(SCHEMA)])}; save it anew"
        )
    named = content.pop("id", None)
    content.pop("label", None)
    try:
        result = restore(CellResult, content)
        for one in result.trials:
            if one.throughput is not None and not 0 < one.throughput < math.inf:
                raise ValueError(f"throughput: found {one.throughput}")
            if one.metric is not None and not math.isfinite(one.metric):
                raise ValueError(f"metric: found {one.metric}")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise BadInput(f"{path}: no whole baseline: {one_line(error)}") from None
    if result.cell.id != named:
        raise BadInput(
            f"{path}: id: found {named!r}; allowed: {result.cell.id}, its cell's own; save it anew"
        )
    return result


def files(results: Results, hardware: str | None = None) -> list[Path]:
    """All baselines, or those of one kind of hardware."""
    return sorted(results.baselines.glob(f"{hardware or '*'}/*.json"))


def prune(results: Results, keep: set[str], *, dry_run: bool = False) -> list[Path]:
    """Remove the baselines whose cells are not among the ids to keep, and those that can't be read any more."""
    gone = [path for path in files(results) if path.stem not in keep or not _readable(path)]
    for path in gone if not dry_run else ():
        path.unlink()
    return gone


def _readable(path: Path) -> bool:
    try:
        return read(path).cell.id == path.stem
    except BadInput:
        return False
