"""Reads records back from MLflow, so that the numbers of a run are those of the disk.

The metrics of a cell are rounded, and none has the step times behind it. So commands that compare
runs do not use metrics: every trial's run has its record as a file, and that is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.analysis.selection import Named
from harness.analysis.trend import Night
from harness.core.errors import BadInput, one_line
from harness.core.scratch import ScratchFolder
from harness.core.text import counted
from harness.records.files import parse_record
from harness.records.record import Record
from harness.tracking.artifacts import RECORD_FILE
from harness.tracking.connect import errors_in_one_line, quiet
from harness.tracking.contents import RACE_TAG
from harness.tracking.runs import RECORD_TAG, SPEC_TAG, is_complete_run, search

# Ids and digests, which `filter_string` takes between quotes.
SAFE_TAG = re.compile(r"[A-Za-z0-9._:/-]+")

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


class _TrialList(msgspec.Struct):
    """What is read of a sweep.json in MLflow."""

    trials: list[str]


def recall_run(client: MlflowClient, run_id: str) -> Named:
    """Return the record of a trial's run, or the records of a cell's or a sweep's trials.

    The records of a sweep come in the order of its trials, as its sweep.json lists them; trials
    that have not run yet are left out.

    Raises BadInput for a run of something else, a deleted run, and a record that is missing,
    incomplete or of another schema.
    """
    run = client.get_run(run_id)
    tags = run.data.tags
    if run.info.lifecycle_stage == "deleted":
        raise BadInput(
            f"MLflow run {run_id}: found it deleted; allowed: the run that replaced it,"
            " which a later delivery of the sweep may have written"
        )
    kind = tags.get("harness.kind")
    if kind not in ("sweep", "cell", "trial"):
        raise BadInput(
            f"MLflow run {run_id}: harness.kind: found {kind!r};"
            " allowed: the runs of sweeps, cells and trials"
        )
    experiment_id = run.info.experiment_id
    departed = _departed_cells(client, experiment_id)
    if kind == "trial":
        records = [_read_record(client, run)]
        return Named(records=records, departed=departed.get(_tag(run, "harness.origin"), ()))
    origin = _tag(run, "harness.origin")
    filter_string = f"tags.`harness.origin` = '{origin}' AND tags.`harness.kind` = 'trial'"
    if kind == "cell":
        filter_string += f" AND tags.`harness.cell` = '{_tag(run, 'harness.cell')}'"
    trial_runs: dict[str, Run] = {}
    for trial_run in search(client, experiment_id, filter_string):
        # The newest comes first: older ones were replaced, and come back with a deleted experiment.
        trial_runs.setdefault(_tag(trial_run, "harness.trial"), trial_run)
    trial_ids: Iterable[str] = sorted(trial_runs)
    if SPEC_TAG in tags:
        trial_ids = _read_trial_ids(client, run)
    records = [_read_record(client, trial_runs[id_]) for id_ in trial_ids if id_ in trial_runs]
    return Named(records=records, departed=departed.get(origin, ()))


def recall_by_origin(client: MlflowClient, experiment_id: str) -> list[Night]:
    """Return the records of all trials in an experiment, a night for each results folder they are from.

    Deliveries that were cut off are left out, and so are cells that have left a race, and records that
    can't be read. Runs whose tags somebody changed are named in a night of their own.
    """
    newest: dict[tuple[str, str], Run] = {}  # by origin and trial; `search` begins with the newest
    damaged = []
    for run in search(client, experiment_id, "tags.`harness.kind` = 'trial'"):
        if RECORD_TAG not in run.data.tags or not is_complete_run(run):
            continue
        try:
            origin, trial, _ = (
                _tag(run, f"harness.{name}") for name in ("origin", "trial", "cell")
            )
        except BadInput as error:
            damaged.append(str(error))
        else:
            newest.setdefault((origin, trial), run)
    runs_by_origin: dict[str, list[Run]] = {}
    for (origin, _), run in newest.items():
        runs_by_origin.setdefault(origin, []).append(run)
    departed = _departed_cells(client, experiment_id)
    nights = []
    for origin, runs in runs_by_origin.items():
        nights.append(_recall_night(client, runs, departed.get(origin, ())))
    return [*nights, Night(records=[], left_out=damaged)] if damaged else nights


def _recall_night(client: MlflowClient, runs: Sequence[Run], departed: Collection[str]) -> Night:
    """Return the records of trials' runs from one results folder; `departed` are cells to leave out."""
    in_race = [run for run in runs if _tag(run, "harness.cell") not in departed]
    records, left_out = [], []
    for run in in_race:
        try:
            records.append(_read_record(client, run))
        except BadInput as error:
            client.get_run(run.info.run_id)  # raises if MLflow no longer answers at all
            left_out.append(str(error))
    if len(in_race) < len(runs):
        trials = counted(len(runs) - len(in_race), "trial")
        left_out.append(f"{trials} of cells that have left a race")
    return Night(records=records, left_out=left_out)


def _departed_cells(client: MlflowClient, experiment_id: str) -> dict[str, set[str]]:
    """Return the ids of the cells that have left a race, by the results folder they are from."""
    departed: dict[str, set[str]] = {}
    for run in search(client, experiment_id, "tags.`harness.kind` = 'cell'"):
        if RACE_TAG in run.data.tags:
            departed.setdefault(_tag(run, "harness.origin"), set()).add(_tag(run, "harness.cell"))
    return departed


def _tag(run: Run, name: str) -> str:
    """Return a tag of a run as the harness writes it; raises BadInput if anybody changed it."""
    value = run.data.tags.get(name)
    if value is None or not SAFE_TAG.fullmatch(value):
        raise BadInput(
            f"MLflow run {run.info.run_id}: {name}: found {value!r};"
            " allowed: what `harness results collect` writes there"
        )
    return str(value)


def _read_trial_ids(client: MlflowClient, run: Run) -> list[str]:
    """Return the trials of a sweep's run in their order; raises BadInput."""
    text = _read_file(client, run, "sweep.json")
    try:
        return msgspec.json.decode(text, type=_TrialList).trials
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(
            f"MLflow run {run.info.run_id}: sweep.json: {one_line(error)};"
            " allowed: what `harness results collect` writes there"
        ) from None


def _read_record(client: MlflowClient, run: Run) -> Record:
    """Return the record that is stored with a trial's run; raise BadInput if it is not usable."""
    name = f"MLflow run {run.info.run_id}"
    if RECORD_TAG not in run.data.tags or not is_complete_run(run):
        raise BadInput(
            f"{name}: found no complete record; `harness results collect SWEEP` completes a delivery"
        )
    text = _read_file(client, run, RECORD_FILE)
    return parse_record(text, f"{name}: {RECORD_FILE}", partial(_read_file, client, run))


def _read_file(client: MlflowClient, run: Run, name: str) -> bytes:
    """Return the content of a file that is stored with a run; raise BadInput if it is missing.

    The columns of a record are read when they are needed, which may be long after the record was.
    """
    trouble = f"does not give {name} of run {run.info.run_id}"
    with (
        quiet(),
        errors_in_one_line(client.tracking_uri, trouble, BadInput),
        ScratchFolder("record") as aside,
    ):
        return Path(client.download_artifacts(run.info.run_id, name, str(aside.path))).read_bytes()
