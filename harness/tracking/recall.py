"""Records back from MLflow: those that a run was made from, so that its numbers are those of the disk."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import BadInput
from harness.records.record import Record, parse_record
from harness.tracking.connect import in_one_line
from harness.tracking.runs import RECORD, SPEC, is_whole, search

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def records_of(client: MlflowClient, run_id: str) -> list[Record]:
    """Of a trial's run its record; of a cell's or a sweep's those of its trials, in the order that the disk has.

    Raises BadInput for a run of something else, a deleted one, and a record that is missing, not whole or of another
    schema.
    """
    run = client.get_run(run_id)
    tags, place = run.data.tags, f"MLflow run {run_id}"
    if run.info.lifecycle_stage == "deleted":
        raise BadInput(
            f"{place}: found it deleted; a later delivery of the sweep may have taken its place"
        )
    kind = tags.get("harness.kind")
    if kind not in ("sweep", "cell", "trial"):
        raise BadInput(
            f"{place}: harness.kind: found {kind!r}; allowed: the runs of sweeps, cells and trials"
        )
    if kind == "trial":
        return [_record(client, run)]
    mine = f"tags.`harness.origin` = '{tags['harness.origin']}' AND tags.`harness.kind` = 'trial'"
    if kind == "cell":
        mine += f" AND tags.`harness.cell` = '{tags['harness.cell']}'"
    trials = {
        trial.data.tags["harness.trial"]: trial
        for trial in search(client, run.info.experiment_id, mine)
    }
    wanted = (
        json.loads(_text(client, run, "sweep.json"))["trials"] if SPEC in tags else sorted(trials)
    )
    return [_record(client, trials[trial]) for trial in wanted if trial in trials]


def _record(client: MlflowClient, run: Run) -> Record:
    place = f"MLflow run {run.info.run_id}"
    if RECORD not in run.data.tags or not is_whole(run):
        raise BadInput(
            f"{place}: found no whole record with it; `harness collect SWEEP` completes a delivery"
        )
    return parse_record(_text(client, run, "record.json"), f"{place}: record.json")


def _text(client: MlflowClient, run: Run, name: str) -> str:
    """A file of the run's."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    files: Any = get_artifact_repository(run.info.artifact_uri, client.tracking_uri)
    trouble = in_one_line(
        client.tracking_uri, f"does not give {name} of run {run.info.run_id}", BadInput
    )
    with trouble, tempfile.TemporaryDirectory() as aside:
        return Path(files.download_artifacts(name, aside)).read_text(encoding="utf-8")
