"""Many calls of MLflow as one transaction: what is seen of it, and what is undone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from harness.core.paths import Results
from harness.tracking import transaction as module
from harness.tracking.connect import connect, quiet
from harness.tracking.transaction import transaction
from tests.support.mlflow import Killed


@pytest.fixture
def client(results: Results) -> Iterator[MlflowClient]:
    with quiet():
        yield connect(f"sqlite:///{results.database}")


def runs_on_disk(results: Results) -> int:
    """Return how many runs another process sees."""
    with closing(sqlite3.connect(results.database)) as database:
        (count,) = database.execute("SELECT count(*) FROM runs").fetchone()
    return int(count)


def write_and_die(client: MlflowClient) -> None:
    with transaction(client):
        client.create_run("0")
        raise Killed


def test_writes_are_seen_together_and_undone_together(
    results: Results, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction(client) as writes:
        client.create_run("0")
        client.create_run("0")
        writes.checkpoint()  # too early to have an effect
        assert runs_on_disk(results) == 0
        monkeypatch.setattr(module, "MAX_SECONDS", 0)
        writes.checkpoint()
        assert runs_on_disk(results) == 2
    with pytest.raises(Killed):
        write_and_die(client)
    assert runs_on_disk(results) == 2
    client.create_run("0")
    assert runs_on_disk(results) == 3


def test_a_call_that_fails_undoes_only_itself(results: Results, client: MlflowClient) -> None:
    """MLflow logs a metric that is there already by failing first, and looking what is new."""
    metrics = [Metric("loss", 1.0, 1000, 1), Metric("loss", 0.5, 2000, 2)]
    with transaction(client):
        run_id = client.create_run("0", tags={"mlflow.runName": "mine"}).info.run_id
        client.log_batch(run_id, metrics[:1], [Param("lr", "0.1")])
        client.log_batch(run_id, metrics)
        with pytest.raises(MlflowException, match="Changing param values is not allowed"):
            client.log_batch(run_id, [Metric("speed", 3.0, 1000, 0)], [Param("lr", "0.2")])
        client.set_terminated(run_id)
    run = client.get_run(run_id)
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.1"})
    assert run.data.metrics == {"loss": 0.5}
    assert [metric.value for metric in client.get_metric_history(run_id, "loss")] == [1.0, 0.5]
