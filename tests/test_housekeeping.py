"""Recorded sweeps are listed, checked and pruned."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from harness import housekeeping
from harness.analysis.parity import write_parity
from harness.core.paths import Results, SweepFolder, write_atomically
from harness.export.record import ExportedModel, ExportParity, TrialExport
from harness.hardware import machine
from harness.records.format import sealed_text
from harness.records.record import Record
from harness.records.store import lock, read_spec_content, write_spec
from harness.sweep.sweep import Sweep
from harness.training.checkpoint import SEAL_FILE, WEIGHTS_FILE, write_seal
from tests.factories import make_cell, make_machine, make_record, write_sweep, write_trial
from tests.support.commands import CommandResult
from tests.support.commands import harness as command
from tests.support.parity import make_parity
from tests.support.sweeps import load


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The results folder below the working directory, without MLflow's database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    return Results(Path("results"))


def record_sweep(results: Results, name: str, **keys: Any) -> Sweep:
    """Record all trials of a sweep of one MLP."""
    sweep = load(results.path.absolute().parent, sets=[f"name={name}"], **keys)
    for trial in sweep.trials():
        record = make_record(trial.cell, seed=trial.seed, sweep=name)
        write_trial(results.sweep_folder(name), record)
    write_spec(sweep, results.sweep_folder(name))
    return sweep


def run(*arguments: str) -> CommandResult:
    """Return how a command ended that does what it is told."""
    ended = command(*arguments)
    assert (ended.code, ended.err) == (0, "")
    return ended


def test_sweeps_are_listed_with_trials_size_and_age(results: Results) -> None:
    assert run("show").out == "0 sweeps, 0 B\n"
    record_sweep(results, "old", seeds=[0, 1])
    record_sweep(results, "new")
    for path in results.sweep_folder("old").path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    results.sweep_folder("broken").path.mkdir()
    results.sweep_folder("broken").spec_path.write_text("{", encoding="utf-8")
    with lock(results.sweep_folder("new")):
        lines = [" ".join(line.split()) for line in run("show").out.splitlines()]
    assert {line.split()[0] for line in lines if line} >= {"new", "broken", "old", "3"}
    assert any(line.startswith("new 1 ") and line.endswith("ago running") for line in lines)
    assert any(line.startswith("broken 0 ") for line in lines)


def test_pruning_names_what_it_removes(results: Results) -> None:
    sweep = record_sweep(results, "nightly", seeds=[0, 1])
    folder = results.sweep_folder("nightly")
    earlier = make_record(make_cell(steps=7), sweep="nightly")
    failed = make_record(sweep.cells[0], seed=9, status="failed", sweep="nightly")
    write_trial(folder, earlier)
    write_trial(folder, failed)
    write_spec(sweep, folder)
    assert failed.trial.id in read_spec_content(folder.spec_path)["trials"]
    os.utime(folder.spec_path, (1.0, 1.0))
    ended = command("prune", "nightly", "--failed")
    assert ended.code == 2
    assert "--yes: needed to remove files" in ended.err
    assert f"remove {folder.path / earlier.trial.id} (" in ended.out
    assert ", of no cell of the sweep)" in ended.out
    assert f"remove {folder.path / failed.trial.id} (" in ended.out
    assert len(folder.record_paths()) == 4
    run("prune", "nightly", "--yes")
    assert not (folder.path / earlier.trial.id).exists()
    assert len(folder.record_paths()) == 3
    run("prune", "nightly", "--failed", "--yes")
    assert len(folder.record_paths()) == 2
    # Nor is it waited for; when the sweep was asked for stays as it was.
    assert read_spec_content(folder.spec_path)["trials"] == [t.id for t in sweep.trials()]
    assert folder.spec_path.stat().st_mtime == 1.0
    assert run("prune", "nightly", "--failed").out == "nothing to remove\n"
    # What a removal that was cut off has left goes with the next.
    (results.runs / ".removed-1a2b" / "weekly").mkdir(parents=True)
    run("prune", "nightly", "--whole", "--yes")
    assert list(results.runs.iterdir()) == []


def test_a_sweep_that_a_link_leads_to_is_removed_with_the_link(
    results: Results, tmp_path: Path
) -> None:
    record_sweep(results, "nightly")
    folder = results.sweep_folder("nightly").path
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shutil.move(folder, scratch / "nightly")
    folder.symlink_to("../../scratch/nightly")
    run("prune", "nightly", "--whole", "--yes")
    assert [*scratch.iterdir(), *results.runs.iterdir()] == []


def test_a_sweep_is_removed_from_nfs(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is open when it is removed stays there under another name."""
    record_sweep(results, "nightly")
    unlink = os.unlink

    def unlink_on_nfs(path: str | Path, *, dir_fd: int | None = None) -> None:
        handles = [Path(handle) for handle in Path("/proc/self/fd").iterdir()]
        opened = [handle.readlink().name for handle in handles if handle.is_symlink()]
        if Path(path).name == "lock" and "lock" in opened:
            os.rename(path, ".nfs0001", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink_on_nfs)
    run("prune", "nightly", "--whole", "--yes")
    assert list(results.runs.iterdir()) == []


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """A sweep of two trials."""
    folder = Results(tmp_path).sweep_folder("demo")
    write_sweep(folder, [make_record(seed=seed) for seed in range(2)])
    return folder


def problems(folder: SweepFolder) -> list[str]:
    results = Results(folder.path.parent.parent)
    found = [*housekeeping.verify_sweep(results, "demo"), *housekeeping.verify_machines(results)]
    return [problem for problem in found if problem]


def test_file_that_is_changed_or_gone_is_named(folder: SweepFolder) -> None:
    (path,) = folder.record_paths()[0].parent.glob("record-*.npz")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert [str(path) in problem for problem in problems(folder)] == [True]
    path.unlink()
    assert [str(path) in problem for problem in problems(folder)] == [True]


def write_files_beside(folder: SweepFolder) -> None:
    """Leave what commands leave beside records: a checkpoint, exports, and so on."""
    results = Results(folder.path.parent.parent)
    record = make_record(seed=0)
    trial_folder = folder.trial_folder(record.trial.id)
    weights_path = trial_folder.best_checkpoints / WEIGHTS_FILE
    weights_path.parent.mkdir()
    save_file({"weight": torch.zeros(1, 1)}, weights_path)
    seal_path = weights_path.with_name(SEAL_FILE)
    write_seal(seal_path, 12, [WEIGHTS_FILE], {"trial": record.trial.id})
    write_atomically(trial_folder.export_path, sealed_text(asdict(make_export(record))))
    pins = "torch==2.13.0\n"
    path = folder.packages_path(hashlib.sha256(pins.encode()).hexdigest())
    path.parent.mkdir()
    path.write_text(pins, encoding="utf-8")
    write_parity(folder, make_parity())
    machine.write(results.peaks, make_machine())


def make_export(record: Record) -> TrialExport:
    """Return what is recorded of a model that was exported to ONNX."""
    metrics = {"accuracy": 0.9}
    parity = ExportParity(
        samples=60, metrics=metrics, exported_metrics=metrics, largest_difference=1e-6, tolerance=1e-5
    )  # fmt: skip
    model = ExportedModel(
        format="onnx", bytes=1, inputs=[], parity=parity, threads=1, processor="", packages={}
    )
    trial = record.trial.id
    return TrialExport(trial=trial, at=1.0, step=12, weights="", target="accuracy", models=[model])


BESIDE = (
    ("runs/demo/sweep.json", '"repeats": 1', '"repeats": 9'),
    ("runs/demo/*-s0-r0/best/seal.json", "12", "13"),
    ("runs/demo/*-s0-r0/best/model.safetensors", "weight", "height"),
    ("runs/demo/*-s0-r0/export/export.json", "1e-06", "1e-09"),
    ("runs/demo/environments/*.txt", "2.13", "2.14"),
    ("runs/demo/parity.json", "demo", "Demo"),
    ("peaks/*.json", "Test", "Fast"),
)


@pytest.mark.parametrize(("pattern", "before", "after"), BESIDE)
def test_any_file_that_was_edited_is_named(
    folder: SweepFolder, pattern: str, before: str, after: str
) -> None:
    write_files_beside(folder)
    assert problems(folder) == []
    (path,) = folder.path.parent.parent.glob(pattern)
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    (problem,) = problems(folder)
    assert str(path.parent) in problem
    assert "\n" not in problem
