"""Reads records back from MLflow, so that the numbers of a run are those of the disk.

The metrics of a cell are rounded, and none has the step times behind it. So commands that compare
runs do not use metrics: every trial's run has its record as a file, and that is read.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.selection import Named
from harness.core.errors import BadInput
from harness.core.scratch import ScratchFolder
from harness.records.files import parse_record
from harness.records.record import Record
from harness.tracking.artifacts import RECORD_FILE
from harness.tracking.connect import errors_in_one_line, quiet
from harness.tracking.runs import RECORD_TAG, SUPERSEDED_TAG, is_complete_run, search

# Ids and digests, which `filter_string` takes between quotes.
SAFE_TAG = re.compile(r"[A-Za-z0-9._:/-]+")

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def recall_run(client: MlflowClient, run_id: str) -> Named:
    """Return the record of a trial's run, or the records of a cell's or a sweep's trials.

    Those come in the order in which they started; trials that have not run yet are left out. Raises
    BadInput for a run of something else, a deleted run, and a record that is missing, incomplete or of
    another schema.
    """
    run = client.get_run(run_id)
    if run.info.lifecycle_stage == "deleted":
        raise BadInput(f"MLflow run {run_id}: found it deleted; allowed: a run that MLflow shows")
    kind = run.data.tags.get("harness.kind")
    if kind not in ("sweep", "cell", "trial"):
        raise BadInput(
            f"MLflow run {run_id}: harness.kind: found {kind!r};"
            " allowed: the runs of sweeps, cells and trials"
        )
    if kind == "trial":
        return Named(records=[_read_record(client, run)])
    query = (
        f"tags.`harness.origin` = '{_tag(run, 'harness.origin')}' AND tags.`harness.kind` = 'trial'"
    )
    if kind == "cell":
        query += f" AND tags.`harness.cell` = '{_tag(run, 'harness.cell')}'"
    trials: dict[str, Run] = {}
    for trial_run in search(client, run.info.experiment_id, query):
        if SUPERSEDED_TAG not in trial_run.data.tags:
            trials.setdefault(_tag(trial_run, "harness.trial"), trial_run)
    records = [_read_record(client, trial_run) for trial_run in trials.values()]
    return Named(records=sorted(records, key=_order))


def _order(record: Record) -> tuple[float, int, int]:
    """Return when a trial started, and what tells it apart from those that started with it."""
    return record.started, record.trial.seed, record.trial.repeat


def _tag(run: Run, name: str) -> str:
    """Return a tag of a run as the harness writes it; raises BadInput if anybody changed it."""
    value = run.data.tags.get(name)
    if value is None or not SAFE_TAG.fullmatch(value):
        raise BadInput(
            f"MLflow run {run.info.run_id}: {name}: found {value!r};"
            " allowed: what `harness collect` writes there"
        )
    return str(value)


def _read_record(client: MlflowClient, run: Run) -> Record:
    """Return the record that is stored with a trial's run; raise BadInput if it is not usable."""
    name = f"MLflow run {run.info.run_id}"
    if RECORD_TAG not in run.data.tags or not is_complete_run(run):
        raise BadInput(
            f"{name}: found no complete record; `harness collect SWEEP` completes a delivery"
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
