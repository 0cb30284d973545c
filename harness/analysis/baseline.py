"""Baselines, with which later runs are compared: one small file for each cell.

They are under `results/baselines/<hardware>/<id>.json` and meant to be committed. The id is that of
the cell's settings: later runs have other code, which is what a baseline is for. A baseline holds the
rows of the cell's trials, and no steps, so that it stays small and reads well in a diff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.analysis.result import CellResult, Session
from harness.core.errors import BadInput, FileUnavailable
from harness.core.paths import Results, write_atomically
from harness.records.format import FileFormat, decode_file, sealed_text

MOST_SESSIONS = 20  # of a baseline; older ones are dropped
SCHEMA = 6
BASELINE_FORMAT = FileFormat(
    name="baseline",
    schema=SCHEMA,
    remedy="harness baseline writes it again",
    is_sealed=True,
)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a baseline's file holds."""

    schema: int = SCHEMA
    label: str  # of the cell, for people
    result: CellResult


def save(results: Results, cells: Sequence[CellResult]) -> dict[Path, CellResult]:
    """Write the baselines of cells, and return what each file holds.

    A file keeps the sessions that it has: later results are compared with the spread between them.
    Raises BadInput, before anything is written, for a cell that nothing could be compared with.
    """
    cell_of_path = {_path(results, cell): cell for cell in cells}
    saved = {}
    for path, cell in cell_of_path.items():
        saved[path] = replace(cell, sessions=_sessions(path, cell))
        write_atomically(path, dump(saved[path]))
    return saved


def _sessions(path: Path, cell: CellResult) -> list[Session]:
    """Return the sessions of a cell's baseline: this one after those in the file.

    Sessions of another workload's code, or of other packages and settings, are no measurements of
    the same, and are left out.
    """
    ended = max(trial.ended for trial in cell.measured_trials)
    session = Session(ended=ended, throughput=cell.mean_throughput)
    if not path.exists():
        return [session]
    try:
        previous = read(path)
    except FileUnavailable:
        raise
    except BadInput:
        return [session]  # a damaged file is replaced
    has_other_code = previous.cell.id != cell.cell.id
    if has_other_code or previous.shared != cell.shared:
        return [session]
    earlier = [other for other in previous.sessions if other.ended != ended]
    return [*earlier, session][-MOST_SESSIONS:]


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
        listed = " and ".join(values)
        raise BadInput(f"{label}: found trials of {name} {listed}; allowed: one")
    return results.baselines / cell.hardware[0] / f"{cell.cell.settings_id}.json"


def dump(cell: CellResult) -> str:
    """Return the content of a baseline file.

    It is the same for the same trials, and holds no path of this machine: of the data only what the
    cell's identity says of it, and neither evaluations nor names of nodes.
    """
    workload = cell.cell.workload
    settings = {}
    for name, value in workload.options.items():
        settings[f"options.{name}"] = value
    settings |= workload.identity["settings"]
    portable_workload = replace(workload, settings=settings, file_states={})
    trials = []
    for trial in cell.trials:
        trials.append(replace(trial, improvements=(), hosts=()))
    portable_cell = replace(cell.cell, workload=portable_workload)
    portable = replace(cell, cell=portable_cell, trials=trials)
    content = Baseline(label=cell.cell.label, result=portable)
    return sealed_text(asdict(content))


def read(path: Path) -> CellResult:
    """Return the result in a baseline file.

    Raises BadInput for a file that is no baseline, is incomplete or changed, or has another schema.
    """
    return decode_file(Baseline, path, BASELINE_FORMAT).result


def files(results: Results) -> list[Path]:
    """Return the paths of all baselines, sorted."""
    return sorted(results.baselines.glob("*/*.json"))
