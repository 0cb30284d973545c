"""Delivers records to MLflow and gets them back. The tracker itself is asked what it has: nothing is kept here."""

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder, safe_folder_name
from harness.records.record import Record, read_record
from harness.tracking.connect import (
    FIRST_ANSWER,
    check_exists,
    check_uri,
    connect,
    in_one_line,
    is_server,
    quiet,
)
from harness.tracking.contents import Outline, digest_of, is_complete
from harness.tracking.pages import VIEW_TAG, experiment_tags, page
from harness.tracking.recall import records_of
from harness.tracking.runs import Runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a delivery came to, and where it is found."""

    delivered: int  # trials
    already_delivered: int  # trials that were there before
    experiment_id: str
    run_id: str  # of the sweep's own run


class Tracker:
    """One MLflow store: `uri`, or the SQLite database in the results folder."""

    def __init__(self, results: Results, uri: str | None = None) -> None:
        """Raises BadInput for a URI that no tracker can have; connects to nothing yet."""
        self.results = results
        self.uri = uri or f"sqlite:///{results.database.absolute()}"
        check_uri(self.uri)
        self._client: MlflowClient | None = None

    def deliver(self, folder: SweepFolder, records: Sequence[Record] | None = None) -> Delivery:
        """Bring to the tracker what it lacks of `records`, or of all in the folder, with their cells and the sweep.

        Doing it again adds nothing; what was cut off is completed; a trial that has run again replaces its older run.
        Raises TrackerDown if the tracker does not take it, BadInput for a record that can't be read or a folder
        without any.
        """
        with self._alone() as origin:
            outlines, spec = read_outlines(folder), _read_spec(folder)
            name = spec.get("name") or outlines[0].sweep
            with quiet(answer=FIRST_ANSWER), in_one_line(self.uri, untaken(name)):
                client = self._client = self._client or connect(self.uri)
                experiment, restored = self._experiment(client, name)
            known = {record.trial.id: record for record in records or ()}
            chosen = [outline for outline in outlines if records is None or outline.trial in known]
            with quiet(), in_one_line(self.uri, untaken(name)):
                runs = Runs(client, experiment.experiment_id, origin, name, folder, spec)
                whole = records is None or restored or is_complete(outlines, spec.get("trials", ()))
                cells = None if whole else {outline.cell_id for outline in chosen}
                runs.find(cells)
                run_id, delivered = runs.deliver(outlines, chosen, known)
                for key, value in experiment_tags(outlines).items():
                    if experiment.tags.get(key) != value:
                        client.set_experiment_tag(experiment.experiment_id, key, value)
        return Delivery(
            delivered=delivered,
            already_delivered=len(chosen) - delivered,
            experiment_id=experiment.experiment_id,
            run_id=run_id,
        )

    def prepare(self) -> None:
        """Create the store if it isn't there, so that nobody else does at the same time. Raises TrackerDown."""
        with self._alone(), quiet(answer=FIRST_ANSWER), in_one_line(self.uri, "can't be opened"):
            self._client = self._client or connect(self.uri)

    def pages(self, base: str) -> dict[str, str]:
        """The address of each sweep's page, by the sweep's name. Raises TrackerDown."""
        with quiet(answer=FIRST_ANSWER), in_one_line(self.uri, "can't be opened"):
            client = self._client = self._client or connect(self.uri)
            found = client.search_experiments(
                filter_string=f"tags.`{VIEW_TAG}` LIKE '%'", order_by=["name"]
            )
        return {experiment.name: page(experiment.experiment_id, base=base) for experiment in found}

    def recall(self, run_id: str) -> list[Record]:
        """The records that a run was made from: its own for a trial's, those of all its trials for a cell's or a
        sweep's. Raises BadInput for a run that has none of this schema, or that can't be read."""
        check_exists(self.uri)
        with quiet(), in_one_line(self.uri, f"does not give run {run_id}", BadInput):
            client = self._client = self._client or connect(self.uri)
            return records_of(client, run_id)

    def _experiment(self, client: MlflowClient, name: str) -> tuple[Experiment, bool]:
        """The sweep's experiment, and whether it had been deleted."""
        found = client.get_experiment_by_name(name)
        if found is None:
            place = (
                None
                if is_server(self.uri)
                else (self.results.artifacts / safe_folder_name(name)).absolute().as_uri()
            )
            return client.get_experiment(
                client.create_experiment(name, artifact_location=place)
            ), False
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
            return found, True
        return found, False

    @contextmanager
    def _alone(self) -> Iterator[str]:
        """One delivery from this results folder at a time; yields the id by which runs from here are known."""
        path = Path(f"{self.results.database}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            origin = file.read().strip()
            if not origin:
                origin = uuid.uuid4().hex
                file.write(origin)
                file.flush()
            yield origin


def untaken(sweep: str) -> str:
    """What is to be said where the tracker fails a delivery."""
    return f"did not take the results; `harness collect {sweep}` delivers them later"


def read_outlines(folder: SweepFolder) -> list[Outline]:
    """Of every record in the folder. Raises BadInput if one can't be read or there is none."""
    outlines = []
    for path in folder.record_paths():
        found = path.stat()
        outlines.append(_outline(path, found.st_mtime_ns, found.st_size))
    if not outlines:
        raise BadInput(f"{folder.path}: holds no record of a trial")
    return outlines


@lru_cache(maxsize=100_000)
def _outline(path: Path, changed: int, size: int) -> Outline:
    """Read once for as long as the file stays as it is."""
    return Outline.of(read_record(path), digest_of(path.read_bytes()))


def _read_spec(folder: SweepFolder) -> dict[str, Any]:
    """What the sweep asked for; empty if that isn't known."""
    if not folder.spec_path.exists():
        return {}
    try:
        spec: dict[str, Any] = json.loads(folder.spec_path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder.spec_path}: can't be read as a sweep: {error}") from None
    return spec
