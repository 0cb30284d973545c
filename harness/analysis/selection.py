"""From a name on the command line to the results that it stands for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.analysis import baseline
from harness.analysis.compare import Side, hardware_of
from harness.analysis.result import CellResult, aggregate, join
from harness.core.errors import BadInput, did_you_mean, one_line
from harness.core.paths import Results
from harness.launch.sweep import read_recorded_spec, read_recorded_sweep, recorded_sweep_names
from harness.records.record import Record, read_record
from harness.records.restore import restore
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep

BASELINE = "baseline"
FORMS = (
    "a sweep that has run, SWEEP/CELL, a cell's id or label, a trial's id, baseline, baseline:HARDWARE,"
    " the id of an MLflow run, mlflow:RUN_ID, or a path of records or baselines"
)
RUN = re.compile(r"mlflow:(?P<marked>.+)|(?P<bare>[0-9a-f]{32})")
Recall = Callable[
    [str], Sequence[Record]
]  # the records that an MLflow run was made from, by its id


def select(results: Results, names: Sequence[str], recall: Recall | None = None) -> list[Side]:
    """What every name stands for. `baseline` alone means that of the hardware of the others; without `recall` no name
    is that of an MLflow run. Raises BadInput."""
    found = {
        name: Side(name=name, cells=_cells(results, name, recall))
        for name in names
        if name != BASELINE
    }
    if BASELINE in names:
        found[BASELINE] = Side(
            name=BASELINE, cells=_baselines(results, sorted(hardware_of(found.values())))
        )
    return [found[name] for name in names]


def _cells(results: Results, name: str, recall: Recall | None) -> list[CellResult]:
    if name.startswith(f"{BASELINE}:"):
        return _baselines(results, [name.partition(":")[2]])
    if results.sweep_folder(name).spec_path.exists():
        return _of_sweep(*read_recorded_sweep(results, name), name)
    if Path(name).exists():
        return _from_path(Path(name))
    if recall and (run := RUN.fullmatch(name)):
        return _condensed(recall(run["marked"] or run["bare"]), name)
    sweep, slash, cell = name.rpartition("/")
    within = sorted(results.runs.glob("*/sweep.json"))
    if slash:
        within = [spec for spec in within if spec == results.sweep_folder(sweep).spec_path]
    return _condensed(_of_cell(results, within, cell, name), name)


def _of_sweep(sweep: Sweep, records: Sequence[Record], name: str) -> list[CellResult]:
    """With a count of the trials that have no record, so that what never ran is not forgotten."""
    lacking = Counter(trial.cell.id for trial in sweep.trials()) - Counter(
        one.trial.cell.id for one in records
    )
    absent = [
        CellResult(
            cell=cell,
            target=None,
            conditions={},
            trials=[],
            left_out={"unrecorded": lacking[cell.id]},
        )
        for cell in sweep.cells
        if lacking[cell.id]
    ]
    return join([*_condensed(records, name), *absent])


def _of_cell(results: Results, specs: Sequence[Path], name: str, given: str) -> list[Record]:
    """The records of a cell or trial of one of these sweeps; raises BadInput if it is in none or in several."""
    planned = {spec.parent: _planned(spec) for spec in specs}
    found = {
        folder: [
            cell
            for cell in cells
            if name in (cell.id, cell.label) or name.startswith(f"{cell.id}-s")
        ]
        for folder, cells in planned.items()
    }
    holders = {folder: cells for folder, cells in found.items() if cells}
    if not holders:
        known = {folder.name for folder in planned} | {
            cell.id for cells in planned.values() for cell in cells
        }
        raise BadInput(
            f"{given}: nothing of that name in {results.runs}; {_hint(name, known)}; allowed: {FORMS}"
        )
    if len(holders) > 1:
        choices = " or ".join(f"{folder.name}/{name}" for folder in holders)
        raise BadInput(
            f"{given}: found in the sweeps {', '.join(f.name for f in holders)}; allowed: {choices}"
        )
    ((folder, cells),) = holders.items()
    records = [
        read_record(path)
        for cell in cells
        for path in sorted(folder.glob(f"{cell.id}-s*/record.json"))
    ]
    return [
        one for one in records if name in (one.trial.id, one.trial.cell.id, one.trial.cell.label)
    ]


def planned_cell(results: Results, name: str) -> tuple[Sweep, Cell]:
    """A cell by its id or label, with the one sweep here that holds it; raises BadInput."""
    sweeps = [read_recorded_spec(results, known) for known in recorded_sweep_names(results)]
    found = [
        (sweep, cell) for sweep in sweeps for cell in sweep.cells if name in (cell.id, cell.label)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        holders = ", ".join(str(sweep.source) for sweep, _ in found)
        raise BadInput(
            f"--cell {name}: found in several sweeps; allowed: with one of them as SWEEP: {holders}"
        )
    hint = did_you_mean(name, {cell.id for sweep in sweeps for cell in sweep.cells})
    raise BadInput(f"--cell {name}: no such cell in {results.runs}; {hint}, or SWEEP to look in")


def _planned(spec: Path) -> list[Cell]:
    """The cells of a sweep that has run, without reading its records."""
    try:
        return [
            restore(Cell, cell) for cell in json.loads(spec.read_text(encoding="utf-8"))["cells"]
        ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{spec}: can't be read as a sweep: {one_line(error)}") from None


def _hint(name: str, known: set[str]) -> str:
    """The nearest of the names there."""
    return (
        did_you_mean(name, known).partition("allowed: ")[0].removesuffix(" ")
        or f"found {len(known)} others"
    )


def _from_path(path: Path) -> list[CellResult]:
    """A record or a baseline, a trial's or a sweep's folder, or a folder of baselines."""
    if path.is_file():
        return _from_files([path])
    paths = [*path.glob("record.json"), *path.glob("*/record.json")] or sorted(path.glob("*.json"))
    if not paths:
        raise BadInput(f"{path}: found neither records nor baselines; allowed: {FORMS}")
    return _from_files(sorted(paths))


def _from_files(paths: Sequence[Path]) -> list[CellResult]:
    records, saved = [], []
    for path in paths:
        if _is_baseline(path):
            saved.append(baseline.read(path))
        else:
            records.append(read_record(path))
    if records and saved:
        raise BadInput(f"{paths[0].parent}: found records beside baselines; allowed: one of them")
    return saved or _condensed(records, str(paths[0]))


def _is_baseline(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path}: can't be read as a record or a baseline: {one_line(error)}"
        ) from None
    return isinstance(content, dict) and content.get("kind") == baseline.KIND


def _condensed(records: Sequence[Record], name: str) -> list[CellResult]:
    if not records:
        raise BadInput(f"{name}: found no records of it; allowed: what has run")
    return aggregate(records)


def _baselines(results: Results, hardware: Sequence[str]) -> list[CellResult]:
    """Of the first kind of hardware that has any; raises BadInput if there is none, or one that can't be used."""
    for kind in hardware:
        if paths := baseline.files(results, kind):
            return [baseline.read(path) for path in paths]
    known = ", ".join(sorted({path.parent.name for path in baseline.files(results)})) or "nothing"
    raise BadInput(
        f"{results.baselines}: found no baseline of {' or '.join(hardware) or 'any hardware'}; allowed: {known};"
        " harness baseline save SWEEP makes one"
    )
