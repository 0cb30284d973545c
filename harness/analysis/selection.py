"""From a name on the command line to the results that it stands for.

`harness compare`, `harness baseline` and `harness report --against` take names in any of `FORMS`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.analysis import baseline
from harness.analysis.compare import Side
from harness.analysis.result import CellResult, aggregate
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput, did_you_mean
from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.records.decode import FileFormat, decode_file
from harness.records.files import read_record
from harness.records.record import Record
from harness.records.store import RecordedSweep, read_recorded_sweep
from harness.sweep.selected import select_trials
from harness.sweep.sweep import Sweep

BASELINE = "baseline"
EITHER_FORMAT = FileFormat(name="record or a baseline")
FORMS = (
    "a sweep that has run, the id of a cell or a trial, baseline, or a path of records or baselines"
)


def select(results: Results, names: Sequence[str], loaded: Sequence[Side] = ()) -> list[Side]:
    """Return the results that each name stands for, as `FORMS` lists them.

    `baseline` depends on the other names, and on the sides that were `loaded` before. Raises BadInput for
    an unknown or ambiguous name.
    """
    sides = {}
    for name in names:
        if name != BASELINE:
            sides[name] = Side(name=name, cells=find(results, name).cells)
    if BASELINE in names:
        others = [result for side in (*sides.values(), *loaded) for result in side.cells]
        sides[BASELINE] = Side(name=BASELINE, cells=_baselines_of(results, others))
    return [sides[name] for name in names]


def _baselines_of(results: Results, others: Sequence[CellResult]) -> list[CellResult]:
    """Return the baselines that other results are compared with, one of each cell.

    They are those of the hardware of the others, and of these those of their cells and sweeps, or all if
    there are none: a cell that a sweep has lost since must count as missing. Of several baselines of a
    cell it is the one of the hardware that the cell ran on. Raises BadInput where there are none.
    """
    # That of trials that all failed is unknown.
    hardware = {key for result in others for key in result.hardware}
    paths = baseline.files(results)
    chosen = [path for path in paths if not hardware or path.parent.name in hardware]
    if not chosen:
        kinds = ", ".join(sorted({path.parent.name for path in paths}))
        raise BadInput(
            f"{results.baselines}: found no baseline of {' or '.join(sorted(hardware)) or 'any hardware'};"
            f" allowed: {kinds or 'nothing'}; harness baseline SWEEP makes one"
        )
    return _related(list(map(baseline.read, chosen)), others)


def _related(baselines: Sequence[CellResult], others: Sequence[CellResult]) -> list[CellResult]:
    """Return the baselines of the cells and sweeps of other results, one of each cell."""
    ran_on: dict[str, set[str]] = {}  # by the id of the cell's settings
    for result in others:
        ran_on.setdefault(result.cell.settings_id, set()).update(result.hardware)
    sweeps = {trial.sweep for result in others for trial in result.trials}
    related = []
    for result in baselines:
        is_of_sweep = any(trial.sweep in sweeps for trial in result.trials)
        if is_of_sweep or result.cell.settings_id in ran_on:
            related.append(result)
    by_cell: dict[str, CellResult] = {}
    for result in related or baselines:
        settings_id = result.cell.settings_id
        first = by_cell.setdefault(settings_id, result)
        same_hardware = ran_on.get(settings_id, set())
        if same_hardware.isdisjoint(first.hardware) and same_hardware & set(result.hardware):
            by_cell[settings_id] = result
    return list(by_cell.values())


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a name on the command line stands for: records, or baselines, which hold results alone."""

    records: Sequence[Record] = ()
    baselines: Sequence[CellResult] = ()
    sweep: Sweep | None = None  # the one that the name is of
    folder: Path | None = None  # of the records' sweep; None if they are in none
    # The folders of trials that a path names, by their ids; others are in `folder`.
    trial_folders: Mapping[str, Path] = field(default_factory=dict)

    @property
    def cells(self) -> list[CellResult]:
        """Return the results of each cell.

        Trials that a sweep has planned and that have no record are counted, so that what never ran
        is not forgotten.
        """
        if self.baselines:
            return list(self.baselines)
        if self.sweep is not None:
            return list(SweepResult.of_records(self.sweep, self.records).cells)
        return aggregate(self.records)


def find(results: Results, name: str) -> Named:
    """Return what one name stands for, trying the forms in turn; raises BadInput for an unknown name.

    A sweep comes before a path, so that a folder that happens to have its name does not hide it.
    """
    recorded = _read_sweep(results, name)
    if recorded is not None:
        folder = results.sweep_folder(name).path
        named = Named(records=recorded.records, sweep=recorded.sweep, folder=folder)
    elif os.path.exists(name):  # noqa: PTH110  # False where `Path` raises: for a name that is too long
        named = _at_path(Path(name))
    else:
        named = _records_of_cell(results, name)
    if not named.records and not named.baselines:
        raise BadInput(f"{name}: found no records of it; allowed: what has run")
    return named


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
    if "/" not in name:
        for pattern in (glob.escape(name), f"{glob.escape(name)}-s*-r*"):
            for folder in sorted(results.runs.glob(f"*/{pattern}")):
                path = TrialFolder.newest(folder).record_path
                if path.exists():
                    by_sweep.setdefault(folder.parent, []).append(path)
    if not by_sweep:
        sweeps = [path.parent.name for path in results.runs.glob("*/sweep.json")]
        suggestion = did_you_mean(name, sweeps).partition("allowed: ")[0]
        raise BadInput(
            f"{name}: nothing of that name in {results.runs}; {suggestion}allowed: {FORMS}"
        )
    if len(by_sweep) > 1:
        sweeps = [folder.name for folder in by_sweep]
        raise BadInput(f"{name}: found in the sweeps {', '.join(sweeps)}; allowed: a path in one")
    ((folder, paths),) = by_sweep.items()
    return Named(records=[read_record(path) for path in paths], folder=folder)


def find_trial(
    results: Results, name: str, only: Sequence[str] = (), *, best: bool = False
) -> tuple[Record, Path]:
    """Return the one trial that a name stands for, and its folder.

    `only` limits the trials, as `--only` does. Of several, `best` is the one with the best target
    metric. Raises BadInput for none, for several otherwise, and for one that was not done.
    """
    named = find(results, name)
    records = list(named.records)
    if only:
        chosen = {trial.id for trial in select_trials([r.trial for r in records], only)}
        records = [record for record in records if record.trial.id in chosen]
    if not records:
        raise BadInput(f"{name}: found none of its trials with {' and '.join(only)}; allowed: one")
    if best:
        records = [best_record(records, name)]
    if len(records) > 1:
        ids = ", ".join(record.trial.id for record in records[:3])
        raise BadInput(
            f"{name}: found {len(records)} trials;"
            f" allowed: one: --best, --only KEY=V, or its id ({ids}, …)"
        )
    (record,) = records
    if record.summary is None:
        raise BadInput(f"{name}: found a trial that is {record.status}; allowed: done or invalid")
    folder = named.folder or Path()
    return record, named.trial_folders.get(record.trial.id, folder / record.trial.id)


def best_record(records: Sequence[Record], name: str) -> Record:
    """Return the record of the trial with the best target metric, by its best evaluation.

    Raises BadInput if no trial was done, and for trials of several workloads, whose metrics don't
    compare. `name` is what the trials were asked for by.
    """
    workloads = dict.fromkeys(record.trial.cell.workload.label for record in records)
    if len(workloads) > 1:
        raise BadInput(
            f"--best: {name} has the workloads {', '.join(workloads)}, whose metrics don't compare;"
            f" needed: --only workload={next(iter(workloads))}, or another"
        )
    scores = []  # of each record that has one
    for record in records:
        metric = None if record.summary is None else record.summary.best_metric
        if record.status == "done" and record.rank0 is not None and metric is not None:
            scores.append((record.rank0.target.score(metric), record))
    if not scores:
        raise BadInput(f"--best: {name} has no trial that is done and has a metric; needed: one")
    return max(scores, key=lambda entry: entry[0])[1]


def _at_path(path: Path) -> Named:
    """Return what is in a file or folder; raises BadInput for records and baselines side by side.

    The path is that of a record or a baseline, of the folder of a trial or of a sweep, or of a
    folder of baselines. Raises BadInput for a folder that holds none of these.
    """
    paths = [path]
    if not path.is_file():
        paths = [TrialFolder.newest(path).record_path]
        if not paths[0].exists():
            record_paths = {*path.glob("*/record.json"), *SweepFolder(path).record_paths()}
            paths = sorted(record_paths or path.glob("*.json"))
    records, baselines, folders = [], [], {}
    for file in paths:
        content = decode_file(dict[str, Any], file, EITHER_FORMAT)
        if content.get("kind") == baseline.KIND:
            baselines.append(baseline.read(file))
            continue
        record = read_record(file)
        records.append(record)
        folders[record.trial.id] = TrialFolder.of_attempt(file.absolute().parent).path
    if not records and not baselines:
        raise BadInput(f"{path}: found neither records nor baselines; allowed: {FORMS}")
    if records and baselines:
        raise BadInput(f"{path}: found records and baselines; allowed: one of them")
    folder = TrialFolder.of_attempt(paths[0].absolute().parent).path.parent
    return Named(records=records, baselines=baselines, folder=folder, trial_folders=folders)
