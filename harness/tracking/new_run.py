"""A run that is made new: it has an id and a place for its files first, and then all that it shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.tracking.contents import Point

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

BATCH_SIZE = 900  # metric points in one request; MLflow takes 1,000 entities


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What a new run shows besides its name and the tags that it was made with."""

    points: Sequence[Point]
    params: Mapping[str, str]
    tags: Mapping[str, str]
    inputs: Sequence[DatasetInput]
    status: str  # MLflow's
    ended: int  # milliseconds since the epoch; of a run that is still running, it is not shown


class NewRun(ABC):
    """A run that shows nothing yet but its name and tags, if MLflow has it already."""

    id: str
    artifact_uri: str

    @abstractmethod
    def complete(self, data: RunData) -> None:
        """Have MLflow show all of the run; its final status comes last."""


class ClientRun(NewRun):
    """A new run that MLflow's client writes, as to a server: call by call."""

    def __init__(
        self,
        client: MlflowClient,
        experiment_id: str,
        *,
        name: str,
        started: int,
        tags: Mapping[str, str],
    ) -> None:
        created = client.create_run(
            experiment_id, start_time=started, tags=dict(tags), run_name=name
        )
        self.client = client
        self.id = created.info.run_id
        self.artifact_uri = created.info.artifact_uri

    def complete(self, data: RunData) -> None:
        """Send the data in as few requests as MLflow allows."""
        from mlflow.entities import Metric, Param, RunTag

        if data.inputs:
            self.client.log_inputs(self.id, list(data.inputs))
        metrics = [Metric(point.name, point.value, point.at, point.step) for point in data.points]
        params = [Param(name, value) for name, value in data.params.items()]
        tags = [RunTag(name, value) for name, value in data.tags.items()]
        self.client.log_batch(self.id, metrics[:BATCH_SIZE], params, tags, synchronous=True)
        for start in range(BATCH_SIZE, len(metrics), BATCH_SIZE):
            self.client.log_batch(self.id, metrics[start : start + BATCH_SIZE], synchronous=True)
        if data.status != "RUNNING":
            self.client.set_terminated(self.id, data.status, data.ended)
