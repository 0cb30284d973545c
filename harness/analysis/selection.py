"""From a name on the command line to the results that it stands for.

`harness compare`, `harness baseline` and `harness report --against` take names in any of `FORMS`.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import baseline
from harness.analysis.compare import Side
from harness.analysis.result import CellResult, aggregate
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput, did_you_mean
from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.records.files import read_record
from harness.records.numbers import best_name
from harness.records.record import Record
from harness.records.store import RecordedSweep, read_recorded_sweep, recorded_sweep_names
from harness.sweep.selected import select_trials

BASELINE = "baseline"
RECORD = "record.json"  # the name of a record's file; any other file is a baseline's
FORMS = (
    "a sweep that has run, the id of a cell or a trial, baseline, or a path of records or baselines"
)


def select(
    results: Results,
    names: Sequence[str],
    loaded: Sequence[Side] = (),
) -> list[Side]:
    """Return the results that each name stands for, as `FORMS` lists them.

    `baseline` depends on the other names, and on the sides that were `loaded` before. Raises BadInput for
    an unknown or ambiguous name.
    """
    sides = {}
    for name in names:
        if name != BASELINE:
            cells = find(results, name).cells
            sides[name] = Side(name=name, cells=cells)
    if BASELINE in names:
        others: list[CellResult] = []
        for side in (*sides.values(), *loaded):
            others += side.cells
        baselines = _baselines_of(results, others)
        sides[BASELINE] = Side(name=BASELINE, cells=baselines)
    return list(map(sides.__getitem__, names))


def _baselines_of(results: Results, others: Sequence[CellResult]) -> list[CellResult]:
    """Return the baselines that other results are compared with, one of each cell.

    They are those of the hardware of the others, and of these those of their cells and sweeps, or all if
    there are none: a cell that a sweep has lost since must count as missing. Of several baselines of a
    cell it is the one of the hardware that the cell ran on. Raises BadInput where there are none.
    """
    hardware: set[str] = set()  # that of trials that all failed is unknown
    for result in others:
        hardware.update(result.hardware)
    paths = baseline.files(results)
    baselines = []
    for path in paths:
        if not hardware or path.parent.name in hardware:
            baselines.append(baseline.read(path))
    if not baselines:
        kinds = {path.parent.name for path in paths}
        allowed = ", ".join(sorted(kinds)) or "nothing"
        wanted = " or ".join(sorted(hardware)) or "any hardware"
        raise BadInput(
            f"{results.baselines}: found no baseline of {wanted};"
            f" allowed: {allowed}; harness baseline SWEEP makes one"
        )
    return _related(baselines, others) or baselines


def _related(baselines: Sequence[CellResult], others: Sequence[CellResult]) -> list[CellResult]:
    """Return the baselines of the cells and sweeps of other results, one of each cell."""
    ran_on: dict[str, set[str]] = {}  # by the id of the cell's settings
    sweeps: set[str] = set()
    for result in others:
        hardware = ran_on.setdefault(result.cell.settings_id, set())
        hardware.update(result.hardware)
        sweeps.update(trial.sweep for trial in result.trials)
    related: dict[str, CellResult] = {}
    for result in baselines:
        settings_id = result.cell.settings_id
        is_of_sweep = any(trial.sweep in sweeps for trial in result.trials)
        if settings_id in ran_on or is_of_sweep:
            related.setdefault(settings_id, result)
        hardware = ran_on.get(settings_id, set())
        if not hardware.isdisjoint(result.hardware):
            related[settings_id] = result
    return list(related.values())


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a name on the command line stands for: records, or baselines, which hold results alone."""

    # Trials that a sweep has planned and that have no record are counted, so that what never ran is not
    # forgotten.
    cells: Sequence[CellResult]
    records: Sequence[Record] = ()
    folder: Path | None = None  # of the records' sweep


def find(results: Results, name: str) -> Named:
    """Return what one name stands for, trying the forms in turn; raises BadInput for an unknown name.

    A sweep comes before a path, so that a folder that happens to have its name does not hide it.
    """
    recorded = _read_sweep(results, name)
    if recorded is None:
        if os.path.exists(name):  # noqa: PTH110  # False where `Path` raises: for a name that is too long
            return _at_path(Path(name))
        return _records_of_cell(results, name)
    if not recorded.records:
        raise BadInput(f"{name}: found no records of it; allowed: what has run")
    cells = SweepResult.of_records(recorded.sweep, recorded.records).cells
    folder = results.sweep_folder(name).path
    return Named(cells=cells, records=recorded.records, folder=folder)


def recorded_results(results: Results, sweep_name: str) -> list[CellResult]:
    """Return the cells of a sweep with what their trials have recorded; nothing if it never ran.

    Raises BadInput for a record that can't be read.
    """
    recorded = _read_sweep(results, sweep_name)
    return [] if recorded is None else aggregate(recorded.records)


def _read_sweep(results: Results, name: str) -> RecordedSweep | None:
    """Read a sweep whole, as a judgment is of all trials or of none; None if it never ran."""
    if not results.sweep_folder(name).spec_path.exists():
        return None
    recorded = read_recorded_sweep(results, name)
    if recorded.unreadable:
        raise BadInput(recorded.unreadable[0])
    return recorded


def _records_of_cell(results: Results, name: str) -> Named:
    """Return the records of the cell or of the trial with this id.

    Raises BadInput if none of the sweeps that have run has it, or several have.
    """
    by_sweep: dict[Path, list[Path]] = {}
    of_trial = f"*/{glob.escape(name)}"
    of_cell = f"{of_trial}-s*-r*"
    folders = [*results.runs.glob(of_trial), *results.runs.glob(of_cell)]
    for folder in sorted(folders):
        path = TrialFolder.newest(folder).record_path
        if path.exists():
            by_sweep.setdefault(folder.parent, []).append(path)
    if not by_sweep:
        sweep_names = recorded_sweep_names(results)
        suggestion, _, _ = did_you_mean(name, sweep_names).partition("allowed: ")
        raise BadInput(
            f"{name}: nothing of that name in {results.runs}; {suggestion}allowed: {FORMS}"
        )
    if len(by_sweep) > 1:
        sweeps = ", ".join(folder.name for folder in by_sweep)
        raise BadInput(f"{name}: found in the sweeps {sweeps}; allowed: a path in one")
    ((folder, paths),) = by_sweep.items()
    return _read_records(paths, folder)


def _read_records(paths: Sequence[Path], sweep_folder: Path) -> Named:
    """Return the records at these paths."""
    records = list(map(read_record, paths))
    return Named(cells=aggregate(records), records=records, folder=sweep_folder)


def find_trial(
    results: Results,
    name: str,
    only: Sequence[str] = (),
    *,
    best: bool = False,
) -> tuple[Record, Path]:
    """Return the one trial that a name stands for, and its folder.

    `only` limits the trials, as `--only` does. Of several, `best` is the one with the best target
    metric. Raises BadInput for none, for several otherwise, and for one that was not done.
    """
    named = find(results, name)
    records = list(named.records)
    if only:
        trials = [record.trial for record in records]
        chosen = {trial.id for trial in select_trials(trials, only)}
        records = [record for record in records if record.trial.id in chosen]
    if best and records:
        records = [best_record(records, name)]
    if len(records) != 1:
        ids = ", ".join(record.trial.id for record in records[:3])
        raise BadInput(
            f"{name}: found {len(records)} trials;"
            f" allowed: one: --best, --only KEY=V, or its id ({ids}, …)"
        )
    (record,) = records
    if not record.is_complete:
        raise BadInput(f"{name}: found a trial that is {record.status}; allowed: done or invalid")
    assert named.folder is not None  # as there are records
    return record, named.folder / record.trial.id


def best_record(records: Sequence[Record], name: str) -> Record:
    """Return the record of the trial with the best target metric, by its best evaluation.

    Raises BadInput if no trial was done, and for trials of several workloads, whose metrics don't
    compare. `name` is what the trials were asked for by.
    """
    labels = [record.trial.cell.workload.label for record in records]
    workloads = list(dict.fromkeys(labels))
    if len(workloads) > 1:
        listed = ", ".join(workloads)
        raise BadInput(
            f"--best: {name} has the workloads {listed}, whose metrics don't compare;"
            f" needed: --only workload={workloads[0]}, or another"
        )
    best, best_score = None, -math.inf
    for record in records:
        if record.status != "done" or record.rank0 is None:
            continue
        target = record.rank0.target
        metric = record.numbers.get(best_name(target.name))
        if metric is None:
            continue
        score = target.score(metric)
        if score > best_score:
            best, best_score = record, score
    if best is None:
        raise BadInput(f"--best: {name} has no trial that is done and has a metric; needed: one")
    return best


def _at_path(path: Path) -> Named:
    """Return what is in a file or folder.

    The path is that of a record or a baseline, of the folder of a trial or of a sweep, or of a
    folder of baselines. Raises BadInput for a folder that holds none of these.
    """
    paths = _files_at(path)
    if not paths:
        raise BadInput(f"{path}: found neither records nor baselines; allowed: {FORMS}")
    if paths[0].name != RECORD:
        return Named(cells=list(map(baseline.read, paths)))
    trial_folder = TrialFolder.of_attempt(paths[0].absolute().parent)
    return _read_records(paths, trial_folder.path.parent)


def _files_at(path: Path) -> list[Path]:
    """Return the paths of the records or baselines at a path; of none, an empty list."""
    if path.is_file():
        return [path]
    newest = TrialFolder.newest(path).record_path
    if newest.exists():
        return [newest]
    return SweepFolder(path).record_paths() or sorted(path.glob("*.json"))
