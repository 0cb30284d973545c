"""The files that are stored with runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import Results, SweepFolder
from harness.records.format import sealed_text
from harness.tracking import Tracker, runs
from tests.factories import make_record, write_sweep
from tests.support.mlflow import artifact_text, by_label
from tests.support.mlflow import stored_files as artifacts_of


@pytest.fixture
def folder(results: Results) -> SweepFolder:
    return results.sweep_folder("demo")


def test_logs_are_cut_and_the_record_is_exact(
    results: Results, folder: SweepFolder, tmp_path: Path
) -> None:
    record = make_record()
    write_sweep(folder, [record], logs="x" * 99 + "\n")
    trial_folder = folder.trial_folder(record.trial.id)
    lines = "".join(f"line {at}\n" for at in range(200_000))
    trial_folder.rank_log(0).write_text(lines, encoding="utf-8")
    Tracker(results).deliver(folder)
    uri = f"sqlite:///{results.database}"
    run = by_label(uri, "demo")["mlp eager fp32 single w0 b64 t1 seed 0"]
    log = artifact_text(uri, run, "logs/rank0.log", tmp_path / "got")
    assert len(log) < 2**20 + 100
    assert log.endswith("line 199999\n")
    assert log.splitlines()[1].startswith("line ")
    text = artifact_text(uri, run, "record.json", tmp_path / "got")
    assert text == trial_folder.record_path.read_text(encoding="utf-8")
    environment = json.loads(artifact_text(uri, run, "environment.json", tmp_path / "got"))
    assert environment["hardware"]["usable_cores"] == 2


def test_of_many_ranks_the_logs_are_stored_that_somebody_looks_into(
    results: Results, folder: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LOG_BYTES", 50)
    record = make_record(status="failed")
    assert record.failure
    failure = replace(record.failure, rank=3, log="attempt-1/logs/rank3.log")
    write_sweep(folder, [replace(record, failure=failure)])
    trial_folder = folder.trial_folder(record.trial.id)
    trial_folder.launch_log.write_text("step 1 ended\n", encoding="utf-8")
    for rank in range(7):
        trial_folder.rank_log(rank).write_text(f"a line of {rank}\n" * 8, encoding="utf-8")
    Tracker(results).deliver(folder)
    uri = f"sqlite:///{results.database}"
    run = by_label(uri, "demo")[f"{record.trial.cell.label} seed 0"]
    logs = [path for path in artifacts_of(uri, run) if path.startswith("logs/")]
    assert logs == ["logs/launch.log", "logs/rank0.log", "logs/rank3.log"]
    text = artifact_text(uri, run, "logs/rank3.log", tmp_path / "got")
    assert text.startswith("[the last 50 of 96 bytes]")


def test_a_profile_is_stored_with_its_trial_unless_it_is_too_large(
    results: Results, folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FILE_BYTES", 100)
    record = make_record()
    write_sweep(folder, [record])
    trial_folder = folder.trial_folder(record.trial.id)
    trial_folder.trace_folder.mkdir()
    for rank, size in enumerate((100, 101)):
        trial_folder.trace_path(rank).write_bytes(b"x" * size)
    Tracker(results).deliver(folder)
    (sent,) = results.artifacts.rglob("profile")
    assert {file.name: file.stat().st_size for file in sent.iterdir()} == {"rank0.json.gz": 100}


def test_the_spec_is_stored_with_the_sweep_and_updated(
    results: Results, folder: SweepFolder, tmp_path: Path
) -> None:
    write_sweep(folder, [make_record()])
    tracker, uri = Tracker(results), f"sqlite:///{results.database}"
    for description in ("first", "second"):
        spec = json.loads(folder.spec_path.read_text(encoding="utf-8"))
        spec["description"] = description
        folder.spec_path.write_text(sealed_text(spec), encoding="utf-8")
        tracker.deliver(folder)
        run = by_label(uri, "demo")["demo"]
        stored = json.loads(artifact_text(uri, run, "sweep.json", tmp_path / description))
        assert stored == json.loads(folder.spec_path.read_text(encoding="utf-8"))
        assert "report.html" in artifacts_of(uri, run)
