"""Everything that records promise is checked by one command."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from harness.analysis.parity import write_parity
from harness.core.paths import Results, SweepFolder, write_atomically
from harness.export.record import (
    ExportedModel,
    ExportParity,
    TrialExport,
)
from harness.hardware import machine
from harness.housekeeping.verify import Verified, verify_machines, verify_sweep
from harness.records.record import Record
from harness.records.seal import sealed_text
from harness.training.best import write_best
from tests.factories import make_machine, make_record, write_sweep
from tests.support.parity import make_parity


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """A sweep of two trials."""
    folder = Results(tmp_path).sweep_folder("demo")
    write_sweep(folder, [make_record(seed=seed) for seed in range(2)])
    return folder


def verify(folder: SweepFolder) -> list[Verified]:
    results = Results(folder.path.parent.parent)
    return [*verify_sweep(results, "demo"), *verify_machines(results)]


def problems(folder: SweepFolder) -> list[str]:
    return [verified.problem for verified in verify(folder) if verified.problem]


def test_whole_sweep_has_no_problem(folder: SweepFolder) -> None:
    assert [verified.ranks for verified in verify(folder) if verified.is_record] == [1, 1]
    assert problems(folder) == []


def test_file_that_is_changed_or_gone_is_named(folder: SweepFolder) -> None:
    (path,) = folder.record_paths()[0].parent.glob("record-*.npz")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert [str(path) in problem for problem in problems(folder)] == [True]
    path.unlink()
    assert [str(path) in problem for problem in problems(folder)] == [True]


def test_sweep_that_was_changed_is_named(folder: SweepFolder) -> None:
    content = json.loads(folder.spec_path.read_text(encoding="utf-8"))
    folder.spec_path.write_text(json.dumps(content | {"repeats": 9}), encoding="utf-8")
    assert [str(folder.spec_path) in problem for problem in problems(folder)] == [True]


def write_files_beside(folder: SweepFolder) -> None:
    """Leave what commands leave beside records: a checkpoint, exports, and so on."""
    results = Results(folder.path.parent.parent)
    record = make_record(seed=0)
    trial_folder = folder.trial_folder(record.trial.id)
    weights = {"weight": torch.zeros(1, 1)}
    write_best(trial_folder.best_checkpoints, record.trial.id, 12, weights, {})
    write_atomically(trial_folder.export_path, sealed_text(asdict(make_export(record))))
    pins = "torch==2.13.0\n"
    path = folder.packages_path(hashlib.sha256(pins.encode()).hexdigest())
    path.parent.mkdir()
    path.write_text(pins, encoding="utf-8")
    write_parity(folder, make_parity())
    machine.write(results.peaks, make_machine())


def make_export(record: Record) -> TrialExport:
    """Return what is recorded of a model that was exported to ONNX."""
    assert record.rank0 is not None
    parity = ExportParity(
        samples=60,
        metrics={"accuracy": 0.9},
        exported_metrics={"accuracy": 0.9},
        largest_difference=1e-6,
        tolerance=1e-5,
    )
    model = ExportedModel(
        format="onnx", bytes=1, inputs=[], parity=parity, threads=1, processor="", packages={}
    )
    return TrialExport(
        trial=record.trial.id,
        at=1.0,
        step=12,
        weights="",
        target="accuracy",
        models=[model],
    )


BESIDE = (
    ("runs/demo/*-s0-r0/best/seal.json", "12", "13"),
    ("runs/demo/*-s0-r0/best/model.safetensors", "weight", "height"),
    ("runs/demo/*-s0-r0/export/export.json", "1e-06", "1e-09"),
    ("runs/demo/environments/*.txt", "2.13", "2.14"),
    ("runs/demo/parity.json", "demo", "Demo"),
    ("peaks/*.json", "Test", "Fast"),
)


@pytest.mark.parametrize(("pattern", "before", "after"), BESIDE)
def test_file_beside_a_record_that_was_edited_is_named(
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


def test_folder_of_a_trial_that_can_not_be_listed_is_named(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_folder = folder.record_paths()[0].parent.parent
    listdir = os.listdir

    def refuse(path: Path) -> list[str]:
        if path == trial_folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert problems(folder) == [f"{trial_folder}: can't be read: Permission denied"]
