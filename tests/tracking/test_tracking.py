"""What MLflow shows of records, and that it shows it once, however often a delivery dies."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from harness.core.files import lock_file
from harness.core.paths import Results, SweepFolder
from harness.records.numbers import RATE
from harness.records.record import Record
from harness.tracking import Delivery, Tracker
from harness.tracking import tracker as tracker_module
from harness.tracking.connect import TrackerDown, connect, quiet
from harness.tracking.runs import DESCRIPTION_TAG
from tests.factories import make_cell, make_record, write_spec_of, write_sweep, write_trial
from tests.support.mlflow import Killed, Meddler, by_label, everything, runs_of

DELIVER = """
import sys
from pathlib import Path
from statistics import geometric_mean
from harness.core.paths import Results
from harness.tracking import Tracker
results = Results(Path(sys.argv[1]))
Tracker(results).deliver(results.sweep_folder("demo"))
"""


@pytest.fixture
def folder(results: Results) -> SweepFolder:
    return results.sweep_folder("demo")


def small_sweep(folder: SweepFolder) -> list[Record]:
    """Write a sweep of two cells; the first has two seeds, of which the second failed."""
    bf16 = make_cell(precision="bf16", strategy="ddp", world_size=2)
    records = [make_record(), make_record(seed=1, status="failed"), make_record(bf16)]
    write_sweep(folder, records, logs="a line\n")
    return records


@dataclass(frozen=True)
class DeliveredSweep:
    """The records of a small sweep, and all that MLflow shows of them."""

    records: list[Record]
    delivery: Delivery
    shown: dict[str, Any]


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> DeliveredSweep:
    """Deliver a small sweep, for the tests that only look at what MLflow shows of it."""
    results = Results(tmp_path_factory.mktemp("delivered"))
    folder = results.sweep_folder("demo")
    records = small_sweep(folder)
    delivery = Tracker(results).deliver(folder)
    shown = everything(f"sqlite:///{results.database}", "demo")
    return DeliveredSweep(records=records, delivery=delivery, shown=shown)


def test_a_sweep_its_cells_and_its_trials_are_nested(delivered: DeliveredSweep) -> None:
    delivery, shown = delivered.delivery, delivered.shown
    assert (delivery.delivered, delivery.already_delivered) == (3, 0)
    assert {name: run["parent"] for name, run in shown.items()} == {
        "demo": None,
        "mlp eager fp32 single w0 b64 t1": "demo",
        "mlp eager bf16 ddp×2 w0 b64 t1": "demo",
        "mlp eager fp32 single w0 b64 t1 seed 0": "mlp eager fp32 single w0 b64 t1",
        "mlp eager fp32 single w0 b64 t1 seed 1": "mlp eager fp32 single w0 b64 t1",
        "mlp eager bf16 ddp×2 w0 b64 t1 seed 0": "mlp eager bf16 ddp×2 w0 b64 t1",
    }
    # A trial of the second cell has not run.
    assert shown["demo"]["status"] == "RUNNING"
    assert shown["mlp eager bf16 ddp×2 w0 b64 t1"]["status"] == "RUNNING"
    assert shown["mlp eager fp32 single w0 b64 t1"]["status"] == "FAILED"  # one of its trials


def test_the_run_of_a_trial_shows_its_record(delivered: DeliveredSweep) -> None:
    record = delivered.records[2]
    shown = delivered.shown["mlp eager bf16 ddp×2 w0 b64 t1 seed 0"]
    assert record.loss is not None
    params = {
        "precision": "bf16", "world_size": "2", "options.hidden": "[256, 128]", "length": "20 steps",
        "data.source": "digits", "seed": "0",
    }  # fmt: skip
    assert shown["params"].items() >= params.items()
    assert shown["times"] == (round(record.started * 1000), round(record.ended * 1000))
    points = {
        name: [(step, value) for step, value, _ in series]
        for name, series in shown["metrics"].items()
    }
    assert points["loss"] == list(enumerate(record.loss, 1))
    assert points["accuracy"] == [(10, 0.45), (20, 0.9)]
    numbers = {
        RATE: record.numbers[RATE],
        "memory_resident_mib": 301.0,
        "memory_training_mib": 101.0,
    }
    assert {name: points[name] for name in numbers} == {
        name: [(0, value)] for name, value in numbers.items()
    }
    (columns,) = [name for name in shown["artifacts"] if name.endswith(".npz")]
    assert set(shown["artifacts"]) - {columns} == {
        "environment.json", "logs/launch.log", "logs/rank0.log", "record.json",
    }  # fmt: skip
    assert shown["tags"]["mlflow.source.git.commit"].startswith("c0ffee")
    assert shown["tags"]["harness.order_digest"] == record.order_digest


def test_what_was_not_measured_is_absent(delivered: DeliveredSweep) -> None:
    shown = delivered.shown
    failed = shown["mlp eager fp32 single w0 b64 t1 seed 1"]
    assert failed["status"] == "FAILED"
    assert failed["tags"]["harness.failure"] == "rank 0 on node1: ValueError: no such thing"
    assert not {"loss", "throughput_samples_per_s", "final_loss"} & set(failed["metrics"])
    cell = shown["mlp eager fp32 single w0 b64 t1"]["metrics"]
    assert [value for _, value, _ in cell["trials_not_done"]] == [1.0]
    assert "throughput_samples_per_s_min" not in cell


def test_delivering_again_adds_nothing(results: Results, folder: SweepFolder) -> None:
    records = small_sweep(folder)
    Tracker(results).deliver(folder)
    before = everything(f"sqlite:///{results.database}", "demo")
    again = Tracker(results).deliver(folder)
    Tracker(results).deliver_trials(folder, [records[0].trial.id])
    assert everything(f"sqlite:///{results.database}", "demo") == before
    assert (again.delivered, again.already_delivered) == (0, 3)


def meddle_with(
    monkeypatch: pytest.MonkeyPatch, at: int, meddle: Callable[[], None]
) -> list[Meddler]:
    """Make trackers call `meddle` before their `at`-th write; return the clients that they use."""
    made: list[Meddler] = []

    def connected(uri: str) -> Meddler:
        made.append(Meddler(connect(uri), at, meddle))
        return made[-1]

    monkeypatch.setattr(tracker_module, "connect", connected)
    return made


def die() -> None:
    raise Killed


@pytest.mark.nightly
def test_a_delivery_cut_off_anywhere_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [make_record()]
    reference = None
    empty = Results(tmp_path / "empty")
    Tracker(empty).prepare()  # once: MLflow takes seconds to create a database
    for at in range(100):
        results = Results(tmp_path / str(at))
        results.path.mkdir()
        shutil.copyfile(empty.database, results.database)
        write_sweep(results.sweep_folder("demo"), records)
        with monkeypatch.context() as patched:
            made = meddle_with(patched, at, die)
            try:
                Tracker(results).deliver(results.sweep_folder("demo"))
            except Killed:
                finished = False
            else:
                finished = True
        Tracker(results).deliver(results.sweep_folder("demo"))
        shown = everything(f"sqlite:///{results.database}", "demo")
        reference = reference or shown
        assert shown == reference, f"after a death before write {at}"
        if finished:
            break
    assert made[0].calls == at > 15


@pytest.mark.nightly
def test_two_processes_at_once_create_each_run_once_and_print_nothing(tmp_path: Path) -> None:
    results = Results(tmp_path)
    small_sweep(results.sweep_folder("demo"))
    command = [sys.executable, "-c", DELIVER, str(tmp_path)]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    both = [subprocess.Popen(command, text=True, **streams) for _ in range(2)]
    assert [process.communicate(timeout=200)[0] for process in both] == ["", ""]
    assert [process.returncode for process in both] == [0, 0]
    assert len(by_label(f"sqlite:///{results.database}", "demo")) == 6


def test_two_results_folders_can_share_a_store(results: Results, tmp_path: Path) -> None:
    uri = f"sqlite:///{results.database}"
    for name in ("mine", "yours"):
        own_results = Results(tmp_path / name)
        small_sweep(own_results.sweep_folder("demo"))
        assert Tracker(own_results, uri).deliver(own_results.sweep_folder("demo")).delivered == 3
    assert len(runs_of(uri, "demo")) == 12


def test_a_delivery_waits_for_another_one_and_not_for_ever(
    results: Results, folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And replaces a lock file that is no text."""
    write_sweep(folder, [make_record()])
    monkeypatch.setattr(tracker_module, "LOCK_TIMEOUT", 0.1)
    lock = Path(f"{results.database}.lock")
    lock.write_bytes(b"\xff\xfe")
    late = r"^MLflow: waited 0\.1 s for \S+\.lock, which another"
    with lock.open("a") as other:
        assert lock_file(other, 0)
        with pytest.raises(TrackerDown, match=late):
            Tracker(results).deliver(folder)
    assert Tracker(results).deliver(folder).delivered == 1


def test_trials_delivered_one_by_one_look_the_same_as_all_at_once(
    results: Results, folder: SweepFolder, tmp_path: Path
) -> None:
    records = small_sweep(folder)
    Tracker(results).deliver(folder)
    other_uri = f"sqlite:///{tmp_path / 'other.db'}"
    tracker = Tracker(results, other_uri)
    for record in records:
        tracker.deliver_trials(folder, [record.trial.id])
    halfway = everything(other_uri, "demo")
    assert {run["tags"]["harness.kind"] for run in halfway.values()} == {"trial"}
    assert len(halfway) == 3
    tracker.deliver(folder)
    assert everything(other_uri, "demo") == everything(f"sqlite:///{results.database}", "demo")


def test_growing_a_finished_sweep_keeps_what_a_user_wrote_on_its_runs(
    results: Results, folder: SweepFolder
) -> None:
    """And a metric that no longer holds is not a number."""
    cells = [make_cell(), make_cell(precision="bf16")]
    records = []
    for number in range(6):
        started = 1_700_000_000.0 + 100 * number
        records.append(make_record(cells[number % 2], seed=number // 2, started=started))
    write_sweep(folder, records)
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    delivery = tracker.deliver(folder)
    before = by_label(uri, "demo")
    with quiet():
        client = connect(uri)
        client.set_experiment_tag(delivery.experiment_id, DESCRIPTION_TAG, "Ours, for the paper.")
        for run in before.values():
            client.set_tag(run.info.run_id, "mine", "for the paper")
            client.set_tag(run.info.run_id, DESCRIPTION_TAG, "my note")
            client.log_metric(run.info.run_id, "my_cost", 3.0)
    for seed in range(3):
        write_trial(folder, make_record(cells[1], seed=seed, status="failed", attempt=2))
    write_trial(folder, make_record(seed=7, sweep="demo"))
    write_spec_of(folder, "demo", [record.trial for record in records])
    tracker.deliver(folder)
    after = {run.info.run_id: run for run in runs_of(uri, "demo")}
    for run in before.values():
        data = after[run.info.run_id].data
        assert (data.tags["mine"], data.tags[DESCRIPTION_TAG]) == ("for the paper", "my note")
        assert data.metrics["my_cost"] == 3.0
    experiment = client.get_experiment(delivery.experiment_id)
    assert experiment.tags[DESCRIPTION_TAG] == "Ours, for the paper."
    cell_run = after[before["mlp eager bf16 single w0 b64 t1"].info.run_id]
    assert math.isnan(cell_run.data.metrics["speedup"])
    assert cell_run.info.status == "FAILED"


def test_a_trial_that_ran_again_has_a_new_run_and_the_earlier_one_says_so(
    results: Results, folder: SweepFolder
) -> None:
    small_sweep(folder)
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    tracker.deliver(folder)
    first = by_label(uri, "demo")["mlp eager fp32 single w0 b64 t1 seed 1"]
    write_trial(folder, make_record(seed=1, attempt=2, started=1_700_000_200.0))
    assert tracker.deliver(folder).delivered == 1
    assert tracker.deliver(folder).delivered == 0
    runs = {run.info.run_id: run for run in runs_of(uri, "demo")}
    second = runs[runs[first.info.run_id].data.tags["harness.superseded"]]
    assert second.data.tags["harness.attempt"] == "2"


def test_a_delivery_that_died_before_it_named_the_newer_run_is_completed(
    results: Results, folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs of a trial, one would else be shown for ever beside the one that holds."""
    write_sweep(folder, [make_record()])
    uri = f"sqlite:///{results.database}"
    Tracker(results).deliver(folder)
    write_trial(folder, make_record(attempt=2, started=1_700_000_200.0))
    created: list[MlflowClient] = []

    class DiesAfterCreating:
        """A client that is killed at the first call after it has created a run."""

        def __getattr__(self, name: str) -> Any:
            if created and name not in ("search_runs", "get_experiment_by_name"):
                die()
            if name == "create_run":
                created.append(connect(uri))
            return getattr(connect(uri), name)

    with monkeypatch.context() as patched:
        patched.setattr(tracker_module, "connect", lambda _: DiesAfterCreating())
        with pytest.raises(Killed):
            Tracker(results).deliver(folder)
    Tracker(results).deliver(folder)
    assert len(runs_of(uri, "demo")) == 4
    assert len(by_label(uri, "demo")) == 3


def test_cells_that_the_sweep_no_longer_has_are_marked(
    results: Results, folder: SweepFolder
) -> None:
    """So that the page leaves out what has no verdict."""
    records = small_sweep(folder)
    Tracker(results).deliver(folder)
    write_spec_of(folder, "demo", [record.trial for record in records[:2]])
    Tracker(results).deliver(folder)
    runs = by_label(f"sqlite:///{results.database}", "demo")
    planned = {label: run.data.tags.get("harness.planned") for label, run in runs.items()}
    assert planned["mlp eager fp32 single w0 b64 t1"] == "yes"
    assert planned["mlp eager bf16 ddp×2 w0 b64 t1"] == "no"


def test_a_deleted_experiment_is_named_with_what_brings_it_back(
    results: Results, folder: SweepFolder
) -> None:
    small_sweep(folder)
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    delivery = tracker.deliver(folder)
    with quiet():
        connect(uri).delete_experiment(delivery.experiment_id)
    with pytest.raises(TrackerDown, match="was deleted; `mlflow experiments restore"):
        tracker.deliver(folder)
