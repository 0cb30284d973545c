"""What is on disk is read back to the bit, or not at all."""

from __future__ import annotations

import json
import os
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.analysis.result import aggregate
from harness.core.errors import BadFile, BadInput, FileUnavailable
from harness.core.paths import Results, safe_folder_name, write_atomically
from harness.records import files
from harness.records.format import sealed_text
from harness.records.record import SCHEMA, Evaluation, RankResult, TargetMetric
from harness.sweep.cell import Length
from tests.factories import make_cell, make_record, with_ranks

TWO_RANKS = make_cell(strategy="ddp", world_size=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trial" / "record.json"


def normal(value: Any) -> Any:
    """Lists for tuples, which JSON does not tell apart."""

    def rows(kind: object) -> object:
        if callable(kind):
            return None  # what loads the ranks of a record
        assert isinstance(kind, np.ndarray)
        return [kind.dtype.str, kind.tobytes().hex()]

    return json.loads(msgspec.json.encode(value, enc_hook=rows))


@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_record_comes_back_equal(path: Path, status: Any) -> None:
    written = make_record(TWO_RANKS, status=status)
    files.write_record(path, written)
    read = files.read_record(path)
    assert normal(read) == normal(written)
    assert normal(read.ranks) == normal(written.ranks)


def test_a_record_that_is_truncated_is_refused_wherever_it_ends(path: Path) -> None:
    files.write_record(path, make_record())
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput, match="can't be read as a record"):
            files.read_record(path)


def test_what_json_cannot_hold_is_never_written(path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_record(path, replace(make_record(), ended=float("nan")))
    assert not path.exists()


@pytest.mark.parametrize(
    "rank",
    [make_record().ranks[0], RankResult(rank=1, host="node1", entered_at=0.5)],
    ids=["done", "failed at once"],
)
def test_what_a_rank_leaves_comes_back_equal_or_is_refused(path: Path, rank: RankResult) -> None:
    files.write_rank_result(path, rank)
    assert normal(files.read_rank_result(path)) == normal(rank)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadFile, match="it was changed after it was written"):
        files.read_rank_result(path)
    write_atomically(path, sealed_text({"rank": 0}))
    with pytest.raises(BadFile, match="can't be read as a rank's result"):
        files.read_rank_result(path)


@pytest.mark.parametrize(("higher", "step"), [(True, 20), (False, 10)])
def test_best_evaluation_is_the_earliest_among_equals(higher: bool, step: int) -> None:
    evaluations = []
    for at, score in ((10, 0.1), (20, 0.9), (30, 0.9), (40, 0.1)):
        metrics = {"score": score}
        evaluations.append(Evaluation(step=at, metrics=metrics, seconds=0.1, started_at=at))
    metric = TargetMetric(name="score", higher_is_better=higher)
    best = metric.best(evaluations)
    assert best is not None
    assert best.step == step
    assert metric.best([]) is None


def test_numpy_opens_the_columns(path: Path) -> None:
    """Other tools read records too: a header in JSON, and arrays."""
    files.write_record(path, make_record(TWO_RANKS))
    header = json.loads(path.read_text(encoding="utf-8"))
    assert (header["schema"], header["status"]) == (SCHEMA, "done")
    with np.load(path.with_name(header["arrays"]["file"])) as columns:
        assert columns["loss"].shape == columns["step_phases.forward"].shape == (2, 20)
        assert [rank["rank"] for rank in json.loads(columns["ranks"].tobytes())] == [0, 1]


def test_ranks_that_stopped_at_different_steps_come_back_equal(path: Path) -> None:
    record = make_record(TWO_RANKS, status="failed")
    first, second = record.ranks
    early = replace(first, loss=np.arange(3.0))
    late = replace(second, loss=np.arange(5.0), step_seconds=np.zeros(4))
    files.write_record(path, with_ranks(record, [early, late]))
    assert normal(files.read_record(path).ranks) == normal([early, late])


def test_header_does_not_grow_with_ranks_and_steps(path: Path) -> None:
    """A thousand ranks and as many steps: the columns have 16 MB of numbers."""
    once = Length(steps=1000)
    one = make_record(replace(make_cell(steps=1000), evaluate=once))
    (rank,) = one.ranks
    many = [replace(rank, rank=number, rank0=None) for number in range(1024)]
    axes = replace(one.trial.cell.axes, strategy="ddp", world_size=1024, batch_size=1024)
    files.write_record(path, one)
    small = path.stat().st_size
    trial = replace(one.trial, cell=replace(one.trial.cell, axes=axes))
    files.write_record(path, with_ranks(one, many, trial=trial))
    assert path.stat().st_size < small + 1000 < 20_000


def test_columns_are_read_when_they_are_needed_and_not_before(path: Path) -> None:
    files.write_record(path, make_record())
    (columns,) = path.parent.glob("*.npz")
    columns.rename(columns.with_suffix(".away"))
    record = files.read_record(path)
    assert record.hosts == ("node1",)
    assert aggregate([record])[0].throughput is not None
    for read in (lambda: record.ranks[0], lambda: record.loss):
        with pytest.raises(FileUnavailable, match=f"^{re.escape(str(columns))}: .*No such file"):
            read()


def test_record_that_is_not_replaced_keeps_its_columns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that is killed between the columns and the header has changed nothing."""
    before, after = make_record(seed=0), make_record(seed=1)
    files.write_record(path, before)

    def die_at_header(path: Path, content: str | bytes, **options: Any) -> None:
        if path.suffix == ".json":
            raise KeyboardInterrupt
        write_atomically(path, content, **options)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_atomically", die_at_header)
        with pytest.raises(KeyboardInterrupt):
            files.write_record(path, after)
    assert normal(files.read_record(path)) == normal(before)
    assert len(list(path.parent.glob("*.npz"))) == 2


def test_a_file_is_replaced_whole_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    write_atomically(path, "older")
    write_atomically(path, "old")
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half \ud800")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


HOSTILE = [
    "quickstart", "nightly run", "nightly-run", "nightly  run", "it's", 'say "hi"', "a;rm -rf x", "a\nb", "a\tb", "a/b",
    "../../etc", "..", ".", "...", ".hidden", "-rf", "--help", "naïve", "naive", "数据", "データ", "$(x)", "`x`", "a|b",
    "a&b", "a*b", "a?b", "~", "con:", "a\\b", "a%b", "x" * 60, "x" * 61, "a" * 300, "a" * 301, "A" * 300, "trailing.",
    "trailing-", " ", "",
]  # fmt: skip


def test_names_of_folders_are_safe_in_any_file_system_and_shell(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for name in HOSTILE:
        folder = safe_folder_name(name)
        assert set(folder) <= {*string.ascii_letters, *string.digits, *"._-"}, name
        assert folder[0] not in ".-", name
        assert 0 < len(folder) <= 100, name
        assert results.sweep_folder(name).path.resolve().parent == results.runs.resolve(), name
    assert len({safe_folder_name(name) for name in HOSTILE}) == len(HOSTILE)
    assert safe_folder_name("mnist-scaling_2.v1") == "mnist-scaling_2.v1"
