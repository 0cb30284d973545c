"""Baselines, with which later runs are compared: one small file for each cell.

They are under `results/baselines/<hardware>/<id>.json` and meant to be committed. The id is that of
the cell's settings: later runs have other code, which is what a baseline is for. A baseline holds the
rows of the cell's trials, and no steps, so that it stays small and reads well in a diff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from harness.analysis.result import SHARED_FIELDS, CellResult, Session
from harness.core.errors import BadInput, FileUnavailable
from harness.core.paths import Results, write_atomically
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text

MOST_SESSIONS = 20  # of a baseline; older ones are dropped
KIND: Literal["harness baseline"] = "harness baseline"  # says what the file is
SCHEMA = 5
BASELINE_FORMAT = FileFormat(
    name="baseline",
    schema=SCHEMA,
    remedy="harness baseline writes it again",
    is_sealed=True,
)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a baseline's file holds."""

    kind: Literal["harness baseline"] = KIND
    schema: int = SCHEMA
    label: str  # of the cell, for people
    result: CellResult


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A baseline file that was written."""

    path: Path  # of the file
    result: CellResult  # what it holds
    replaced: bool  # whether it had another content before


def save(results: Results, cells: Sequence[CellResult]) -> list[Saved]:
    """Write the baselines of cells; a file that says the same already is left alone.

    A file keeps the sessions that it has: later results are compared with the spread between them.
    Raises BadInput, before anything is written, for a cell that nothing could be compared with.
    """
    # All paths before the first file: a cell that is refused leaves nothing half-written.
    paths = [_path(results, cell) for cell in cells]
    saved = []
    for path, measured in zip(paths, cells, strict=True):
        cell = replace(measured, sessions=_sessions(path, measured))
        content = dump(cell).encode()
        previous = path.read_bytes() if path.exists() else None
        is_changed = content != previous
        if is_changed:
            write_atomically(path, content)
        replaced = is_changed and previous is not None
        saved.append(Saved(path=path, result=cell, replaced=replaced))
    return saved


def _sessions(path: Path, cell: CellResult) -> list[Session]:
    """Return the sessions of a cell's baseline: this one after those in the file.

    Sessions of another workload's code, or of other packages and settings, are no measurements of
    the same, and are left out.
    """
    ended = max(trial.ended for trial in cell.measured_trials)
    session = Session(ended=ended, throughput=cell.mean_throughput)
    earlier: Sequence[Session] = []
    if path.exists():
        try:
            previous = read(path)
        except FileUnavailable:
            raise
        except BadInput:
            return [session]  # a damaged file is replaced
        if previous.cell.id == cell.cell.id and _shared(previous) == _shared(cell):
            earlier = previous.sessions
    kept = [other for other in earlier if other.ended != ended]
    return [*kept, session][-MOST_SESSIONS:]


def _shared(cell: CellResult) -> dict[str, list[str]]:
    """Return the fields of the environment that all trials of a cell share."""
    shared = {}
    for name, values in cell.environment.items():
        if name.startswith(SHARED_FIELDS):
            shared[name] = sorted(values)
    return shared


def _path(results: Results, cell: CellResult) -> Path:
    """Return the file of a cell's baseline.

    Raises BadInput for a cell without a measurement, or with trials under several conditions.
    """
    label = cell.cell.label
    if not cell.measured_trials:
        reasons = cell.describe_left_out() or "none done"
        raise BadInput(
            f"{label}: found no trial with a measured throughput ({reasons}); allowed: at least one"
        )
    for name, values in cell.mixed.items():
        raise BadInput(f"{label}: found trials of {name} {' and '.join(values)}; allowed: one")
    return results.baselines / cell.hardware[0] / f"{cell.cell.settings_id}.json"


def dump(cell: CellResult) -> str:
    """Return the content of a baseline file.

    It is the same for the same trials, and holds no path of this machine: of the data only what the
    cell's identity says of it, and neither evaluations nor names of nodes.
    """
    identity_data = cell.cell.workload.identity.get("data") or {}
    workload = replace(cell.cell.workload, data=identity_data, file_states={})
    trials = [replace(trial, improvements=(), hosts=()) for trial in cell.trials]
    portable = replace(cell, cell=replace(cell.cell, workload=workload), trials=trials)
    return sealed_text(asdict(Baseline(label=cell.cell.label, result=portable)))


def read(path: Path) -> CellResult:
    """Return the result in a baseline file.

    Raises BadInput for a file that is no baseline, is incomplete or changed, or has another schema.
    """
    return decode_file(Baseline, path, BASELINE_FORMAT).result


def files(results: Results, hardware: str | None = None) -> list[Path]:
    """Return the paths of all baselines, or of those of one kind of hardware."""
    paths = sorted(results.baselines.glob("*/*.json"))
    return [path for path in paths if hardware in (None, path.parent.name)]
