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
from harness.analysis.compare import Side, hardware_of
from harness.analysis.result import CellResult, aggregate
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput, did_you_mean
from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.records.decode import FileFormat, read_json
from harness.records.files import read_record
from harness.records.record import Record
from harness.records.store import read_recorded_sweep
from harness.spec.selected import select_trials
from harness.spec.sweep import Sweep

BASELINE = "baseline"
EITHER_FORMAT = FileFormat(name="record or a baseline")
FORMS = (
    "a sweep that has run, the id of a cell or a trial, baseline, or a path of records or baselines"
)


def select(results: Results, names: Sequence[str], loaded: Sequence[Side] = ()) -> list[Side]:
    """Return the results that each name stands for, as `FORMS` lists them.

    `baseline` means the baselines of the hardware of the other names and of the sides that were `loaded`
    before, and of these those of their cells and sweeps, or all if there are none. Of several baselines
    of a cell it is the one of the hardware that the cell ran on.
    Raises BadInput for an unknown or ambiguous name.
    """
    sides = {}
    for name in names:
        if name != BASELINE:  # comes last, because it depends on the hardware of the others
            sides[name] = Side(name=name, cells=find(results, name).cells)
    if BASELINE in names:
        other_sides = [*sides.values(), *loaded]
        others = [result for side in other_sides for result in side.cells]
        hardware = hardware_of(other_sides)
        if others and not hardware:  # that of trials that all failed is unknown
            hardware = {path.parent.name for path in baseline.files(results)}
        baselines = _read_baselines(results, sorted(hardware))
        related = _related(baselines, others) or baselines
        sides[BASELINE] = Side(name=BASELINE, cells=_one_for_each_cell(related, others))
    return [sides[name] for name in names]


def _related(baselines: Sequence[CellResult], others: Sequence[CellResult]) -> list[CellResult]:
    """Return the baselines of the cells of other results, and of the sweeps that these are of.

    Cells that a sweep has lost since are among them, as they must count as missing.
    """
    ids = {result.cell.settings_id for result in others}
    sweeps = {trial.sweep for result in others for trial in result.trials}
    related = []
    for result in baselines:
        is_of_sweep = any(trial.sweep in sweeps for trial in result.trials)
        if is_of_sweep or result.cell.settings_id in ids:
            related.append(result)
    return related


def _one_for_each_cell(
    baselines: Sequence[CellResult], others: Sequence[CellResult]
) -> list[CellResult]:
    """Return one baseline of each cell: of hardware that the cell ran on, else the first."""
    ran_on: dict[str, set[str]] = {}  # by the id of the cell's settings
    for result in others:
        ran_on.setdefault(result.cell.settings_id, set()).update(result.hardware)
    chosen: dict[str, CellResult] = {}
    for result in baselines:
        settings_id = result.cell.settings_id
        hardware = ran_on.get(settings_id, set())
        first = chosen.setdefault(settings_id, result)
        if hardware.isdisjoint(first.hardware) and hardware & set(result.hardware):
            chosen[settings_id] = result
    return list(chosen.values())


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a name on the command line stands for: records, or baselines, which hold results alone."""

    records: Sequence[Record] = ()
    baselines: Sequence[CellResult] = ()
    sweep: Sweep | None = None  # the one that the name is of
    folder: Path | None = None  # of the records' sweep; None if they are in none

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
    if results.sweep_folder(name).spec_path.exists():
        recorded = read_recorded_sweep(results, name)
        if recorded.unreadable:  # a judgment is of all trials or of none
            raise BadInput(recorded.unreadable[0])
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
    if not results.sweep_folder(sweep_name).spec_path.exists():
        return []
    recorded = read_recorded_sweep(results, sweep_name)
    if recorded.unreadable:
        raise BadInput(recorded.unreadable[0])
    return aggregate(recorded.records)


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
    folder = Path(name)
    # False for a name that is too long for a file, where `Path` raises.
    is_of_trial = os.path.isfile(folder)  # noqa: PTH113
    if os.path.isdir(folder):  # noqa: PTH112
        is_of_trial = TrialFolder.newest(folder).record_path.exists()
    if named.folder is not None and (named.sweep is not None or not is_of_trial):
        folder = named.folder / record.trial.id
    elif folder.is_file():
        folder = TrialFolder.of_attempt(folder.parent).path
    return record, folder


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
    best, best_value = None, -math.inf
    for record in records:
        if record.status != "done" or record.summary is None or record.rank0 is None:
            continue
        metric = record.summary.best_metric
        if metric is None:
            continue
        value = record.rank0.target.score(metric)
        if best is None or value > best_value:
            best, best_value = record, value
    if best is None:
        raise BadInput(f"--best: {name} has no trial that is done and has a metric; needed: one")
    return best


def _at_path(path: Path) -> Named:
    """Return what is in a file or folder.

    The path is that of a record or a baseline, of the folder of a trial or of a sweep, or of a
    folder of baselines. Raises BadInput for a folder that holds none of these.
    """
    if path.is_file():
        return _in_files([path])
    of_trial = TrialFolder.newest(path).record_path
    paths = [of_trial]
    if not of_trial.exists():
        record_paths = {*path.glob("*/record.json"), *SweepFolder(path).record_paths()}
        paths = sorted(record_paths or path.glob("*.json"))
    if not paths:
        raise BadInput(f"{path}: found neither records nor baselines; allowed: {FORMS}")
    return _in_files(paths)


def _in_files(paths: Sequence[Path]) -> Named:
    """Return what records or baselines hold; raises BadInput for both side by side."""
    records, baselines = [], []
    for path in paths:
        content = read_json(path, EITHER_FORMAT)
        if isinstance(content, dict) and content.get("kind") == baseline.KIND:
            baselines.append(baseline.read(path))
        else:
            records.append(read_record(path))
    if records and baselines:
        raise BadInput(f"{paths[0].parent}: found records and baselines; allowed: one of them")
    trial_folder = TrialFolder.of_attempt(paths[0].absolute().parent)
    return Named(records=records, baselines=baselines, folder=trial_folder.path.parent)


def _read_baselines(results: Results, hardware: Sequence[str]) -> list[CellResult]:
    """Return the baselines of all of these kinds of hardware; raises BadInput if there are none."""
    baselines: list[CellResult] = []
    for kind in hardware:
        baselines += map(baseline.read, baseline.files(results, kind))
    if baselines:
        return baselines
    kinds = sorted({path.parent.name for path in baseline.files(results)})
    raise BadInput(
        f"{results.baselines}: found no baseline of {' or '.join(hardware) or 'any hardware'};"
        f" allowed: {', '.join(kinds) or 'nothing'}; harness baseline SWEEP makes one"
    )
