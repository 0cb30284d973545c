"""Baselines, with which later runs are compared: one small file for each cell.

They are under `results/baselines/<hardware>/<id>.json` and meant to be committed. The id is that of
the cell's settings: later runs have other code, which is what a baseline is for. A baseline holds a
`CellResult` as JSON: of every trial the throughput with its standard error, the target metric and
the digests, but no steps, so that it stays small and reads well in a diff.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.analysis.result import SHARED_FIELDS, UNKNOWN, CellResult, Session
from harness.core.errors import BadFile, BadInput, FileUnavailable
from harness.core.paths import Results, write_atomically
from harness.core.validation import decode_value
from harness.records.decode import FileFormat, parse_content, parse_json, read_bytes
from harness.records.seal import object_text, with_seal

MOST_SESSIONS = 20  # of a baseline; older ones are dropped
KIND = "harness baseline"  # says what the file is
SCHEMA = 4
BASELINE_FORMAT = FileFormat(
    name="baseline",
    schema=SCHEMA,
    remedy="harness baseline writes it again",
    is_sealed=True,
)
NUMBER_LIST = re.compile(r"\[[-\d.e+,\s]+\]")  # a JSON list of nothing but numbers


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
    hardware = cell.hardware
    if not cell.measured_trials:
        reasons = cell.describe_left_out() or "none done"
        raise BadInput(
            f"{label}: found no trial with a measured throughput ({reasons}); allowed: at least one"
        )
    if list(hardware) == [UNKNOWN] or len(hardware) != 1:
        raise BadInput(
            f"{label}: found trials of {' and '.join(hardware)}; allowed: one known hardware"
        )
    for name, values in cell.mixed.items():
        raise BadInput(f"{label}: found trials of {name} {' and '.join(values)}; allowed: one")
    return results.baselines / hardware[0] / f"{cell.cell.settings_id}.json"


def dump(cell: CellResult) -> str:
    """Return the content of a baseline file.

    It is the same for the same trials, has lists of numbers on one line, so that it reads well in a
    diff, and holds no path of this machine: of the data only what the cell's identity says of it.
    """
    identity_data = cell.cell.workload.identity.get("data") or {}
    workload = replace(cell.cell.workload, data=identity_data, file_states={})
    trials = []
    for trial in cell.trials:
        # Of the evaluations there may be many, and the names of nodes belong to one cluster.
        kept = replace(trial, improvements=(), nodes=())
        trials.append(kept)
    portable = replace(cell, cell=replace(cell.cell, workload=workload), trials=trials)
    header = {
        "kind": KIND,
        "schema": SCHEMA,
        "id": cell.cell.settings_id,
        "label": cell.cell.label,
    }
    text = object_text({**header, **asdict(portable)})
    return with_seal(NUMBER_LIST.sub(lambda match: " ".join(match[0].split()), text))


def read(path: Path) -> CellResult:
    """Return the result in a baseline file.

    Raises BadInput for a file that is no baseline, is incomplete, has another schema, or was saved
    when cells had another meaning.
    """
    text = read_bytes(path, BASELINE_FORMAT)
    content = parse_json(text, path, BASELINE_FORMAT)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise BadFile(f"{path}: kind: found no {KIND!r}; allowed: what harness baseline writes")
    content = parse_content(text, path, BASELINE_FORMAT)
    cell_id = content.get("id")
    try:
        result: CellResult = decode_value(CellResult, content)
        for trial in result.trials:  # JSON lets NaN and infinity through, which no trial can have
            if trial.throughput is not None and not 0 < trial.throughput < math.inf:
                raise ValueError(f"throughput: found {trial.throughput}")
            if trial.metric is not None and not math.isfinite(trial.metric):
                raise ValueError(f"metric: found {trial.metric}")
    except ValueError as error:
        raise BASELINE_FORMAT.error(path, f"not a valid baseline: {error}") from None
    if result.cell.settings_id != cell_id:
        raise BadFile(
            f"{path}: id: found {cell_id!r}; allowed: {result.cell.settings_id}, its cell's own;"
            " save it again"
        )
    return result


def files(results: Results, hardware: str | None = None) -> list[Path]:
    """Return the paths of all baselines, or of those of one kind of hardware."""
    paths = sorted(results.baselines.glob("*/*.json"))
    return [path for path in paths if hardware in (None, path.parent.name)]
