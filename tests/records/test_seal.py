"""A record is read as it was written or refused in one line: any change breaks its seal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.errors import BadFile, FileUnavailable
from harness.core.paths import SweepFolder
from harness.records.record import (
    RECORD_FORMAT,
    Record,
    read_rank_result,
    read_record,
    read_record_header,
    write_record,
)
from harness.records.seal import digest_of, sealed_text
from harness.records.series import MAX_COUNT, Series
from harness.spec.cell import StopRule
from tests.factories import make_cell, make_record

REMEDY = RECORD_FORMAT.remedy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.json"


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a file as somebody does who knows nothing of its seal."""
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("read", [read_record, read_record_header])
@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content["summary"].update(throughput=1e6),
        lambda content: content["ranks"][0]["loss"].update(data="eJwDAAAAAAE="),
        lambda content: content.update(status="failed"),
        lambda content: content["trial"]["cell"]["workload"].update(uses=3.5),
        lambda content: content.pop("seal"),
        lambda content: content.update(seal=None),
        lambda content: content.update(schema="5.0"),
    ],
    ids=["summary", "series", "status", "uses", "no-seal", "null", "schema"],
)
def test_any_change_is_refused_with_the_remedy(
    path: Path, read: Callable[[Path], object], edit: Callable[[dict[str, Any]], object]
) -> None:
    write_record(path, make_record())
    change(path, edit)
    with pytest.raises(BadFile) as raised:
        read(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: seal: found ")
    assert message.endswith(f", that of its content: it was changed after it was written; {REMEDY}")


def test_spaces_and_the_order_of_keys_do_not_count(path: Path) -> None:
    write_record(path, make_record())
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content, sort_keys=True, indent=4), encoding="utf-8")
    assert read_record(path) == read_record(path)


def test_whole_numbers_and_fractions_are_told_apart() -> None:
    assert digest_of({"count": 1}) != digest_of({"count": 1.0})
    assert digest_of({"zero": 0.0}) != digest_of({"zero": -0.0})
    assert digest_of({"count": 2**80}) != digest_of({"count": 2**80 + 1})


def test_text_that_is_no_unicode_can_be_read_back(path: Path) -> None:
    """The name of a file may hold bytes that are no UTF-8, and an error may name that file."""
    record = make_record(status="failed")
    assert record.failure is not None
    write_record(path, replace(record, failure=replace(record.failure, message="no \udc80.csv")))
    failure = read_record(path).failure
    assert failure is not None
    assert failure.message == "no ?.csv"


def test_what_a_rank_leaves_is_sealed_too(path: Path) -> None:
    (rank,) = make_record().ranks
    write_record(path, rank)
    change(path, lambda content: content.update(pid=7))
    with pytest.raises(BadFile, match="changed after it was written"):
        read_rank_result(path)


def test_record_of_another_trial_is_refused(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    copied, replaced = make_record(seed=0), make_record(seed=1)
    path = folder.trial_folder(replaced.trial.id).record_path
    write_record(path, copied)
    for read in (read_record, read_record_header):
        with pytest.raises(BadFile) as raised:
            read(path)
        assert str(raised.value) == (
            f"{path}: not a valid record: trial: found {copied.trial.id}; allowed:"
            f" {replaced.trial.id}, whose folder it lies in; {REMEDY}"
        )


DDP = make_record(make_cell(strategy="ddp", world_size=2))
assert DDP.summary is not None
assert DDP.rank0 is not None
SHORT = Series.pack(np.zeros(3))
STOPPED = make_record(replace(make_cell(steps=40), stop=StopRule(patience=1)))
assert STOPPED.rank0 is not None
assert STOPPED.rank0.stop is not None
LENGTH = replace(STOPPED.rank0.stop, reason="length")
UNDECIDED = replace(STOPPED.rank0.evaluations[0], validation={"accuracy": 0.5})


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (replace(DDP, summary=replace(DDP.summary, throughput=9.0)), "summary.throughput: found 9"),
        (replace(DDP, summary=replace(DDP.summary, throughput=None)), "summary.throughput: found"),
        (replace(DDP, summary=replace(DDP.summary, throughput=-1.0)), "summary.throughput: found"),
        (replace(DDP, summary=replace(DDP.summary, step_p90=9.0)), "summary.step_p90: found 9"),
        (replace(DDP, summary=replace(DDP.summary, final_loss=9.0)), "summary.final_loss: found 9"),
        (replace(DDP, summary=replace(DDP.summary, best_metric=9.0)), "summary.best_metric: found"),
        (replace(DDP, summary=replace(DDP.summary, window_steps=9)), "summary.window_steps: found"),
        (replace(DDP, summary=replace(DDP.summary, shares={})), "summary.shares: found"),
        (replace(DDP, loss=SHORT), "loss: found 3 steps; allowed: the 20"),
        (replace(DDP, loss=Series.pack(np.zeros(20))), "loss: found other numbers"),
        (replace(DDP, ranks=DDP.ranks[:1]), "ranks: found 0; allowed: all 2"),
        (replace(DDP, ranks=DDP.ranks[::-1]), "ranks: found 1, 0; allowed"),
        (replace(DDP, status="failed"), "summary: found something in a trial that is failed"),
        (replace(DDP, status="invalid"), "violations: found 0"),
        (replace(DDP, rank0=None), "rank0: found nothing"),
        (replace(DDP, attempt=0), "attempt: found 0; allowed: 1 or more"),
        (replace(STOPPED, rank0=replace(STOPPED.rank0, stop=None)), "rank0.stop: found nothing"),
        (replace(DDP, rank0=replace(DDP.rank0, stop=LENGTH)), "rank0.stop: found something"),
        (
            replace(STOPPED, rank0=replace(STOPPED.rank0, stop=LENGTH)),
            "rank0.stop.step: found 20 by length; the length is 40",
        ),
        (
            replace(STOPPED, rank0=replace(STOPPED.rank0, evaluations=[UNDECIDED])),
            r"rank0.evaluations\[0\]: found no loss, by which the best is chosen",
        ),
        (
            replace(DDP, rank0=replace(DDP.rank0, target=replace(DDP.rank0.target, name="x"))),
            r"rank0.evaluations\[0\].metrics.x: missing; it is the target metric",
        ),
    ],
)
def test_record_that_contradicts_itself_is_refused(
    path: Path, record: Record, problem: str
) -> None:
    write_record(path, record)  # with a seal that is right
    with pytest.raises(BadFile, match=f": not a valid record: {problem}.*; {REMEDY}$"):
        read_record(path)


def test_series_is_unpacked_no_further_than_it_says() -> None:
    zeros = Series.pack(np.zeros(MAX_COUNT))
    assert len(zeros.data) < 2**18
    with pytest.raises(ValueError, match="a series of 3 numbers has more"):
        replace(zeros, count=3).unpack()


@pytest.mark.parametrize("data", ["", "!", "eJw", "AAAA", Series.pack(np.zeros(3)).data[:-8]])
def test_series_that_is_damaged_is_refused(path: Path, data: str) -> None:
    with pytest.raises(ValueError, match="a series"):
        replace(SHORT, data=data).unpack()
    write_record(path, replace(DDP, loss=replace(SHORT, data=data, count=20)))
    with pytest.raises(BadFile, match=": not a valid record: a series"):
        read_record(path)


def test_series_of_too_many_numbers_is_refused(path: Path) -> None:
    write_record(path, replace(DDP, loss=replace(SHORT, count=MAX_COUNT + 1)))
    with pytest.raises(BadFile, match=r"loss\.count: found 16777217; allowed: 0 to 16777216"):
        read_record(path)


@pytest.mark.parametrize("text", ["[" * 10**6, "[" * 60 + "]" * 60, '{"a":' * 60 + "1" + "}" * 60])
def test_deeply_nested_json_is_refused(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadFile, match="found lists or keys in more than 50 others"):
        read_record(path)


def test_file_that_is_not_handed_out_is_no_damaged_one(path: Path) -> None:
    path.mkdir()
    with pytest.raises(
        FileUnavailable, match="as a record: Is a directory; try again, and look at the disk"
    ):
        read_record(path)


def test_seal_is_that_of_the_content_as_it_is_read() -> None:
    text = sealed_text({"path": Path("a"), "pair": (1, 2), "names": {10: "a", 9: "b"}})
    content = json.loads(text)
    assert content["seal"] == digest_of(content)
