"""Delivers records to MLflow.

A record is on disk before it is delivered, so that a store that is down costs no trial: the same
delivery can be made later. What was delivered already is asked of MLflow itself.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.cells import group_by_cell
from harness.analysis.parity import SweepParity, read_known_parity
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput
from harness.core.locks import lock_file
from harness.core.paths import Results, SweepFolder
from harness.records.store import RecordedSweep, read_recorded_sweep, read_spec
from harness.render.format import cell_names
from harness.render.html.report import render
from harness.spec.sweep import Sweep
from harness.tracking.connect import (
    CONNECT_TIMEOUT,
    StoreLocked,
    TrackerDown,
    check_uri,
    connect,
    errors_in_one_line,
    is_server,
    local_uri,
    quiet,
)
from harness.tracking.contents import (
    cell_contents,
    sweep_contents,
    sweep_description,
    text_digest,
)
from harness.tracking.pages import PLANNED_TAG, VIEW_TAG, experiment_tags, page
from harness.tracking.runs import FILES_TAG, KnownRun, SweepRuns

# What a delivery imports sooner or later.
LIBRARIES = (
    "mlflow.store.tracking.sqlalchemy_store",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
)
LOCK_TIMEOUT = 120.0  # seconds that another delivery from the same results folder is waited for
# Seconds that a local database is waited for which another program has locked, once no trial waits.
# SQLite itself waits for some 10 s each time.
LOCKED_TIMEOUT = 120.0
LOCKED_PAUSE = 1.0  # seconds between two tries

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a delivery did, and where to find it."""

    delivered: int  # trials that were written
    already_delivered: int  # trials whose runs were complete before
    experiment_id: str
    run_id: str  # of the sweep's own run


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

        Delivering again adds nothing; a delivery that was cut off is completed. A database that
        another program has locked is waited for. Raises TrackerDown if MLflow does not take the
        delivery, BadInput for a folder without a record.
        """
        deadline = time.monotonic() + LOCKED_TIMEOUT
        while True:
            try:
                return self._deliver(folder)
            except StoreLocked as error:
                if time.monotonic() > deadline:
                    raise StoreLocked(f"{error}; waited {LOCKED_TIMEOUT:g} s") from None
                time.sleep(LOCKED_PAUSE)

    def _deliver(self, folder: SweepFolder) -> Delivery:
        """Deliver once."""
        recorded = None
        if folder.spec_path.exists():
            recorded = read_recorded_sweep(self.results, read_spec(folder).name)
        if recorded is None or not recorded.records:
            raise BadInput(
                f"{folder.path}: found no record of a trial; allowed: a sweep that has run"
            )
        result = SweepResult.of_records(recorded.sweep, recorded.records)
        parity = read_known_parity(folder, result.cells)
        with self._session(folder, recorded.sweep) as (client, experiment, runs):
            runs.find()
            sweep_run = runs.update(sweep_contents(result, recorded.records), None)
            delivered = self._deliver_cells(runs, recorded, result, parity, sweep_run)
            self._store_files(runs, sweep_run, folder, recorded)
            description = sweep_description(result, recorded.records)
            present = client.get_experiment(experiment.experiment_id).tags
            tags = experiment_tags(present, result, description, has_parity=parity is not None)
            for name, value in tags.items():
                if present.get(name) != value:
                    client.set_experiment_tag(experiment.experiment_id, name, value)
        return Delivery(
            delivered=delivered,
            already_delivered=len(recorded.records) - delivered,
            experiment_id=experiment.experiment_id,
            run_id=sweep_run.id,
        )

    def _deliver_cells(
        self,
        runs: SweepRuns,
        recorded: RecordedSweep,
        result: SweepResult,
        parity: SweepParity | None,
        sweep_run: KnownRun,
    ) -> int:
        """Bring the runs of all cells and of their trials up to date; return how many trials were not.

        Cells that the sweep no longer has stay, marked as such.
        """
        names = cell_names(result.all_cells, with_workload=True)
        by_cell = group_by_cell(recorded.records)
        delivered = 0
        for cell_result in result.cells:
            cell = cell_result.cell
            records = by_cell.get(cell.id, [])
            if not records:
                continue
            contents = cell_contents(
                result, cell_result, records, name=names[cell.id], parity=parity
            )
            run = runs.update(contents, sweep_run.id, {PLANNED_TAG: "yes"})
            for record in records:
                delivered += runs.write_trial(
                    record.trial.id, run.id, name=names[cell.id], repeats=recorded.sweep.repeats
                )
        for cell_id in set(runs.keys("cell")) - set(names):
            runs.mark("cell", cell_id, PLANNED_TAG, "no")
        return delivered

    def _store_files(
        self, runs: SweepRuns, sweep_run: KnownRun, folder: SweepFolder, recorded: RecordedSweep
    ) -> None:
        """Store the sweep's sweep.json and its report with its run."""
        spec = folder.spec_path.read_text(encoding="utf-8")
        report = render(self.results, recorded)

        def write(aside: Path) -> None:
            (aside / folder.spec_path.name).write_text(spec, encoding="utf-8")
            (aside / folder.report_path.name).write_text(report, encoding="utf-8")

        runs.store(sweep_run, FILES_TAG, text_digest(spec + report), write)

    def deliver_trials(self, folder: SweepFolder, trials: Iterable[str]) -> None:
        """Write the runs of some trials that have ended, while others still run.

        What the cells and the sweep have come to follows with `deliver`. Raises TrackerDown.
        """
        sweep = read_spec(folder)
        names = cell_names(sweep.cells, with_workload=True)
        of_cells: dict[str, list[str]] = {}  # those trials by the id of the cell
        for trial in trials:
            of_cells.setdefault(trial.rpartition("-s")[0], []).append(trial)
        with self._session(folder, sweep) as (_, _, runs):
            runs.find("tags.`harness.kind` = 'sweep'")
            sweep_id = runs.begin("sweep", sweep.name, sweep.name, None)
            for cell_id, of_cell in of_cells.items():
                if cell_id not in names:
                    continue
                runs.find(f"tags.`harness.cell` = '{cell_id}'")
                parent = runs.begin("cell", cell_id, names[cell_id], sweep_id)
                for trial in of_cell:
                    runs.write_trial(trial, parent, name=names[cell_id], repeats=sweep.repeats)

    def exists(self) -> bool:
        """Return whether the store is there already; only of the local database is it known."""
        return self.is_local and self.results.database.exists()

    def prepare(self) -> None:
        """Create the store if it does not exist, before a server and a run both try to.

        Raises TrackerDown.
        """
        with (
            self._lock(),
            quiet(timeout=CONNECT_TIMEOUT),
            errors_in_one_line(self.uri, "cannot be opened"),
        ):
            self._connect()

    def pages(self, base: str) -> dict[str, str]:
        """Return the address of each sweep's page below `base`, by the sweep's name.

        Raises TrackerDown.
        """
        with quiet(timeout=CONNECT_TIMEOUT), errors_in_one_line(self.uri, "cannot be opened"):
            experiments = self._connect().search_experiments(
                filter_string=f"tags.`{VIEW_TAG}` LIKE '%'", order_by=["name"]
            )
        addresses = {}
        for experiment in experiments:
            addresses[experiment.name] = page(experiment.experiment_id, base=base)
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
        """Connect to the sweep's experiment, alone among the deliveries from this results folder.

        What MLflow raises in the block is a TrackerDown of one line.
        """
        collect = self.results.collect_command(sweep.name, None if self.is_local else self.uri)
        trouble = f"did not take the results; `{collect}` delivers them later"
        with self._lock() as origin:
            with quiet(timeout=CONNECT_TIMEOUT), errors_in_one_line(self.uri, trouble):
                client = self._connect()
                experiment = self._get_experiment(client, sweep.name)
            with quiet(), errors_in_one_line(self.uri, trouble):
                id_, source = experiment.experiment_id, sweep.source.name
                yield client, experiment, SweepRuns(client, id_, origin, folder, source)

    def _get_experiment(self, client: MlflowClient, name: str) -> Experiment:
        """Return the sweep's experiment, created if need be.

        One that somebody deleted keeps its name, so that no other can have it: TrackerDown says so.
        """
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            # A server decides itself where artifacts are stored; for a database we do.
            location = None
            if not is_server(self.uri):
                location = (self.results.artifacts / name).absolute().as_uri()
            return client.get_experiment(client.create_experiment(name, artifact_location=location))
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
        with os.fdopen(handle, "r+", encoding="utf-8", errors="replace") as file:
            if not lock_file(file, LOCK_TIMEOUT):
                raise TrackerDown(
                    f"MLflow: waited {LOCK_TIMEOUT:g} s for {path}, which another command of this"
                    " results folder holds while it delivers; end that one, or wait for it"
                )
            origin = file.read(2 * len(uuid.uuid4().hex))
            if len(origin) != len(uuid.uuid4().hex) or not origin.isalnum():  # empty or damaged
                origin = uuid.uuid4().hex
                file.seek(0)
                file.write(origin)
                file.truncate()
                file.flush()
            yield origin


def load_libraries() -> None:
    """Load what deliveries need, which takes seconds; a delivery says what is wrong with it."""
    with suppress(Exception), quiet():
        for name in LIBRARIES:
            import_module(name)
