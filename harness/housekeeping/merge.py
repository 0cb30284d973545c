"""Merges recorded sweeps into one, as those that several machines have run."""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder
from harness.core.storage import writing
from harness.core.text import counted
from harness.housekeeping.sweeps import held, held_for_reading
from harness.records.files import read_record
from harness.records.settings import profile_change
from harness.records.store import read_spec_in_place, recorded_name, write_spec
from harness.spec.cell import Cell
from harness.spec.sweep import Sweep
from harness.spec.text import problem_of_name

MOST_NAMED = 3  # trials that an error names


def merge(
    results: Results, sources: Sequence[SweepFolder], name: str, *, dry_run: bool = False
) -> list[str]:
    """Copy the trials of some sweeps into one, and return the ids of those that it did not have.

    The sweep `name` may exist. It gets the cells, seeds and repeats of all; other keys are those of
    its own, or else of the first source. The sources stay as they are, and merging again adds
    nothing. With `dry_run`, nothing is copied.

    Raises BadInput, before anything is copied, for a trial that two sweeps have with other results,
    for trials that ran with another profile, for a sweep that anybody works on, and for a new sweep
    with an invalid name.
    """
    name = recorded_name(results, name)
    target = results.sweep_folder(name)
    problem = problem_of_name(name)
    if problem is not None and not target.spec_path.exists():
        raise BadInput(f"--into: {problem}")
    by_path: dict[Path, SweepFolder] = {}  # a sweep may be named twice, by other paths
    for folder in [target, *sources] if target.spec_path.exists() else sources:
        by_path.setdefault(folder.path.resolve(), folder)
    folders = list(by_path.values())
    sweeps = []
    for folder in folders:
        source = SweepFolder(folder.path.absolute())
        sweeps.append(read_spec_in_place(source.results, source))
    merged = _merged(sweeps, name)
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(held(folder) if folder == target else held_for_reading(folder))
        records = _records_by_trial(folders)
        _refuse_other_profiles(list(records.values()))
        if target not in folders and not dry_run:  # only now: nothing can be refused any more
            stack.enter_context(held(target))
        added = sorted(records.keys() - set(target.recorded_ids()))
        if dry_run:
            return added
        for trial_id in added:
            _copy_trial(records[trial_id].parent, target.trial_folder(trial_id).path)
        for folder in sources:
            _copy_environments(folder, target)
        write_spec(merged, target)
    return added


def _merged(sweeps: Sequence[Sweep], name: str) -> Sweep:
    """Return a sweep that asks for all cells, seeds and repeats of some sweeps."""
    cells: dict[str, Cell] = {}
    seeds: dict[int, None] = {}
    labels: dict[str, dict[int, None]] = {}  # the seeds of each workload
    for sweep in sweeps:
        seeds.update(dict.fromkeys(sweep.seeds))
        for cell in sweep.cells:
            label = cells.setdefault(cell.id, cell).workload.label
            labels.setdefault(label, {}).update(dict.fromkeys(sweep.seeds_of(cell)))
    workload_seeds = {}
    for label, of_label in labels.items():
        if list(of_label) != list(seeds):
            workload_seeds[label] = list(of_label)
    return replace(
        sweeps[0],
        name=name,
        cells=list(cells.values()),
        seeds=list(seeds),
        repeats=max(sweep.repeats for sweep in sweeps),
        workload_seeds=workload_seeds,
        unused_rules=(),
    )


def _records_by_trial(folders: Sequence[SweepFolder]) -> Mapping[str, Path]:
    """Return the path of each trial's record; raises BadInput for two that are not the same."""
    paths: dict[str, Path] = {}
    different = []
    for folder in folders:
        for path in folder.record_paths():
            first = paths.setdefault(path.parent.name, path)
            if first != path and first.read_bytes() != path.read_bytes():
                different.append(f"{first} and {path}")
    if different:
        more = f" and {len(different) - MOST_NAMED} more" if len(different) > MOST_NAMED else ""
        raise BadInput(
            f"merge: found {counted(len(different), 'trial')} with different records:"
            f" {'; '.join(different[:MOST_NAMED])}{more}; allowed: each trial once, so remove"
            " one of the two, or move it away"
        )
    return paths


def _refuse_other_profiles(paths: Sequence[Path]) -> None:
    """Raise BadInput if trials ran with settings of a profile that may change a result.

    Of each sweep, that is true already: `harness run` does not add such trials.
    """
    first = None
    for folder in dict.fromkeys(path.parent.parent for path in paths):
        of_folder = next(path for path in paths if path.parent.parent == folder)
        settings = read_record(of_folder).settings
        if settings is None:
            continue
        change = None if first is None else profile_change(first, settings)
        if change is not None:
            raise BadInput(
                f"{folder}: its trials ran with another profile: {change}; allowed: sweeps that ran"
                " with one profile, or harness compare, which compares them as they are"
            )
        first = first or settings


def _copy_environments(source: SweepFolder, target: SweepFolder) -> None:
    """Copy the lists of packages and the differences of repositories that the target does not have."""
    environments = target.path / "environments"
    for path in sorted((source.path / "environments").glob("*")):
        if not (environments / path.name).exists():
            environments.mkdir(parents=True, exist_ok=True)
            _copy_file(path, environments / path.name)


def _copy_trial(source: Path, target: Path) -> None:
    """Copy a trial's folder so that it is there as a whole or not at all.

    Raises StorageError where the disk is full or fails, BadInput for what else can't be copied.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)  # of a trial that left no record
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=".merge-"))
    try:
        copy = aside / target.name
        shutil.copytree(source, copy, symlinks=True, copy_function=_copy_file)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():  # those of another user may be read-only
                path.chmod(path.stat().st_mode | stat.S_IWUSR)
        copy.rename(target)
    except shutil.Error as error:
        failed_path, _, reason = error.args[0][0]
        raise BadInput(
            f"{failed_path}: can't be copied: {reason}; allowed: files that can be read"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _copy_file(source: str | Path, target: str | Path) -> None:
    """Copy a file as copytree does; raises StorageError where the disk is full or fails."""
    with writing(Path(target)):
        shutil.copy2(source, target)
