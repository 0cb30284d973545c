"""Recorded sweeps on disk: listing them, reading them back, and locking one while it runs.

A recorded sweep is a folder with a `sweep.json` and a record for each trial that has run. The sweep
is read from there, not from the sweep file, which may have been changed since. It is what the last
command asked for; earlier commands may have asked for other seeds and repeats of its cells.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.errors import BadInput, did_you_mean
from harness.core.files import lock_file, writing
from harness.core.paths import TRIAL_ID, Results, SweepFolder, write_atomically
from harness.records.files import read_record
from harness.records.format import FileFormat, decode_file, sealed_text
from harness.records.record import Record
from harness.sweep.cell import Cell, Trial
from harness.sweep.selected import select, select_trials
from harness.sweep.sweep import Sweep

LOCK_TIMEOUT = 0.5  # seconds; `is_locked` of another process holds the lock for a moment
SCHEMA = 2  # of sweep.json
SWEEP_FORMAT = FileFormat(
    name="sweep", schema=SCHEMA, remedy="harness run writes it again", is_sealed=True
)


@dataclass(frozen=True, kw_only=True)
class RecordedSweep:
    """A sweep that has run, with all that was recorded of its cells."""

    sweep: Sweep  # as the last command asked for it
    records: Sequence[Record]  # of all trials of its cells, earlier commands' at the end
    unreadable: Sequence[str]  # for each record that can't be read, which and what to do: a line
    # Trials in the folder that are of none of its cells, and so left out: their settings are other ones,
    # or the code of their workload is.
    other_count: int = 0


def write_spec(sweep: Sweep, folder: SweepFolder) -> None:
    """Write what a sweep asks for, unless it is a part of the recorded one, as `--set` may leave it.

    A part never replaces the whole.
    """
    sweep = sweep.whole()
    if "--set" not in sweep.options or not _is_part(sweep, folder):
        replace_spec(sweep, folder)


def replace_spec(sweep: Sweep, folder: SweepFolder) -> None:
    """Write what a sweep asks for, and the ids of its trials.

    The ids are those that it asks for, and those of its cells' trials that earlier commands have
    left. They are for readers that decode no cells, such as the tracker.
    """
    content: dict[str, Any] = {"schema": SCHEMA, **asdict(sweep)}
    recorded = recorded_trials(folder.recorded_ids(), sweep.cells)
    trial_ids = [trial.id for trial in (*sweep.trials(), *recorded)]
    content["trials"] = list(dict.fromkeys(trial_ids))
    write_atomically(folder.spec_path, sealed_text(content))


def _is_part(sweep: Sweep, folder: SweepFolder) -> bool:
    """Return whether a sweep has some of the trials that the recorded one has, and no others."""
    try:
        recorded = read_spec_content(folder.spec_path)["trials"]
    except BadInput:  # there is none, or it is broken
        return False
    return {trial.id for trial in sweep.trials()} < set(recorded)


def recorded_sweep_names(results: Results) -> list[str]:
    """Return the names of all sweeps that have run or were submitted, sorted: those of their folders."""
    return sorted(path.parent.name for path in results.runs.glob("*/sweep.json"))


def read_recorded_specs(results: Results) -> tuple[list[Sweep], list[BadInput]]:
    """Read all sweeps that have run or were submitted, in the order of their names.

    Also returns an error for each sweep that can't be read, which stops no other from being read.
    """
    sweeps: list[Sweep] = []
    errors: list[BadInput] = []
    for name in recorded_sweep_names(results):
        try:
            sweeps.append(read_recorded_spec(results, name))
        except BadInput as error:
            errors.append(error)
    return sweeps, errors


def recorded_folder(results: Results, name: str) -> SweepFolder:
    """Return the folder of a sweep that has run or was submitted.

    Raises BadInput, which lists the recorded sweeps, if there is none of that name.
    """
    folder = results.sweep_folder(name)
    if not folder.spec_path.exists():
        names = recorded_sweep_names(results)
        if names:
            hint = did_you_mean(name, names)
        else:
            hint = "there are none; --results or HARNESS_RESULTS says where"
        raise BadInput(f"{name}: no records of such a sweep in {results.runs}; {hint}")
    return folder


def read_recorded_spec(results: Results, name: str) -> Sweep:
    """Read the sweep of that name as it was asked for when it ran.

    Raises BadInput, also if there is none of that name.
    """
    return read_spec(recorded_folder(results, name))


def read_spec(folder: SweepFolder) -> Sweep:
    """Read the sweep in a folder, wherever that is; raises BadFile."""
    return decode_file(Sweep, folder.spec_path, SWEEP_FORMAT)


def read_spec_content(path: Path) -> dict[str, Any]:
    """Return the keys of a `sweep.json`, unchecked, without decoding its cells.

    Raises BadFile for a file of another schema, or that was changed after it was written.
    """
    return decode_file(dict[str, Any], path, SWEEP_FORMAT)


def recorded_trials(recorded_ids: Iterable[str], cells: Iterable[Cell]) -> list[Trial]:
    """Return the trials of these cells that have a record.

    `recorded_ids` are the names of the folders that have one (`SweepFolder.recorded_ids`).
    """
    cells_by_id = {cell.id: cell for cell in cells}
    trials = []
    for trial_id in recorded_ids:
        name = TRIAL_ID.fullmatch(trial_id)
        if name is None or name["cell"] not in cells_by_id:
            continue
        cell = cells_by_id[name["cell"]]
        trial = Trial(cell=cell, seed=int(name["seed"]), repeat=int(name["repeat"]))
        if trial.id == trial_id:
            trials.append(trial)
    return trials


def read_recorded_sweep(results: Results, name: str) -> RecordedSweep:
    """Read a sweep that has run, and the records of all trials of its cells.

    First those that the last command asked for, in the order in which they run. Records that can't
    be read are left out and named. Raises BadInput for the sweep itself.
    """
    sweep = read_recorded_spec(results, name)
    folder = results.sweep_folder(name)
    paths = folder.records()
    of_cells = {trial.id for trial in recorded_trials(paths, sweep.cells)}
    asked = [trial.id for trial in sweep.trials()]
    records = []
    unreadable = []
    for trial_id in dict.fromkeys([*asked, *paths]):
        if trial_id not in of_cells:
            continue
        try:
            records.append(read_record(paths[trial_id]))
        except BadInput as error:
            unreadable.append(str(error))
    return RecordedSweep(
        sweep=sweep,
        records=records,
        unreadable=unreadable,
        other_count=len(paths) - len(of_cells),
    )


def select_recorded(recorded: RecordedSweep, only: Sequence[str]) -> RecordedSweep:
    """Return the part of a recorded sweep that `--only` names.

    Trials that earlier commands have left may be chosen too. Raises BadInput as `select` does.
    """
    if not only:
        return recorded
    trials = [record.trial for record in recorded.records]
    sweep = select(recorded.sweep, only, trials)
    everything = [*recorded.sweep.trials(), *trials]
    chosen = {trial.id for trial in select_trials(everything, only)}
    records = [record for record in recorded.records if record.trial.id in chosen]
    return replace(recorded, sweep=sweep, records=records)


@contextmanager
def lock(folder: SweepFolder) -> Iterator[None]:
    """Hold a sweep for this process alone; raises BadInput if another process holds it.

    The kernel releases the lock however this process ends. The file stays, and holds the process's
    id for the error of the next one: removing it would let two processes lock two files of one
    name.
    """
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        file = folder.lock_path.open("a+", encoding="utf-8")
        is_acquired = lock_file(file, LOCK_TIMEOUT)
    except OSError as error:
        raise BadInput(f"--results: {folder.path}: can't be locked: {error.strerror}") from None
    with file:
        if not is_acquired:
            file.seek(0)
            owner = file.read().strip()
            raise BadInput(
                f"{folder.path}: process {owner} is running this sweep; wait until it ends"
            )
        with writing(folder.lock_path):
            file.truncate(0)  # of the process that held it before; "a+" did not
            # Unbuffered: closing the file would write a buffer that a full disk refused again.
            os.write(file.fileno(), str(os.getpid()).encode())
        yield


def is_locked(folder: SweepFolder) -> bool:
    """Return whether a process of this machine is running the sweep.

    A shared lock asks without keeping others from asking too.
    """
    if not folder.lock_path.exists():
        return False
    with folder.lock_path.open("rb") as file:
        try:
            return not lock_file(file, 0, is_shared=True)
        except OSError:  # a file system without locks: `lock` refuses to run trials there
            return False
