"""Inserts new runs into the tables of a local MLflow database, all rows of a table at once.

MLflow's calls ask for a run again in each call, and make an object of each row. That takes ten times
as long as the database does, and a run that is new has nothing that a row could contradict. The
tables are those of MLflow's own models; a test compares all rows with those that its calls write.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlflow.entities import LifecycleStage, RunStatus, SourceType
from mlflow.store.tracking.dbmodels.models import (
    SqlDataset,
    SqlInput,
    SqlInputTag,
    SqlLatestMetric,
    SqlMetric,
    SqlParam,
    SqlRun,
    SqlTag,
)
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME, MLFLOW_USER
from mlflow.utils.uri import append_to_uri_path
from sqlalchemy import Insert, insert, select

from harness.tracking.contents import Point
from harness.tracking.new_run import NewRun, RunData

if TYPE_CHECKING:
    from mlflow.entities import Dataset, DatasetInput
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import Connection

Row = Mapping[str, Any]
RUNNING = RunStatus.to_string(RunStatus.RUNNING)
# Made once, so that SQLAlchemy finds their text in its cache.
INSERT_RUN = insert(SqlRun)
INSERT_TAGS = insert(SqlTag)
INSERT_PARAMS = insert(SqlParam)
INSERT_METRICS = insert(SqlMetric)
INSERT_LATEST_METRICS = insert(SqlLatestMetric)
INSERT_DATASET = insert(SqlDataset)
INSERT_INPUTS = insert(SqlInput)
INSERT_INPUT_TAGS = insert(SqlInputTag)


class RunRows:
    """Inserts the rows of new runs through a connection, in whose transaction they are."""

    def __init__(self, store: SqlAlchemyStore, connection: Connection) -> None:
        self.store = store
        self.connection = connection
        self._dataset_ids: dict[tuple[str, str, str], str] = {}  # by experiment, name and digest

    def forget(self) -> None:
        """Forget what others may change once the transaction has ended."""
        self._dataset_ids.clear()

    def insert(self, statement: Insert, rows: Sequence[Row]) -> None:
        """Insert rows into a table, if there are any."""
        if rows:
            self.connection.execute(statement, rows)

    def insert_inputs(
        self, run_id: str, experiment_id: str, inputs: Sequence[DatasetInput]
    ) -> None:
        """Insert the data sets of a run, each of which an experiment has once."""
        rows: list[Row] = []
        tags: list[Row] = []
        for dataset_input in inputs:
            input_id = uuid.uuid4().hex
            rows.append(
                {
                    "input_uuid": input_id,
                    "source_type": "DATASET",
                    "source_id": self._dataset_id(experiment_id, dataset_input.dataset),
                    "destination_type": "RUN",
                    "destination_id": run_id,
                }
            )
            for tag in dataset_input.tags:
                tags.append({"input_uuid": input_id, "name": tag.key, "value": tag.value})
        self.insert(INSERT_INPUTS, rows)
        self.insert(INSERT_INPUT_TAGS, tags)

    def _dataset_id(self, experiment_id: str, dataset: Dataset) -> str:
        """Return the id of a data set, which is inserted if the experiment does not have it."""
        key = (experiment_id, dataset.name, dataset.digest)
        if key not in self._dataset_ids:
            stored_id = self.connection.scalar(
                select(SqlDataset.dataset_uuid).where(
                    SqlDataset.experiment_id == int(experiment_id),
                    SqlDataset.name == dataset.name,
                    SqlDataset.digest == dataset.digest,
                )
            )
            self._dataset_ids[key] = stored_id or self._insert_dataset(experiment_id, dataset)
        return self._dataset_ids[key]

    def _insert_dataset(self, experiment_id: str, dataset: Dataset) -> str:
        """Insert a data set and return its id."""
        dataset_id = uuid.uuid4().hex
        row = {
            "dataset_uuid": dataset_id,
            "experiment_id": int(experiment_id),
            "name": dataset.name,
            "digest": dataset.digest,
            "dataset_source_type": dataset.source_type,
            "dataset_source": dataset.source,
            "dataset_schema": dataset.schema,
            "dataset_profile": dataset.profile,
        }
        self.insert(INSERT_DATASET, [row])
        return dataset_id


class RowRun(NewRun):
    """A new run whose rows are inserted when it is complete, so that nobody sees it before."""

    def __init__(
        self,
        rows: RunRows,
        experiment_id: str,
        *,
        name: str,
        started: int,
        tags: Mapping[str, str],
    ) -> None:
        self.rows = rows
        self.experiment_id = experiment_id
        self.name = name
        self.started = started
        self.tags = tags
        self.id = new_id()
        store: Any = rows.store  # MLflow's functions have no types
        root = store.get_experiment(experiment_id).artifact_location
        join: Any = append_to_uri_path
        self.artifact_uri = join(root, self.id, store.ARTIFACTS_FOLDER_NAME)

    def complete(self, data: RunData) -> None:
        """Insert the rows of all tables, those first that others refer to."""
        insert_rows = self.rows.insert
        insert_rows(INSERT_RUN, [self._run_row(data)])
        tags = {**self.tags, **data.tags, MLFLOW_RUN_NAME: self.name}
        insert_rows(INSERT_TAGS, self._rows(tags))
        insert_rows(INSERT_PARAMS, self._rows(data.params))
        metrics = self._metric_rows(data.points)
        insert_rows(INSERT_METRICS, metrics)
        insert_rows(INSERT_LATEST_METRICS, latest(metrics))
        self.rows.insert_inputs(self.id, self.experiment_id, data.inputs)

    def _run_row(self, data: RunData) -> Row:
        """Return the row of the run itself, with the values that MLflow gives what it no longer uses."""
        return {
            "run_uuid": self.id,
            "name": self.name,
            "artifact_uri": self.artifact_uri,
            "experiment_id": int(self.experiment_id),
            "source_type": SourceType.to_string(SourceType.UNKNOWN),
            "source_name": "",
            "entry_point_name": "",
            "source_version": "",
            "user_id": self.tags[MLFLOW_USER],
            "status": data.status,
            "start_time": self.started,
            "end_time": None if data.status == RUNNING else data.ended,
            "deleted_time": None,
            "lifecycle_stage": LifecycleStage.ACTIVE,
        }

    def _rows(self, values: Mapping[str, str]) -> list[Row]:
        """Return the rows of tags or params."""
        return [
            {"key": name, "value": value, "run_uuid": self.id} for name, value in values.items()
        ]

    def _metric_rows(self, points: Sequence[Point]) -> list[Row]:
        """Return the rows of metrics; of equal points, which MLflow refuses, there is one."""
        rows: list[Row] = []
        for point in dict.fromkeys(points):
            is_nan, value = self.rows.store.sanitize_metric_value(float(point.value))
            rows.append(
                {
                    "key": point.name,
                    "value": value,
                    "timestamp": point.at,
                    "step": point.step,
                    "is_nan": is_nan,
                    "run_uuid": self.id,
                }
            )
        return rows


def new_id() -> str:
    """Return an id that no other run has, in MLflow's form; one made a millisecond later is greater.

    SQLite keeps each table sorted by the ids. Random ones would have each run change a page for each of
    its rows, which are more pages than its cache holds once there are thousands of runs. As in UUIDs of
    version 7 (RFC 9562), the first 48 bits are the time in milliseconds.
    """
    milliseconds = time.time_ns() // 1_000_000
    return f"{milliseconds:012x}{secrets.token_hex(10)}"


def latest(metrics: Sequence[Row]) -> list[Row]:
    """Return the row of each metric that MLflow shows as its value: of the last step.

    As in MLflow, the time decides between rows of the same step, and then the value.
    """
    rows: dict[str, Row] = {}
    for row in metrics:
        name = row["key"]
        if name not in rows or _age(row) > _age(rows[name]):
            rows[name] = row
    return list(rows.values())


def _age(metric: Row) -> tuple[int, int, float]:
    """Return what is greater in a later row of a metric."""
    return metric["step"], metric["timestamp"], metric["value"]
