"""That rows which are inserted at once are those that MLflow's own calls write."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results
from harness.spec.cell import WorkloadRef
from harness.tracking import Tracker
from harness.tracking import tracker as tracker_module
from harness.tracking.connect import connect, quiet
from harness.tracking.contents import Point
from harness.tracking.new_run import RunData
from harness.tracking.run_rows import RunRows, new_id
from harness.tracking.runs import datasets
from harness.tracking.transaction import LocalTransaction, Transaction
from tests.factories import make_cell, make_record, write_sweep
from tests.support.mlflow import RUN_ID, Killed, everything

SINCE = time.time() * 1000  # milliseconds since the epoch, before any test
POINTS = [
    Point(name="loss", value=0.5, at=2000, step=2),
    Point(name="loss", value=1.0, at=1000, step=1),
    Point(name="loss", value=0.5, at=2000, step=2),
    Point(name="loss", value=0.4, at=1500, step=2),
    Point(name="speed", value=3, at=1000, step=0),
    Point(name="unknown", value=math.nan, at=1000, step=0),
    Point(name="unknown", value=-1.0, at=1000, step=0),
    Point(name="high", value=math.inf, at=1000, step=0),
    Point(name="low", value=-math.inf, at=1000, step=0),
    *[Point(name="curve", value=step / 7, at=1000 + step, step=step) for step in range(1000)],
]


def rows_by_table(database: Path) -> dict[str, list[str]]:
    """Return all rows of all tables as texts, sorted; ids and moments that differ are replaced."""
    with closing(sqlite3.connect(database)) as opened:
        tables = opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        names = dict(opened.execute("SELECT run_uuid, name FROM runs"))
        found = {}
        for (table,) in tables:
            rows = opened.execute(f"SELECT * FROM {table}").fetchall()
            found[table] = sorted(
                repr([_comparable(value, names) for value in row]) for row in rows
            )
    return found


def _comparable(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, int | float) and SINCE <= value <= time.time() * 1000:
        return "NOW"
    if isinstance(value, str):
        return RUN_ID.sub(lambda match: names.get(match[0], "ID"), value)
    return value


@pytest.mark.parametrize("status", ["RUNNING", "KILLED"])
def test_a_run_has_the_rows_that_mlflow_writes(tmp_path: Path, status: str) -> None:
    workload = make_cell().workload
    databases = []
    for is_local in (True, False):
        database = tmp_path / f"{is_local}.db"
        databases.append(database)
        with quiet():
            client = connect(f"sqlite:///{database}")
            experiment_id = client.create_experiment("demo", artifact_location="file:///demo")
            with (
                LocalTransaction(client) if is_local else nullcontext(Transaction(client)) as writes
            ):
                for name in ("first", "second"):  # which share the data sets
                    run = writes.create_run(
                        experiment_id, name=name, started=1000, tags={"mlflow.user": "me", "a": "b"}
                    )
                    assert run.artifact_uri == f"file:///demo/{run.id}/artifacts"
                    run.complete(_data(workload, status))
    rows = rows_by_table(databases[0])
    assert rows == rows_by_table(databases[1])
    counts = {table: len(rows[table]) for table in ("runs", "metrics", "datasets", "inputs")}
    assert counts == {"runs": 2, "metrics": 2 * 1008, "datasets": 2, "inputs": 4}


def _data(workload: WorkloadRef, status: str) -> RunData:
    return RunData(
        points=POINTS,
        params={"lr": "0.1", "precision": "fp32"},
        tags={"note": "häßlich"},
        inputs=datasets(workload, str),
        status=status,
        ended=9000,
    )


def test_ids_grow_with_time() -> None:
    ids = []
    for _ in range(5):
        ids.append(new_id())
        time.sleep(0.002)
    assert ids == sorted(ids)
    assert all(RUN_ID.fullmatch(id_) for id_ in ids)


def test_a_sweep_has_the_rows_that_mlflow_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path)
    folder = results.sweep_folder("demo")
    failed = make_record(seed=1, status="failed")
    write_sweep(folder, [make_record(), failed, make_record(make_cell(precision="bf16"))])
    databases = tmp_path / "rows.db", tmp_path / "calls.db"
    Tracker(results, f"sqlite:///{databases[0]}").deliver(folder)
    monkeypatch.setattr(
        tracker_module, "transaction", lambda client: nullcontext(Transaction(client))
    )
    Tracker(results, f"sqlite:///{databases[1]}").deliver(folder)
    rows, expected = map(rows_by_table, databases)
    # Digests of texts that name runs.
    del rows["experiment_tags"], expected["experiment_tags"]
    assert rows == expected
    assert len(rows["runs"]) == 6


def test_a_death_between_statements_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of them in turn; then the delivery is completed as if nothing had happened."""
    records = [make_record(), make_record(seed=1)]
    planned = [make_record(seed=2).trial]  # so that there are no verdicts and pictures
    insert = RunRows.insert
    uninterrupted, killed = Results(tmp_path / "uninterrupted"), Results(tmp_path / "killed")
    for results in (uninterrupted, killed):
        write_sweep(results.sweep_folder("demo"), records, planned=planned)
    statements: list[Any] = []

    def insert_counted(*arguments: Any) -> None:
        statements.append(arguments)
        insert(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RunRows, "insert", insert_counted)
        assert Tracker(uninterrupted).deliver(uninterrupted.sweep_folder("demo")).delivered == 2
    assert len(statements) > 20

    left: list[dict[str, list[str]]] = []
    for at in range(len(statements)):
        statements_left = iter(range(at))

        def insert_or_die(*arguments: Any, statements: Iterator[int] = statements_left) -> None:
            if next(statements, None) is None:
                raise Killed
            insert(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(RunRows, "insert", insert_or_die)
            with pytest.raises(Killed):
                Tracker(killed).deliver(killed.sweep_folder("demo"))
        left.append(rows_by_table(killed.database))
    assert left[0]["runs"] == []
    assert left == left[:1] * len(statements)
    assert Tracker(killed).deliver(killed.sweep_folder("demo")).delivered == 2
    shown, expected = (
        everything(f"sqlite:///{results.database}", "demo") for results in (killed, uninterrupted)
    )
    assert shown == expected
