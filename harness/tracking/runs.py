"""The runs of one sweep in MLflow: found by their tags, and brought up to date where they differ.

MLflow itself is asked what it has, as nothing about deliveries is stored elsewhere. Every write can
be the last one before the process dies. So each run carries tags that say what it shows, written
after what they speak of, and the next delivery completes whatever an earlier one left unfinished.

No run is ever deleted: a user may have tagged it, described it or linked to it. Metrics of ours that
no longer hold become NaN, and a run of a trial that has run again says which one is newer.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.files import open_log, read_tail
from harness.core.paths import SweepFolder, TrialFolder
from harness.records.files import read_record
from harness.records.record import Record
from harness.tracking.contents import (
    VALUE_LENGTH,
    Point,
    RunContents,
    text_digest,
    trial_contents,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PAGE_SIZE = 250  # runs in one answer to a search
LOG_BYTES = 2**20  # at most, of the end of each log
FILE_BYTES = 2**28  # at most, of a profiler's trace
DESCRIPTION_TAG = "mlflow.note.content"  # what MLflow shows above all, in Markdown
PARENT_TAG = "mlflow.parentRunId"
RECORD_TAG = "harness.record"  # on a trial's run: the digest of the record that it shows
FILES_TAG = "harness.files"  # on a sweep's run: the digest of the files stored with it
METRICS_TAG = "harness.metrics"  # on the run of a cell or a sweep: the names of its metrics of ours
SUPERSEDED_TAG = "harness.superseded"  # on a run: the id of the one that shows what holds now
NOTE_TAG = "harness.note"  # the digest of the description that we have written
PLANNED_TAG = "harness.planned"  # on a cell's run: `no` once the sweep has the cell no longer
# Those that do not come from a run's contents.
KEPT_TAGS = (RECORD_TAG, FILES_TAG, NOTE_TAG, SUPERSEDED_TAG)


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
        # By kind (sweep, cell, trial) and key within the kind, the one that holds now: the newest that
        # is not superseded.
        self._runs: dict[tuple[str, str], Run] = {}

    def find(self, condition: str = "") -> None:
        """Ask MLflow for the runs of this results folder, those that match a filter of MLflow's."""
        query = f"tags.`harness.origin` = '{self.origin}'{condition}"
        for run in search(self.client, self.experiment_id, query):
            tags = run.data.tags
            if SUPERSEDED_TAG in tags:
                continue
            kind = tags.get("harness.kind", "")
            key = tags.get(f"harness.{kind}", "")
            newest = self._runs.setdefault((kind, key), run)
            if newest.info.run_id != run.info.run_id:  # a delivery died before it had said so
                self.client.set_tag(run.info.run_id, SUPERSEDED_TAG, newest.info.run_id)

    def update(self, contents: RunContents, parent: str | None) -> Run:
        """Make the run of a cell or a sweep show its contents, created if there is none."""
        run = self._runs.get((contents.kind, contents.key))
        if run is None:
            run = self._create(contents, parent, {})
        names = [metric.key for metric in contents.metrics]
        now = round(time.time() * 1000)
        stale = []
        logged = run.data.tags.get(METRICS_TAG, "")
        for name in logged.split():
            if name not in names:
                stale.append(Point(name, math.nan, now))
        extra_tags = {METRICS_TAG: " ".join(names)}
        self._show(run, contents, parent, extra_tags, stale)
        return run

    def mark_unplanned(self, cells: Mapping[str, str]) -> None:
        """Mark the runs of cells other than these, which the sweep no longer has."""
        for (kind, key), run in self._runs.items():
            is_planned = kind != "cell" or key in cells
            if not is_planned and run.data.tags.get(PLANNED_TAG) != "no":
                self.client.set_tag(run.info.run_id, PLANNED_TAG, "no")

    def write_trial(
        self,
        trial: str,
        parent: str | None,
        cell_name: str,
        repeats: int,
    ) -> bool:
        """Make a trial's run show its record; return whether it did not before.

        A run that shows an earlier record of the trial stays, and says which one is newer. `parent` is
        the id of the cell's run, which there is none of while the sweep runs.
        """
        trial_folder = self.folder.trial_folder(trial)
        content = trial_folder.record_path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        run = self._runs.get(("trial", trial))
        if run is not None and run.data.tags.get(RECORD_TAG) != digest:
            run = None  # it shows an earlier record
        # The final status is written last: the run that a dead delivery left behind is still running.
        if run is not None and run.info.status != "RUNNING":
            if parent is not None and run.data.tags.get(PARENT_TAG) != parent:
                self.client.set_tag(run.info.run_id, PARENT_TAG, parent)
            return False
        record = read_record(trial_folder.record_path)
        contents = trial_contents(record, cell_name, repeats)
        extra_tags = {RECORD_TAG: digest}
        if run is None:
            run = self._create(contents, parent, extra_tags)
        self._upload(run, record, trial_folder)
        self._show(run, contents, parent, extra_tags)
        return True

    def store_texts(self, run: Run, texts: Mapping[str, str]) -> None:
        """Store texts with a run, by their files' names, unless it has them."""
        digest = text_digest(json.dumps(texts))
        if run.data.tags.get(FILES_TAG) != digest:
            for name, text in texts.items():
                self.client.log_text(run.info.run_id, text, name)
            self.client.set_tag(run.info.run_id, FILES_TAG, digest)

    def _upload(self, run: Run, record: Record, trial_folder: TrialFolder) -> None:
        """Store the files that go with a trial's run, of bounded size.

        They are the record, the environment, the end of the launcher's log, of
        rank 0's and of that of the rank that failed, and what the profiler left.
        """
        run_id = run.info.run_id
        path = trial_folder.record_path
        for file in (path, *path.parent.glob("record-*.npz")):
            self.client.log_artifact(run_id, str(file))
        if record.environment:
            environment = json.dumps(asdict(record.environment), indent=1)
            self.client.log_text(run_id, f"{environment}\n", "environment.json")
        logs = {trial_folder.launch_log, trial_folder.rank_log(0)}
        if record.failure and record.failure.log:
            logs.add(trial_folder.path / record.failure.log)
        for log in filter(Path.exists, logs):
            self.client.log_text(run_id, tail_of(log), f"logs/{log.name}")
        self._store_files(run, trial_folder.trace_folder)

    def _store_files(self, run: Run, folder: Path) -> None:
        """Store the files of a folder with a run; those that are too large are only in the folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size <= FILE_BYTES:
                target = path.parent.relative_to(folder.parent)
                self.client.log_artifact(run.info.run_id, str(path), str(target))

    def _create(
        self,
        contents: RunContents,
        parent: str | None,
        extra_tags: Mapping[str, str],
    ) -> Run:
        """Create a run that has its name and tags, but shows nothing else yet.

        An earlier run of the same is told which one is newer.
        """
        earlier = self._runs.get((contents.kind, contents.key))
        created = self.client.create_run(
            self.experiment_id,
            start_time=contents.started,
            tags=self._tags(contents, parent, extra_tags),
            run_name=contents.name,
        )
        if earlier is not None:
            self.client.set_tag(earlier.info.run_id, SUPERSEDED_TAG, created.info.run_id)
        self._runs[contents.kind, contents.key] = created
        return created

    def _show(
        self,
        run: Run,
        contents: RunContents,
        parent: str | None,
        extra_tags: Mapping[str, str],
        stale: Sequence[Point] = (),
    ) -> None:
        """Send the metrics, params and tags that the run lacks or that have changed, at once.

        A param cannot be changed in MLflow, and need not be: params follow from the cell's id. Tags of
        ours that no longer hold are deleted. The final status comes last: then a run is complete.
        """
        present = run.data
        tags = self._tags(contents, parent, extra_tags)
        if contents.description:
            tags |= note_tags(present.tags, contents.description)
        points = []
        for point in contents.metrics:
            if present.metrics.get(point.key) != point.value:
                points.append(point)
        new_params = {}
        for name, text in contents.params.items():
            if name not in present.params:
                new_params[name] = text
        changed_tags = {}
        for name, text in tags.items():
            if present.tags.get(name) != text:
                changed_tags[name] = text
        self._log(run, [*points, *stale], new_params, changed_tags)
        for name in present.tags:
            if name.startswith("harness.") and name not in {*tags, *KEPT_TAGS}:
                self.client.delete_tag(run.info.run_id, name)
        self._set_status(run, contents)

    def _set_status(self, run: Run, contents: RunContents) -> None:
        """Give a run its name, its status and the time of its end, where they differ."""
        info = run.info
        if info.run_name != contents.name:
            self.client.update_run(info.run_id, name=contents.name)
        if contents.status == "RUNNING":
            if info.status != "RUNNING":
                self.client.update_run(info.run_id, status="RUNNING")
        elif (info.status, info.end_time) != (contents.status, contents.ended):
            self.client.set_terminated(info.run_id, contents.status, contents.ended)

    def _log(
        self,
        run: Run,
        points: Sequence[Point],
        params: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        """Send metrics, params and tags, if there are any."""
        from mlflow.entities import Metric, Param, RunTag

        if not (points or params or tags):
            return
        self.client.log_batch(
            run.info.run_id,
            list(starmap(Metric, points)),
            list(starmap(Param, params.items())),
            list(starmap(RunTag, tags.items())),
            synchronous=True,
        )

    def _tags(
        self,
        contents: RunContents,
        parent: str | None,
        extra_tags: Mapping[str, str],
    ) -> dict[str, str]:
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
        return {**tags, **extra_tags}


def note_tags(present: Mapping[str, str], description: str) -> dict[str, str]:
    """Return the tags of a description, none where somebody has written another one."""
    written = present.get(DESCRIPTION_TAG)
    if written and text_digest(written) != present.get(NOTE_TAG):
        return {}
    text = description[:VALUE_LENGTH]
    return {DESCRIPTION_TAG: text, NOTE_TAG: text_digest(text)}


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


def tail_of(log: Path) -> str:
    """Return the last LOG_BYTES bytes of a log, from the beginning of a line.

    A log that is cut begins with a line that says so. Of one that leads out of the trial's folder
    there is only a line that says that. Bytes that are no UTF-8 are replaced.
    """
    try:
        with open_log(log) as file:
            size = os.fstat(file.fileno()).st_size
            text = read_tail(file, LOG_BYTES)
    except OSError as error:
        return f"[left out: {error.strerror}]\n"
    if size <= LOG_BYTES:
        return text
    whole_lines = text.partition("\n")[2]
    return f"[the last {LOG_BYTES} of {size} bytes]\n{whole_lines}"


def _user() -> str:
    """Return the name of the user, or the user's id where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container; Python 3.13 raises OSError
        return str(os.getuid())
