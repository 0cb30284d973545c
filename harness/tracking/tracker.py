"""Delivers records to MLflow.

A record is on disk before it is delivered, so that a store that is down costs no trial: the same
delivery can be made later. What was delivered already is asked of MLflow itself.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.parity import read_known_parity
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput
from harness.core.files import lock_file
from harness.core.paths import Results, SweepFolder
from harness.records.store import RecordedSweep, read_recorded_sweep, read_spec
from harness.sweep.sweep import Sweep
from harness.tracking.connect import TrackerDown, check_uri, connect, is_server, local_uri
from harness.tracking.contents import cell_contents, sweep_contents, sweep_description
from harness.tracking.pages import VIEW_TAG, experiment_tags, page
from harness.tracking.runs import SweepRuns, note_tags
from harness.view.names import cell_names
from harness.view.report import render

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

LOCK_TIMEOUT = 120.0  # seconds that another delivery from the same results folder is waited for
ORIGIN_LENGTH = 32  # characters of the id of a results folder, a UUID


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a delivery did, and where to find it."""

    delivered: int  # trials that were written
    already_delivered: int  # trials whose runs were complete before
    experiment_id: str


class Tracker:
    """One MLflow store: `uri`, or by default the SQLite database in the results folder."""

    def __init__(self, results: Results, uri: str | None = None) -> None:
        """Raise BadInput for a URI that no store can have. Connects to nothing yet."""
        self.results = results
        self.is_local = not uri
        self.uri = uri or local_uri(results.database)
        check_uri(self.uri)
        self._client: MlflowClient | None = None

    def deliver(self, folder: SweepFolder) -> Delivery:
        """Bring everything that MLflow shows of a sweep up to date: trials, cells, verdicts, the report.

        Delivering again adds nothing; a delivery that was cut off is completed. Raises TrackerDown if
        MLflow does not take the delivery, BadInput for a folder without a record.
        """
        recorded = self._recorded_sweep(folder)
        sweep, records = recorded.sweep, recorded.records
        result = SweepResult.of_records(sweep, records)
        parity = read_known_parity(folder, result.cells)
        names = cell_names(result.all_cells, with_workload=True)
        delivered = 0
        with self._session(folder, sweep) as (client, experiment, runs):
            runs.find()
            sweep_run = runs.update(sweep_contents(result, records), None)
            for cell in result.cells:
                name = names[cell.cell.id]
                of_cell = result.records.get(cell.cell.id, ())
                if not of_cell:
                    continue
                contents = cell_contents(result, cell, of_cell, name=name, parity=parity)
                cell_run = runs.update(contents, sweep_run.info.run_id)
                run_id = cell_run.info.run_id
                for record in of_cell:
                    delivered += runs.write_trial(record.trial.id, run_id, name, sweep.repeats)
            runs.mark_unplanned(names)
            texts = {
                "sweep.json": folder.spec_path.read_text(encoding="utf-8"),
                "report.html": render(self.results, recorded),
            }
            runs.store_texts(sweep_run, texts)
            present = experiment.tags
            tags = experiment_tags(result, has_parity=parity is not None)
            tags |= note_tags(present, sweep_description(result, records))
            for tag, text in tags.items():
                if present.get(tag) != text:
                    client.set_experiment_tag(experiment.experiment_id, tag, text)
        return Delivery(
            delivered=delivered,
            already_delivered=len(records) - delivered,
            experiment_id=experiment.experiment_id,
        )

    def _recorded_sweep(self, folder: SweepFolder) -> RecordedSweep:
        """Return the sweep of a folder with its records; raises BadInput for a folder without one."""
        if folder.spec_path.exists():
            recorded = read_recorded_sweep(self.results, read_spec(folder).name)
            if recorded.records:
                return recorded
        raise BadInput(f"{folder.path}: found no record of a trial; allowed: a sweep that has run")

    def deliver_trials(self, folder: SweepFolder, trials: Iterable[str]) -> None:
        """Write the runs of some trials that have ended, while others still run.

        The runs of cells and the sweep, above them, follow with `deliver`. Raises TrackerDown.
        """
        sweep = read_spec(folder)
        names = cell_names(sweep.cells, with_workload=True)
        with self._session(folder, sweep) as (_, _, runs):
            for trial in trials:
                cell_id, _, _ = trial.rpartition("-s")
                name = names.get(cell_id)
                if name is not None:
                    runs.find(f" AND tags.`harness.trial` = '{trial}'")
                    runs.write_trial(trial, None, name, sweep.repeats)

    def prepare(self) -> None:
        """Create the store if it does not exist, before a server and a run both try to.

        Raises TrackerDown.
        """
        with self._lock():
            self._connect()

    def pages(self, base: str) -> dict[str, str]:
        """Return the address of each sweep's page below `base`, by the sweep's name.

        Raises TrackerDown.
        """
        experiments = self._connect().search_experiments(
            filter_string=f"tags.`{VIEW_TAG}` LIKE '%'", order_by=["name"]
        )
        addresses = {}
        for experiment in experiments:
            addresses[experiment.name] = page(experiment.experiment_id, base)
        return addresses

    def _connect(self) -> MlflowClient:
        """Return the client, made once: the first use of a database takes seconds."""
        if self._client is None:
            self._client = connect(self.uri)
        return self._client

    @contextmanager
    def _session(
        self, folder: SweepFolder, sweep: Sweep
    ) -> Iterator[tuple[MlflowClient, Experiment, SweepRuns]]:
        """Connect to the sweep's experiment, alone among the deliveries from this results folder."""
        uri = None if self.is_local else self.uri
        collect = self.results.collect_command(sweep.name, uri)
        try:
            with self._lock() as origin:
                client = self._connect()
                experiment = self._get_experiment(client, sweep.name)
                experiment_id = experiment.experiment_id
                source = sweep.source.name
                runs = SweepRuns(client, experiment_id, origin, folder, source)
                yield client, experiment, runs
        except TrackerDown as error:
            raise TrackerDown(f"{error}; `{collect}` delivers the results later") from None

    def _get_experiment(self, client: MlflowClient, name: str) -> Experiment:
        """Return the sweep's experiment, created if need be.

        One that somebody deleted keeps its name, so that no other can have it: TrackerDown says so.
        """
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            # A server decides itself where artifacts are stored; for a database we do.
            location = None
            if not is_server(self.uri):
                artifacts = self.results.artifacts / name
                location = artifacts.absolute().as_uri()
            experiment_id = client.create_experiment(name, artifact_location=location)
            return client.get_experiment(experiment_id)
        if experiment.lifecycle_stage == "deleted":
            raise TrackerDown(
                f"MLflow's experiment {name} was deleted; `mlflow experiments restore"
                f" --experiment-id {experiment.experiment_id}` brings it back"
            )
        return experiment

    @contextmanager
    def _lock(self) -> Iterator[str]:
        """Hold the lock on deliveries from this results folder; yield the folder's id.

        The id is stored in the lock file. Runs carry it as a tag, so that two folders can share a store.
        The lock keeps two processes from creating the same run: MLflow has no unique names. Raises
        TrackerDown if another process holds it for too long.
        """
        path = Path(f"{self.results.database}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(handle, "r+", encoding="ascii", errors="replace") as file:
            if not lock_file(file, LOCK_TIMEOUT):
                raise TrackerDown(
                    f"MLflow: waited {LOCK_TIMEOUT:g} s for {path}, which another command of this"
                    " results folder holds while it delivers; end that one, or wait for it"
                )
            origin = file.read()
            is_whole = len(origin) == ORIGIN_LENGTH and origin.isalnum()
            if not is_whole:  # empty or damaged
                origin = uuid.uuid4().hex
                file.seek(0)
                file.truncate()
                file.write(origin)
                file.flush()
            yield origin
