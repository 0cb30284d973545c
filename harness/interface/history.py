"""Reads the nights of a sweep (results folders, archives, MLflow), and bisects what is new in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.analysis.trend import Night, Trend, make_trend
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import Results
from harness.core.scratch import ScratchFolder
from harness.core.text import counted
from harness.gate.bisect import BisectOptions, BisectOutcome
from harness.housekeeping.archive import restore
from harness.interface.gating import bisect_cell
from harness.launch.race import SweepRace
from harness.records.files import CommonParts, read_record
from harness.records.store import read_recorded_spec, read_spec, recorded_name
from harness.render.bisect import BisectView
from harness.spec.cluster import Profile

ARCHIVES = "*.tar.gz"


def read_trend(
    results: Results,
    name: str,
    paths: Sequence[Path],
    *,
    control: str,
    min_effect: float,
    mlflow: str | None = None,
) -> Trend:
    """Return the history of a sweep from a results folder and further ones, archives, and MLflow.

    `paths` are archives, folders of archives and results folders. `mlflow` is the URI of a server, or
    empty for the results folder's own database; None for neither. Raises BadInput for a path that is
    none of these, for a damaged archive, and if there are no records.
    """
    name = recorded_name(results, name)
    nights = _read_folder(results, name)
    for path in paths:
        nights += _read_path(path, name)
    if mlflow is not None:
        from harness.tracking import Tracker  # loads MLflow

        nights += Tracker(results, mlflow or None).recall_nights(name)
    if not nights:
        raise BadInput(
            f"{name}: found no records of such a sweep in {results.runs} or the paths given; allowed:"
            " a sweep that has run, archives of it, folders of archives, other results folders"
        )
    left_out = [line for night in nights for line in night.left_out]
    if left_out and not any(night.records for night in nights):
        raise BadInput(f"{name}: found no record that can be used: {left_out[0]}")
    return make_trend(
        name,
        [night.records for night in nights],
        control=control,
        min_effect=min_effect,
        notes=[f"left out {line}" for line in left_out],
    )


def _read_path(path: Path, name: str) -> list[Night]:
    """Return the nights in an archive, a folder of archives or a results folder; raises BadInput."""
    if path.is_file():
        return _read_archive(path, name)
    archives = sorted(path.glob(ARCHIVES))
    folder = Results(path)
    if not archives and not folder.runs.is_dir():
        raise BadInput(
            f"{path}: found neither archives nor results; allowed: an archive, a folder of archives"
            f" ({ARCHIVES}) or a results folder"
        )
    nights = []
    for archive in archives:
        nights += _read_archive(archive, name)
    return nights + _read_folder(folder, name)


def _read_archive(path: Path, name: str) -> list[Night]:
    """Return the night in an archive, none for that of another sweep; raises BadInput if damaged."""
    with ScratchFolder("archive") as scratch:
        results = Results(scratch.path)
        if restore(results, path).sweep != name:
            return []
        return _read_folder(results, name)


def _read_folder(results: Results, name: str) -> list[Night]:
    """Return what a results folder has of a sweep: one night, or none."""
    folder = results.sweep_folder(name)
    records, unreadable = [], []
    common = CommonParts()
    for path in folder.record_paths():
        try:
            records.append(read_record(path, common))
        except BadInput as error:
            unreadable.append(str(error))
    if not records and not unreadable:
        return []
    in_race = records
    if folder.spec_path.exists():
        in_race = SweepRace.of_records(read_spec(folder), records).records_in(records)
    left_out = list(unreadable)
    if len(in_race) < len(records):
        trials = counted(len(records) - len(in_race), "trial")
        left_out.append(f"{trials} of cells that have left a race")
    return [Night(records=in_race, left_out=left_out)]


def bisect_slowdowns(
    trend: Trend,
    results: Results,
    profile: Profile,
    budget_seconds: float,
    view: BisectView,
    on_message: Callable[[str], None],
) -> Iterator[BisectOutcome | str]:
    """Search the commits between the points around each new slowdown that came with code.

    The cells are those of the sweep in the results folder. Yields the outcome of each, or why there is
    none, a line. Raises BadInput if the results folder does not have the sweep.
    """
    sweep = read_recorded_spec(results, trend.name)
    cells = {cell.settings_id: cell for cell in sweep.cells}
    for series, change in trend.new_slowdowns:
        cell = cells.get(series.cell.settings_id)
        good, bad = change.before.commit, change.after.commit
        if "code" not in change.causes or cell is None or good is None or bad in (None, good):
            yield f"{series.cell.label}: there are no commits to search between"
            continue
        assert bad is not None
        options = BisectOptions(
            good=good, bad=bad, min_effect=trend.min_effect, budget_seconds=budget_seconds
        )
        try:
            outcome = bisect_cell(
                sweep,
                cell,
                profile,
                options,
                view,
                is_over_stacks=False,
                wait=True,
                on_message=on_message,
            )
        except HarnessError as error:  # such as ends that do not differ on this machine
            yield f"{series.cell.label}: {error}"
        else:
            assert isinstance(outcome, BisectOutcome)
            yield outcome
