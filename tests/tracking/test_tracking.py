"""What MLflow shows of records, and that it shows it once, however often a delivery dies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from harness.core.locks import lock_file
from harness.core.paths import Results, SweepFolder
from harness.records.files import COLUMNS_SUFFIX
from harness.records.record import Record
from harness.records.seal import sealed_text
from harness.records.store import read_spec_content
from harness.spec.cell import Trial
from harness.tracking import Delivery, Tracker
from harness.tracking import tracker as tracker_module
from harness.tracking.connect import TrackerDown, connect, quiet
from harness.tracking.markdown import DESCRIPTION_TAG
from tests.factories import make_cell, make_record, write_spec_of, write_sweep, write_trial
from tests.support.commands import harness
from tests.support.mlflow import Killed, Meddler, by_label, everything, runs_of

PNG_SIGNATURE = b"\x89PNG\r\n"
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
    assert shown["demo"]["status"] == "FAILED"
    assert shown["mlp eager bf16 ddp×2 w0 b64 t1"]["status"] == "FINISHED"


def test_the_run_of_a_trial_shows_its_record(delivered: DeliveredSweep) -> None:
    record = delivered.records[2]
    shown = delivered.shown["mlp eager bf16 ddp×2 w0 b64 t1 seed 0"]
    assert record.summary
    assert record.loss
    assert (
        shown["params"].items()
        >= {"precision": "bf16", "world_size": "2", "options.hidden": "[256, 128]"}.items()
    )
    assert (
        shown["params"].items()
        >= {"length": "20 steps", "data.source": "digits", "seed": "0"}.items()
    )
    assert shown["times"] == (round(record.started * 1000), round(record.ended * 1000))
    assert [(step, value) for step, value, _ in shown["metrics"]["loss"]] == list(
        enumerate(record.loss.unpack(), 1)
    )
    assert [(step, value) for step, value, _ in shown["metrics"]["accuracy"]] == [
        (10, 0.45),
        (20, 0.9),
    ]
    assert [value for _, value, _ in shown["metrics"]["throughput_samples_per_s"]] == [
        record.summary.throughput
    ]
    assert [value for _, value, _ in shown["metrics"]["memory_resident_mib"]] == [301.0]
    assert [value for _, value, _ in shown["metrics"]["memory_training_mib"]] == [101.0]
    (columns,) = [name for name in shown["artifacts"] if name.endswith(COLUMNS_SUFFIX)]
    assert set(shown["artifacts"]) - {columns} == {
        "classes/mistakes.csv", "classes/scores.csv", "environment.json", "logs/launch.log", "logs/rank0.log",
        "logs/rank1.log", "record.json",
    }  # fmt: skip
    assert [name for name, _, _ in shown["inputs"]] == ["digits test", "digits train"]
    assert shown["tags"]["mlflow.source.git.commit"].startswith("c0ffee")
    assert shown["tags"]["harness.order_digest"] == record.order_digest


def test_what_was_not_measured_is_absent(delivered: DeliveredSweep) -> None:
    shown = delivered.shown
    failed = shown["mlp eager fp32 single w0 b64 t1 seed 1"]
    assert failed["status"] == "FAILED"
    assert failed["tags"]["harness.error"] == "rank 0 on node1: ValueError: no such thing"
    assert not {"loss", "throughput_samples_per_s", "final_loss"} & set(failed["metrics"])
    cell = shown["mlp eager fp32 single w0 b64 t1"]["metrics"]
    assert [value for _, value, _ in cell["trials_failed"]] == [1.0]
    assert "throughput_samples_per_s_min" not in cell


def test_a_cell_shows_the_mean_of_its_done_trials(results: Results, folder: SweepFolder) -> None:
    records = [make_record(step_seconds=0.01), make_record(seed=1, step_seconds=0.02)]
    write_sweep(folder, records)
    Tracker(results).deliver(folder)
    cell = by_label(f"sqlite:///{results.database}", "demo")["mlp eager fp32 single w0 b64 t1"].data
    rates = [record.summary.throughput or 0.0 for record in records if record.summary]
    assert cell.metrics["throughput_samples_per_s"] == pytest.approx(
        geometric_mean(rates), rel=1e-5
    )
    assert cell.metrics["throughput_samples_per_s_min"] == pytest.approx(min(rates), rel=1e-5)
    assert cell.metrics["throughput_samples_per_s_max"] == pytest.approx(max(rates), rel=1e-5)
    assert cell.metrics["final_accuracy"] == pytest.approx(0.9005)


@pytest.mark.usefixtures("pictures_in_mlflow")
def test_verdicts_come_with_the_last_trial(results: Results, folder: SweepFolder) -> None:
    cells = [make_cell(), make_cell(precision="bf16")]
    records = [
        make_record(
            cell,
            seed=seed,
            step_seconds=0.01 / (1 + number),
            started=1_700_000_000.0 + 100 * (2 * seed + number),
        )
        for seed in range(3)
        for number, cell in enumerate(cells)
    ]
    write_sweep(folder, records[:-1], planned=[records[-1].trial])
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    tracker.deliver(folder)
    early = by_label(uri, "demo")["mlp eager bf16 single w0 b64 t1"].data
    assert "harness.verdict" not in early.tags
    assert early.metrics["harness.ci_count"] == 2
    write_trial(folder, records[-1])
    tracker.deliver(folder, [records[-1].trial.id])
    shown = everything(uri, "demo")
    fast, slow = shown["mlp eager bf16 single w0 b64 t1"], shown["mlp eager fp32 single w0 b64 t1"]
    assert fast["tags"]["harness.verdict"] == "faster"
    assert fast["tags"]["harness.reference"] == "mlp eager fp32 single w0 b64 t1"
    assert fast["metrics"]["harness.speedup"][0][1] == pytest.approx(2, rel=0.02)
    assert slow["tags"]["harness.verdict"] == "reference"
    assert "Fastest is bf16 with" in shown["demo"]["tags"]["mlflow.note.content"]
    assert "figures/mlp.png" in shown["demo"]["artifacts"]
    pictures = [*results.artifacts.rglob("mlp.png")]
    assert len(pictures) == 1
    assert all(picture.read_bytes().startswith(PNG_SIGNATURE) for picture in pictures)
    for cell in (fast, slow):
        assert "figures/mlp.png" not in cell["artifacts"]
        assert (
            "get-artifact?path=figures%2Fmlp.png&run_uuid=" in cell["tags"]["mlflow.note.content"]
        )
    assert "**mlp**: fastest is bf16, certain" in description_of(uri)


def test_a_description_that_somebody_wrote_stays(results: Results, folder: SweepFolder) -> None:
    small_sweep(folder)
    uri = f"sqlite:///{results.database}"
    delivered = Tracker(results).deliver(folder)
    client = MlflowClient(uri)
    client.set_experiment_tag(delivered.experiment_id, DESCRIPTION_TAG, "Ours, for the paper.")
    Tracker(results).deliver(folder)
    assert description_of(uri) == "Ours, for the paper."


def description_of(uri: str) -> str:
    """Return the description of the experiment `demo`."""
    experiment = MlflowClient(uri).get_experiment_by_name("demo")
    assert experiment is not None
    return str(experiment.tags[DESCRIPTION_TAG])


def test_delivering_again_adds_nothing(results: Results, folder: SweepFolder) -> None:
    records = small_sweep(folder)
    Tracker(results).deliver(folder)
    before = everything(f"sqlite:///{results.database}", "demo")
    again = Tracker(results).deliver(folder)
    first_again = Tracker(results).deliver(folder, [records[0].trial.id])
    assert everything(f"sqlite:///{results.database}", "demo") == before
    assert (again.delivered, again.already_delivered, first_again.already_delivered) == (0, 3, 1)
    assert again.run_id == first_again.run_id


def test_trials_delivered_one_by_one_look_the_same_as_all_at_once(
    results: Results, folder: SweepFolder, tmp_path: Path
) -> None:
    records = small_sweep(folder)
    Tracker(results).deliver(folder)
    other_uri = f"sqlite:///{tmp_path / 'other.db'}"
    tracker = Tracker(results, other_uri)
    for record in records:
        tracker.deliver(folder, [record.trial.id])
    assert everything(other_uri, "demo") == everything(f"sqlite:///{results.database}", "demo")


def test_a_delivery_of_one_trial_looks_at_no_other_record(
    results: Results, folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [make_record(seed=seed) for seed in range(3)]
    write_sweep(folder, records[:1], planned=[record.trial for record in records[1:]])
    tracker = Tracker(results)
    tracker.deliver(folder, [records[0].trial.id])
    write_trial(folder, records[1])
    with monkeypatch.context() as patch:
        patch.delattr(SweepFolder, "recorded_ids")  # by which all records are found
        assert tracker.deliver(folder, [records[1].trial.id]).delivered == 1
    write_trial(folder, records[2])
    assert tracker.deliver(folder, [records[2].trial.id]).delivered == 1
    shown = by_label(f"sqlite:///{results.database}", "demo")
    assert shown["demo"].data.metrics["trials_done"] == 3


def test_a_sweep_is_running_until_its_last_trial_has_ended(
    results: Results, folder: SweepFolder
) -> None:
    first_record, second_record = make_record(), make_record(seed=1, started=1_700_000_100.0)
    write_sweep(folder, [first_record], planned=[second_record.trial])
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    tracker.deliver(folder, [first_record.trial.id])
    halfway = by_label(uri, "demo")
    assert (
        halfway["demo"].info.status
        == halfway["mlp eager fp32 single w0 b64 t1"].info.status
        == "RUNNING"
    )
    assert halfway["demo"].data.metrics["trials_done"] == 1
    write_trial(folder, second_record)
    tracker.deliver(folder, [second_record.trial.id])
    whole = by_label(uri, "demo")
    assert (
        whole["demo"].info.status
        == whole["mlp eager fp32 single w0 b64 t1"].info.status
        == "FINISHED"
    )
    assert whole["demo"].data.metrics["trials_done"] == 2
    assert whole["demo"].info.end_time == round(second_record.ended * 1000)


def test_a_trial_that_ran_again_replaces_its_older_run(
    results: Results, folder: SweepFolder
) -> None:
    small_sweep(folder)
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    tracker.deliver(folder)
    again = make_record(seed=1, attempt=2, started=1_700_000_200.0)
    write_trial(folder, again)
    delivery = tracker.deliver(folder, [again.trial.id])
    runs = by_label(uri, "demo")
    assert delivery.delivered == 1
    assert len(runs) == 6
    trial_run = runs["mlp eager fp32 single w0 b64 t1 seed 1"]
    assert trial_run.data.tags["harness.attempt"] == "2"
    command = f"harness reproduce mlflow:{trial_run.info.run_id}"
    assert trial_run.data.tags["harness.reproduce"] == command
    assert runs["mlp eager fp32 single w0 b64 t1"].data.metrics["trials_failed"] == 0
    assert (
        runs["demo"].info.status
        == runs["mlp eager fp32 single w0 b64 t1"].info.status
        == "FINISHED"
    )


def parents_of(shown: Mapping[str, Run]) -> dict[str, str | None]:
    """Return the label of the run that each run is below, by its own label."""
    labels = {run.info.run_id: label for label, run in shown.items()}
    parents: dict[str, str | None] = {}
    for label, run in shown.items():
        parent = run.data.tags.get("mlflow.parentRunId")
        parents[label] = parent and labels[parent]
    return parents


def test_a_cell_without_done_trials_loses_its_numbers(
    results: Results, folder: SweepFolder
) -> None:
    write_sweep(folder, [make_record(), make_record(seed=1, status="failed")])
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    tracker.deliver(folder)
    again = make_record(status="failed", attempt=2, started=1_700_000_200.0)
    write_trial(folder, again)
    tracker.deliver(folder, [again.trial.id])
    shown = by_label(uri, "demo")
    cell = shown["mlp eager fp32 single w0 b64 t1"]
    assert set(cell.data.metrics) == {
        "trials_done",
        "trials_failed",
        "trials_interrupted",
        "trials_invalid",
    }
    assert list(parents_of(shown).values()).count("mlp eager fp32 single w0 b64 t1") == 2


def test_a_run_keeps_the_metrics_that_somebody_else_logged(
    results: Results, folder: SweepFolder
) -> None:
    small_sweep(folder)
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    tracker.deliver(folder)
    before = {run.info.run_id for run in runs_of(uri, "demo")}
    with quiet():
        for run_id in before:
            connect(uri).log_metric(run_id, "my_cost", 3.0)
    tracker.deliver(folder)
    after = runs_of(uri, "demo")
    assert {run.info.run_id for run in after} == before
    assert [run.data.metrics["my_cost"] for run in after] == [3.0] * len(before)


def test_each_cell_of_a_race_has_one_run_when_it_goes_on(
    results: Results, folder: SweepFolder
) -> None:
    """Also a cell that another one's trials have made leave, and that has no new trial."""
    cells = [make_cell(), make_cell(precision="bf16"), make_cell(num_workers=1)]
    trials = [Trial(cell=cell, seed=seed) for seed in range(2) for cell in cells]
    write_trial(folder, make_record(cells[2], status="failed", sweep="demo"))
    ended = []
    for cell in cells[:2]:
        record = make_record(cell, sweep="demo")
        write_trial(folder, record)
        ended.append(record.trial.id)
    write_spec_of(folder, "demo", trials)
    content = read_spec_content(folder.spec_path)
    rules = {"metric": "throughput", "reach": None, "keep": 1, "error_rate": 0.05}
    folder.spec_path.write_text(sealed_text({**content, "race": rules}), encoding="utf-8")
    Tracker(results).deliver(folder)
    tracker = Tracker(results)  # of the next command
    for cell in cells[:2]:
        record = make_record(cell, seed=1, sweep="demo")
        write_trial(folder, record)
        ended.append(record.trial.id)
        tracker.deliver(folder, ended[-1:], in_passing=True)
    tracker.deliver(folder, ended)
    runs = runs_of(f"sqlite:///{results.database}", "demo")
    keys = [
        run.data.tags["harness.cell"] for run in runs if run.data.tags["harness.kind"] == "cell"
    ]
    assert sorted(keys) == sorted(cell.id for cell in cells)
    ids = {run.info.run_id for run in runs}
    assert {run.data.tags.get("mlflow.parentRunId") for run in runs} <= {None, *ids}


def test_a_cell_that_leaves_a_race_during_a_delivery_comes_with_the_next(
    results: Results, folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [make_cell(), make_cell(precision="bf16"), make_cell(num_workers=1)]
    records = [make_record(cell, sweep="demo") for cell in cells[:2]]
    for record in records:
        write_trial(folder, record)
    failed = make_record(cells[2], status="failed", sweep="demo")
    write_spec_of(
        folder, "demo", [Trial(cell=cell, seed=seed) for seed in (0, 1) for cell in cells]
    )
    content = read_spec_content(folder.spec_path)
    rules = {"metric": "throughput", "reach": None, "keep": 1, "error_rate": 0.05}
    folder.spec_path.write_text(sealed_text({**content, "race": rules}), encoding="utf-8")
    meddle_with(monkeypatch, 0, lambda: write_trial(folder, failed))
    tracker = Tracker(results)
    assert tracker.deliver(folder, [records[0].trial.id]).delivered == 1
    assert tracker.deliver(folder, [records[1].trial.id, failed.trial.id]).delivered == 2
    runs = runs_of(f"sqlite:///{results.database}", "demo")
    (run,) = [run for run in runs if run.data.tags.get("harness.race")]
    assert run.data.tags["harness.cell"] == cells[2].id


def test_a_tag_that_no_longer_holds_goes(
    results: Results, folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a cell which has left a race, and is in it again."""
    small_sweep(folder)
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    tracker.deliver(folder)
    cell = by_label(uri, "demo")["mlp eager fp32 single w0 b64 t1"]
    before = dict(cell.data.tags)
    with quiet():
        for name in ("harness.race", "mlflow.note.content", "mine"):
            connect(uri).set_tag(cell.info.run_id, name, "left after 2 blocks")
    write_trial(folder, make_record(seed=7, sweep="demo"))
    tracker.deliver(folder)
    after = by_label(uri, "demo")["mlp eager fp32 single w0 b64 t1"]
    assert after.info.run_id == cell.info.run_id
    assert set(after.data.tags) >= set(before)
    assert "harness.race" not in after.data.tags
    assert after.data.tags.get("mlflow.note.content") == before.get("mlflow.note.content")
    assert after.data.tags["mine"] == "left after 2 blocks"


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


def test_a_renaming_that_mlflow_refuses_has_renamed_the_folder_and_ends_with_1(
    results: Results, folder: SweepFolder
) -> None:
    small_sweep(folder)
    tracker = Tracker(results)
    tracker.deliver(folder)
    with quiet():
        connect(tracker.uri).create_experiment("my sweep")
    ended = harness("results", "rename", "demo", "my sweep", "--results", str(results.path))
    assert ended.code == 1
    assert f"`harness collect 'my sweep' --results {results.path}` delivers" in ended.err
    assert results.sweep_folder("my sweep").path.exists()


def test_a_copied_run_is_removed(results: Results, folder: SweepFolder) -> None:
    small_sweep(folder)
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    delivery = tracker.deliver(folder)
    before = parents_of(by_label(uri, "demo"))
    with quiet():
        for run in runs_of(uri, "demo"):
            tags = {key: value for key, value in run.data.tags.items() if key != "harness.record"}
            connect(uri).create_run(delivery.experiment_id, tags=tags, run_name=run.info.run_name)
    tracker.deliver(folder)
    assert parents_of(by_label(uri, "demo")) == before


def test_a_deleted_run_or_experiment_comes_back_once(results: Results, folder: SweepFolder) -> None:
    small_sweep(folder)
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    delivery = tracker.deliver(folder)
    before = everything(uri, "demo")
    cell = by_label(uri, "demo")["mlp eager fp32 single w0 b64 t1"]
    with quiet():
        connect(uri).delete_run(cell.info.run_id)
    tracker.deliver(folder)
    assert everything(uri, "demo") == before
    with quiet():
        connect(uri).delete_experiment(delivery.experiment_id)
    tracker.deliver(folder)
    assert everything(uri, "demo") == before


@pytest.mark.nightly
def test_two_processes_at_once_create_each_run_once_and_print_nothing(tmp_path: Path) -> None:
    results = Results(tmp_path)
    small_sweep(results.sweep_folder("demo"))
    command = [sys.executable, "-c", DELIVER, str(tmp_path)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=200)[0].decode() for process in both]
    assert ([process.returncode for process in both], outputs) == ([0, 0], ["", ""])
    assert len(by_label(f"sqlite:///{results.database}", "demo")) == 6


def test_two_results_folders_can_share_a_store(results: Results, tmp_path: Path) -> None:
    uri = f"sqlite:///{results.database}"
    for name in ("mine", "yours"):
        own_results = Results(tmp_path / name)
        small_sweep(own_results.sweep_folder("demo"))
        assert Tracker(own_results, uri).deliver(own_results.sweep_folder("demo")).delivered == 3
    assert len(runs_of(uri, "demo")) == 12


def test_repeats_have_runs_of_their_own(results: Results, folder: SweepFolder) -> None:
    write_sweep(folder, [make_record(), make_record(repeat=1)])
    Tracker(results).deliver(folder)
    names = set(by_label(f"sqlite:///{results.database}", "demo"))
    assert {f"mlp eager fp32 single w0 b64 t1 seed 0 repeat {repeat}" for repeat in (0, 1)} <= names


def test_a_delivery_replaces_a_lock_file_that_is_no_text(
    results: Results, folder: SweepFolder
) -> None:
    write_sweep(folder, [make_record()])
    Path(f"{results.database}.lock").write_bytes(b"\xff\xfe")
    assert Tracker(results).deliver(folder).delivered == 1


def test_a_delivery_waits_for_another_one_and_not_for_ever(
    results: Results, folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "LOCK_TIMEOUT", 0.1)
    with Path(f"{results.database}.lock").open("a") as other:
        assert lock_file(other, 0)
        with pytest.raises(
            TrackerDown, match=r"^MLflow: waited 0\.1 s for \S+\.lock, which another"
        ):
            Tracker(results).deliver(folder)
