"""Records come back from a real MLflow server as they were delivered, and can be compared."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from harness.analysis import baseline
from harness.analysis.result import CellResult
from harness.analysis.selection import select
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.tracking import Tracker
from harness.tracking.connect import connect, quiet
from tests.conftest import free_port
from tests.factories import make_cell, make_record, write_sweep
from tests.support.commands import harness
from tests.support.mlflow import by_label

SLOW, FAST = make_cell(steps=60), make_cell(precision="bf16", steps=60)


NAME = "recalled"  # of the sweep on the server, which those of other modules are on too


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results whose sweep `ids` delivers."""
    return Results(tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="module")
def ids(stored: Results, mlflow_server: str) -> dict[str, str]:
    """Deliver a sweep of two cells with three seeds each; return the ids of its runs by name.

    The trial with the last seed is the oldest, so that the order of time is not that of seeds.
    """
    records = [
        make_record(
            cell,
            seed=seed,
            sweep=NAME,
            started=1.7e9 - 10 * seed,
            step_seconds=seconds + seed * 1e-4,
        )
        for cell, seconds in ((FAST, 0.005), (SLOW, 0.01))
        for seed in (0, 1, 2)
    ]
    write_sweep(stored.sweep_folder(NAME), records)
    Tracker(stored, mlflow_server).deliver(stored.sweep_folder(NAME))
    return {
        run_name.replace(NAME, "sweep"): run.info.run_id
        for run_name, run in by_label(mlflow_server, NAME).items()
    }


def dumps(cells: Sequence[CellResult]) -> list[str]:
    """Return the cells as baselines, with their trials in one order."""
    ordered = []
    for cell in cells:
        trials = sorted(cell.trials, key=lambda trial: trial.seed)
        ordered.append(baseline.dump(replace(cell, trials=trials)))
    return sorted(ordered)


def test_numbers_are_those_of_the_disk(
    stored: Results, mlflow_server: str, ids: dict[str, str]
) -> None:
    label = SLOW.label
    recall = Tracker(stored, mlflow_server).recall
    for run, on_disk in (
        ("sweep", str(stored.sweep_folder(NAME).path)),
        (label, SLOW.id),
        (f"{label} seed 1", f"{SLOW.id}-s1-r0"),
    ):
        bare, marked, disk = select(stored, [ids[run], f"mlflow:{ids[run]}", on_disk], recall)
        assert dumps(bare.cells) == dumps(disk.cells)
        assert marked.cells == bare.cells


@pytest.mark.nightly
def test_a_run_is_compared_with_anything(
    stored: Results, mlflow_server: str, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--results", str(stored.path), "--tracking-uri", mlflow_server)
    ended = harness("compare", ids["sweep"], SLOW.id, "--json", *options)
    assert [cell["metrics"][0]["verdict"] for cell in json.loads(ended.out)["cells"]] == ["same"]
    ended = harness(
        "compare",
        ids[SLOW.label],
        f"mlflow:{ids[FAST.label]}",
        "--across",
        "precision",
        "--json",
        *options,
    )
    assert json.loads(ended.out)["cells"][0]["metrics"][0]["verdict"] == "faster"
    assert "\nbf16" in harness("compare", ids["sweep"], "--effects", *options).out
    assert harness("baseline", ids["sweep"], *options).code == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    itself = harness("compare", "baseline", ids["sweep"], "--results", str(stored.path))
    assert itself.code == 3
    assert "both sides are the same trials" in itself.out


def test_a_run_without_a_record_of_this_schema_is_refused(
    stored: Results, mlflow_server: str, ids: dict[str, str]
) -> None:
    """This one changes the runs that the tests before it have read."""
    tracker, run = Tracker(stored, mlflow_server), ids[f"{SLOW.label} seed 0"]
    with quiet():
        client = connect(mlflow_server)
        foreign = client.create_run(client.get_run(run).info.experiment_id).info.run_id
        cut_off = client.create_run(
            client.get_run(run).info.experiment_id, tags={"harness.kind": "trial"}
        ).info.run_id
        older = json.dumps({"schema": 3})
        client.log_text(run, older, "record.json")
        client.delete_run(ids[FAST.label])
    for refused, why in (
        (foreign, "harness.kind: found None; allowed: the runs of sweeps, cells and trials"),
        (cut_off, "found no complete record; `harness collect SWEEP` completes a delivery"),
        (run, "record.json: schema: found 3; allowed: "),
        (ids[SLOW.label], f"MLflow run {run}: record.json: schema: found 3"),
        (ids[FAST.label], "found it deleted"),
        ("0" * 32, "not found"),
    ):
        with pytest.raises(BadInput, match=r"^MLflow ") as caught:
            tracker.recall(refused)
        assert why in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_run_whose_record_is_gone_is_refused(results: Results) -> None:
    write_sweep(results.sweep_folder("demo"), [make_record()])
    tracker = Tracker(results)
    tracker.deliver(results.sweep_folder("demo"))
    run = by_label(tracker.uri, "demo")[f"{make_cell().label} seed 0"].info.run_id
    for path in results.artifacts.rglob("record.json"):
        path.unlink()
    with pytest.raises(BadInput, match=f"does not give record.json of run {run}: ") as caught:
        tracker.recall(run)
    assert "\n" not in str(caught.value)


def test_only_runs_need_a_store(tmp_path: Path) -> None:
    """Sweeps are compared without one, and asking for a run creates no database."""
    results, missing = Results(tmp_path / "results"), "0" * 32
    first_folder, second_folder = (str(results.sweep_folder(name).path) for name in ("one", "two"))
    for name in ("one", "two"):
        write_sweep(results.sweep_folder(name), [make_record(sweep=name)])
    gone = f"http://127.0.0.1:{free_port()}"
    options = ("--results", str(results.path))
    assert (
        harness("compare", first_folder, second_folder, "--tracking-uri", gone, *options).code == 3
    )
    ended = harness("compare", first_folder, missing, "--tracking-uri", gone, *options)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert f"MLflow at {gone} does not give run {missing}" in ended.err
    ended = harness("compare", first_folder, f"mlflow:{missing}", *options)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "mlflow.db: no such database" in ended.err
    assert not results.database.exists()


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({"harness.kind": "sweep"}, "harness.origin: found None"),
        ({"harness.kind": "cell", "harness.origin": "x' OR '1"}, "harness.origin: found \"x' OR"),
        ({"harness.kind": "cell", "harness.origin": "x"}, "harness.cell: found None"),
    ],
)
def test_tags_that_somebody_changed_are_refused(
    results: Results, tags: dict[str, str], problem: str
) -> None:
    tracker = Tracker(results)
    with quiet():
        client = connect(tracker.uri)
        experiment = client.create_experiment("changed")
        run = client.create_run(experiment, tags=tags).info.run_id
    with pytest.raises(BadInput) as caught:
        tracker.recall(run)
    assert str(caught.value).startswith(f"MLflow run {run}: {problem}")


def test_columns_are_read_as_quietly_as_records(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read when they are needed, long after the record."""
    write_sweep(results.sweep_folder("demo"), [make_record()])
    tracker = Tracker(results)
    run_id = tracker.deliver(results.sweep_folder("demo")).run_id
    download = MlflowClient.download_artifacts
    retries = []

    def watched(client: MlflowClient, *arguments: str) -> str:
        retries.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES"))
        return download(client, *arguments)

    (record,) = tracker.recall(run_id).records
    monkeypatch.setattr(MlflowClient, "download_artifacts", watched)
    assert next(iter(record.ranks)).step_seconds
    assert set(retries) == {"1"}
