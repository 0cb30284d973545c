"""Everything that records promise is checked by one command."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import Results, SweepFolder
from harness.records.files import remove_unused_columns, write_record
from harness.records.record import RankFingerprints, Ranks
from harness.records.seal import sealed_text
from harness.records.verify import verify_sweep
from tests.factories import make_record, write_sweep


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """A sweep of two trials, the first of which has fingerprints."""
    folder = Results(tmp_path).sweep_folder("demo")
    write_sweep(folder, [make_record(seed=seed) for seed in range(2)])
    first = make_record(seed=0)
    trial_folder = folder.trial_folder(first.trial.id)
    path = trial_folder.fingerprint_path(0)
    path.parent.mkdir()
    path.write_text("marks", encoding="utf-8")
    digest = hashlib.sha256(b"marks").hexdigest()
    fingerprints = RankFingerprints(steps=[], file="fingerprints/rank0.jsonl", file_digest=digest)
    ranks = Ranks.of([replace(first.ranks[0], fingerprints=fingerprints)])
    write_record(trial_folder.record_path, replace(first, ranks=ranks))
    remove_unused_columns(trial_folder.path)
    return folder


def problems(folder: SweepFolder) -> list[str]:
    return [verified.problem for verified in verify_sweep(folder) if verified.problem]


def test_whole_sweep_has_no_problem(folder: SweepFolder) -> None:
    assert [verified.ranks for verified in verify_sweep(folder)] == [1, 1]
    assert problems(folder) == []


def test_figure_that_was_sealed_after_a_change_is_found(folder: SweepFolder) -> None:
    """The seal is right, so that only the columns contradict it."""
    path = folder.record_paths()[1]
    content = json.loads(path.read_text(encoding="utf-8"))
    content["summary"]["throughput"] *= 2
    path.write_text(sealed_text(content), encoding="utf-8")
    (problem,) = problems(folder)
    assert problem.startswith(f"{path}: not a valid record: summary.throughput: found ")


@pytest.mark.parametrize("name", ["record-*.npz", "fingerprints/rank0.jsonl"])
def test_file_that_is_changed_or_gone_is_named(folder: SweepFolder, name: str) -> None:
    (path,) = folder.record_paths()[0].parent.glob(name)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert [str(path) in problem for problem in problems(folder)] == [True]
    path.unlink()
    assert [str(path) in problem for problem in problems(folder)] == [True]


def test_sweep_that_was_changed_is_named(folder: SweepFolder) -> None:
    content = json.loads(folder.spec_path.read_text(encoding="utf-8"))
    folder.spec_path.write_text(json.dumps(content | {"repeats": 9}), encoding="utf-8")
    assert [str(folder.spec_path) in problem for problem in problems(folder)] == [True]
