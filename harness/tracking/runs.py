"""The runs of one sweep in MLflow: found by their tags, and brought up to date where they differ.

MLflow itself is asked what it has, as nothing about deliveries is stored elsewhere. Every write can
be the last one before the process dies. So each run carries tags that say what it shows, written
after what they speak of, and the next delivery completes whatever an earlier one left unfinished.

No run is ever deleted: a user may have tagged it, described it or linked to it. Metrics of ours that
no longer hold are named by a tag, and a run of a trial that has run again says which one is newer.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.paths import SweepFolder
from harness.records.files import read_record
from harness.records.numbers import is_number, metric_name
from harness.serving.record import read_export
from harness.spec.cell import WorkloadRef
from harness.tracking.artifacts import collect_export, collect_files, export_metrics, staging
from harness.tracking.contents import (
    DESCRIPTION_TAG,
    VALUE_LENGTH,
    RunContents,
    text_digest,
    trial_contents,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

PAGE_SIZE = 250  # runs in one answer to a search
RECORD_TAG = "harness.record"  # on a trial's run: the digest of the record that it shows
EXPORT_TAG = "harness.export"  # on a trial's run: when the exports were written that it shows
FILES_TAG = "harness.files"  # on a sweep's run: the digest of the files stored with it
STALE_TAG = "harness.stale_metrics"  # on a run: the names of its metrics that no longer hold
SUPERSEDED_TAG = "harness.superseded"  # on a run: the id of the one that shows what holds now
OUR_NOTE_TAG = "harness.note"  # on a run: the digest of the description that we have written
# On a trial's run: the command that runs it again wherever this MLflow can be reached.
REPRODUCE_TAG = "harness.reproduce"
PARENT_TAG = "mlflow.parentRunId"
# Those that do not come from a run's contents.
KEPT_TAGS = (RECORD_TAG, EXPORT_TAG, FILES_TAG, OUR_NOTE_TAG, REPRODUCE_TAG, SUPERSEDED_TAG)


@dataclass(frozen=True, kw_only=True)
class KnownRun:
    """What MLflow has of a run."""

    id: str
    tags: dict[str, str]


class SweepRuns:
    """The runs of one sweep from one results folder, in one experiment.

    Runs are found by tags: `harness.origin` for the results folder, `harness.kind` for what a run
    is of, and `harness.sweep`, `harness.cell` or `harness.trial` for which one.
    """

    def __init__(
        self,
        client: MlflowClient,
        experiment_id: str,
        origin: str,
        folder: SweepFolder,
        source: str,
    ) -> None:
        """Connect to nothing yet.

        `origin` is the id of the results folder, which tells its runs from those of another folder
        in the same experiment. `source` is the name of the sweep file.
        """
        self.client = client
        self.experiment_id = experiment_id
        self.origin = origin
        self.folder = folder
        self.source = source
        # By kind (sweep, cell, trial) and key within the kind. There are several for one key where a
        # trial ran again, a delivery died or somebody copied a run.
        self._runs: dict[tuple[str, str], list[Run]] = {}

    def find(self, condition: str = "") -> None:
        """Ask MLflow for the runs of this results folder, those that match a filter of MLflow's."""
        query = f"tags.`harness.origin` = '{self.origin}'"
        if condition:
            query += f" AND {condition}"
        for run in search(self.client, self.experiment_id, query):
            kind = run.data.tags.get("harness.kind", "")
            known = self._runs.setdefault((kind, run.data.tags.get(f"harness.{kind}", "")), [])
            if run.info.run_id not in [other.info.run_id for other in known]:
                known.append(run)

    def keys(self, kind: str) -> list[str]:
        """Return the keys of the runs of a kind that were found."""
        return [key for of_kind, key in self._runs if of_kind == kind]

    def update(
        self, contents: RunContents, parent: str | None, extra_tags: Mapping[str, str] | None = None
    ) -> KnownRun:
        """Make a run show its contents, created if there is none; send only what it lacks."""
        run = self._current(contents.kind, contents.key)
        if run is None:
            run = self._create(contents, parent)
        self._show(run, contents, parent, extra_tags or {})
        return KnownRun(id=run.info.run_id, tags=dict(run.data.tags))

    def begin(self, kind: str, key: str, name: str, parent: str | None) -> str:
        """Return the id of a run that others hang below, created with its name if there is none."""
        run = self._current(kind, key)
        if run is None:
            now = round(time.time() * 1000)
            empty = RunContents(
                name=name,
                kind=kind,
                key=key,
                started=now,
                ended=now,
                status="RUNNING",
                tags={},
                params={},
                metrics=[],
            )
            run = self._create(empty, parent)
        run_id: str = run.info.run_id
        return run_id

    def mark(self, kind: str, key: str, name: str, value: str) -> None:
        """Set a tag of the run of a kind, if there is one and it has another value."""
        run = self._current(kind, key)
        if run is not None and run.data.tags.get(name) != value:
            self.client.set_tag(run.info.run_id, name, value)

    def write_trial(self, trial: str, parent: str, *, name: str, repeats: int) -> bool:
        """Make a trial's run show its record; return whether it did not before.

        A run that shows an earlier record of the trial stays, and says which one is newer. `name` is
        that of the cell, `parent` the id of its run.
        """
        trial_folder = self.folder.trial_folder(trial)
        digest = hashlib.sha256(trial_folder.record_path.read_bytes()).hexdigest()
        run = self._current("trial", trial)
        if run is not None and run.data.tags.get(RECORD_TAG) == digest and is_complete_run(run):
            self._store_exports(run, trial)
            return False
        record = read_record(trial_folder.record_path)
        contents = trial_contents(record, cell_name=name, repeats=repeats)
        earlier = None
        if run is None or run.data.tags.get(RECORD_TAG) != digest:
            earlier, run = run, self._create(contents, parent, {RECORD_TAG: digest})
        with staging(self.folder.results.delivery_folder) as aside:
            collect_files(record, trial_folder, aside)
            self.client.log_artifacts(run.info.run_id, str(aside))
        self.client.log_inputs(run.info.run_id, datasets(record.trial.cell.workload))
        reproduce = {REPRODUCE_TAG: f"harness reproduce mlflow:{run.info.run_id}"}
        self._show(run, contents, parent, {RECORD_TAG: digest, **reproduce})
        if earlier is not None:
            self.client.set_tag(earlier.info.run_id, SUPERSEDED_TAG, run.info.run_id)
        self._store_exports(run, trial)
        return True

    def store(
        self,
        run: KnownRun,
        tag: str,
        version: str,
        write: Callable[[Path], None],
        folder: str | None = None,
    ) -> None:
        """Store files with a run, in a folder of its artifacts, unless `tag` has this version of them.

        `write` writes them into the folder that it is given. The tag is set after they are stored.
        """
        if run.tags.get(tag) == version:
            return
        with staging(self.folder.results.delivery_folder) as aside:
            write(aside)
            self.client.log_artifacts(run.id, str(aside), folder)
        self.client.set_tag(run.id, tag, version)

    def _store_exports(self, run: Run, trial: str) -> None:
        """Store what was exported of a trial's model with its run, unless it is there already."""
        from mlflow.entities import Metric

        trial_folder = self.folder.trial_folder(trial)
        export = read_export(trial_folder)
        known = KnownRun(id=run.info.run_id, tags=dict(run.data.tags))
        if export is None or known.tags.get(EXPORT_TAG) == str(export.at):
            return
        at = round(export.at * 1000)
        metrics = []
        for name, value in export_metrics(export).items():
            metrics.append(Metric(metric_name(name), value, at, 0))
        self.client.log_batch(known.id, metrics, synchronous=True)

        def collect(aside: Path) -> None:
            collect_export(export, trial_folder, aside)

        self.store(known, EXPORT_TAG, str(export.at), collect, trial_folder.export_folder.name)

    def _current(self, kind: str, key: str) -> Run | None:
        """Return the run that shows what holds now, the newest one that is not superseded."""
        for run in self._runs.get((kind, key), ()):
            if SUPERSEDED_TAG not in run.data.tags:
                return run
        return None

    def _create(
        self, contents: RunContents, parent: str | None, extra_tags: Mapping[str, str] | None = None
    ) -> Run:
        """Create a run that has its name and tags, but shows nothing else yet."""
        created = self.client.create_run(
            self.experiment_id,
            start_time=contents.started,
            tags=self._tags(contents, parent) | dict(extra_tags or {}),
            run_name=contents.name,
        )
        self._runs.setdefault((contents.kind, contents.key), []).insert(0, created)
        return created

    def _show(
        self,
        run: Run,
        contents: RunContents,
        parent: str | None,
        extra_tags: Mapping[str, str],
    ) -> None:
        """Send the metrics, params and tags that the run lacks or that have changed, at once.

        A param cannot be changed in MLflow, and need not be: params follow from the cell's id. Tags of
        ours that no longer hold are deleted. The final status comes last: then a run is complete.
        """
        from mlflow.entities import Param, RunTag

        present = run.data.tags
        tags = self._tags(contents, parent) | dict(extra_tags)
        tags |= _description_tags(present, contents.description)
        names = {metric.key for metric in contents.metrics}
        stale = [name for name in run.data.metrics if _is_ours(name) and name not in names]
        if stale:
            tags[STALE_TAG] = " ".join(sorted(stale))[:VALUE_LENGTH]
        logged = run.data.metrics
        metrics = [metric for metric in contents.metrics if logged.get(metric.key) != metric.value]
        lacking = contents.params.keys() - run.data.params.keys()
        params = [Param(name, contents.params[name]) for name in sorted(lacking)]
        changed = [RunTag(key, text) for key, text in tags.items() if present.get(key) != text]
        if metrics or params or changed:
            self.client.log_batch(run.info.run_id, metrics, params, changed, synchronous=True)
        for name in _outdated_tags(present, tags):
            self.client.delete_tag(run.info.run_id, name)
        if run.info.run_name != contents.name:
            self.client.update_run(run.info.run_id, name=contents.name)
        self._set_status(run, contents)

    def _set_status(self, run: Run, contents: RunContents) -> None:
        """Give a run its status and end, unless it has them."""
        if contents.status == "RUNNING":
            if run.info.status != "RUNNING":
                self.client.update_run(run.info.run_id, status="RUNNING")
        elif (run.info.status, run.info.end_time) != (contents.status, contents.ended):
            self.client.set_terminated(run.info.run_id, contents.status, contents.ended)

    def _tags(self, contents: RunContents, parent: str | None) -> dict[str, str]:
        """Return a run's tags: those of its contents, and those by which it is found again."""
        tags = {
            **contents.tags,
            "harness.kind": contents.kind,
            "harness.sweep": self.folder.path.name,
            "harness.origin": self.origin,
            f"harness.{contents.kind}": contents.key,
            "mlflow.user": _user(),
            "mlflow.source.type": "LOCAL",
            "mlflow.source.name": self.source,
        }
        if parent:
            tags[PARENT_TAG] = parent
        return tags


def _is_ours(metric: str) -> bool:
    """Return whether a metric is one that the harness logs on runs of cells and sweeps."""
    return metric.startswith(("harness.", "trials_", "cells_")) or is_number(metric)


def _description_tags(present: Mapping[str, str], description: str | None) -> dict[str, str]:
    """Return the tags of a run's description, none where somebody has written another one."""
    if description is None:
        return {}
    text = description[:VALUE_LENGTH]
    written = present.get(DESCRIPTION_TAG)
    if written and text_digest(written) != present.get(OUR_NOTE_TAG):
        return {}
    return {DESCRIPTION_TAG: text, OUR_NOTE_TAG: text_digest(text)}


def _outdated_tags(present: Collection[str], tags: Mapping[str, str]) -> list[str]:
    """Return the names of our tags that a run has and should no longer have."""
    return [
        name
        for name in present
        if name.startswith("harness.") and name not in tags and name not in KEPT_TAGS
    ]


def search(client: MlflowClient, experiment_id: str, filter_string: str) -> Iterator[Run]:
    """Yield all runs that match an MLflow filter, the newest first, however many there are."""
    token = None
    while True:
        answer = client.search_runs(
            [experiment_id], filter_string, max_results=PAGE_SIZE, page_token=token
        )
        yield from answer
        token = answer.token
        if not token:
            return


def datasets(workload: WorkloadRef) -> Sequence[DatasetInput]:
    """Return the training set and the test set of a workload as MLflow describes them.

    Both come from the same files, so that they share a digest and differ in their names. The digest
    is that of the files, or of the settings where a data set needs no files.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    settings = json.dumps(dict(workload.data), sort_keys=True)
    files = {
        axis: digest for axis, digest in workload.file_digests.items() if axis.startswith("data.")
    }
    digest = text_digest(json.dumps(files, sort_keys=True) if files else settings)
    name = Path(str(workload.data.get("source", workload.label))).name
    inputs = []
    for part, context in (("train", "training"), ("test", "evaluation")):
        dataset = Dataset(
            name=f"{name} {part}",
            digest=digest[:16],
            source_type="local",
            source=settings,
        )
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
    return inputs


def is_complete_run(run: Any) -> bool:
    """Return whether a trial's run shows all of its record: its final status is written last.

    A run that a dead delivery left behind is still running.
    """
    return bool(run.info.status != "RUNNING")


def _user() -> str:
    """Return the name of the user, or the user's id where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container; Python 3.13 raises OSError
        return str(os.getuid())
