"""A record is read as it was written or refused in one line: any change breaks its seal."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.errors import BadFile, FileUnavailable
from harness.records.files import (
    RECORD_FORMAT,
    read_rank_result,
    read_record,
    write_rank_result,
    write_record,
)
from harness.records.seal import problem_of, sealed_text
from harness.sweep.cell import StopRule
from tests.factories import make_cell, make_record

SCHEMAS = Path(__file__).parent / "schemas"
REMEDY = RECORD_FORMAT.remedy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.json"


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a file as somebody does who knows nothing of its seal."""
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content["summary"].update(throughput=1e6),
        lambda content: content["arrays"].update(sha256="0" * 64),
        lambda content: content.update(status="failed"),
        lambda content: content["trial"]["cell"]["workload"].update(uses=3.5),
        lambda content: content.pop("seal"),
        lambda content: content.update(seal=None),
        lambda content: content.update(ended=0.0),
    ],
    ids=["summary", "digest", "status", "uses", "no-seal", "null", "ended"],
)
def test_any_change_is_refused_with_the_remedy(
    path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    write_record(path, make_record())
    change(path, edit)
    with pytest.raises(BadFile) as raised:
        read_record(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: seal: found ")
    assert message.endswith(
        f", that of the text before it: it was changed after it was written; {REMEDY}"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"attempt": 1,', '"attempt": 2,'),
        ('"attempt": 1,', '"attempt":  1,'),
        ('"attempt": 1,', '"attempt": 1.0,'),
        (' "seal": ', '  "seal": '),
        ('"\n}\n', '"\n}'),
        ('"\n}\n', '"\n}\n\n'),
    ],
    ids=["number", "space", "fraction", "before-seal", "no-end", "line"],
)
def test_every_byte_counts(path: Path, before: str, after: str) -> None:
    write_record(path, make_record())
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(BadFile, match="it was changed after it was written"):
        read_record(path)


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
    write_rank_result(path, rank)
    change(path, lambda content: content.update(pid=7))
    with pytest.raises(BadFile, match="changed after it was written"):
        read_rank_result(path)


DDP = make_record(make_cell(strategy="ddp", world_size=2))
assert DDP.summary is not None
assert DDP.rank0 is not None
SHORT = np.zeros(3)
STOPPED = make_record(replace(make_cell(steps=40), stop=StopRule(patience=1)))
assert STOPPED.rank0 is not None
assert STOPPED.rank0.stop is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:300] + bytes(8) + content[308:],
        lambda content: content[:-30] + bytes(8) + content[-22:],
    ],
    ids=["half", "nothing", "values", "end"],
)
def test_columns_that_were_changed_are_refused(
    path: Path, damage: Callable[[bytes], bytes]
) -> None:
    write_record(path, DDP)
    (columns,) = path.parent.glob("*.npz")
    columns.write_bytes(damage(columns.read_bytes()))
    with pytest.raises(BadFile, match=f"^{re.escape(str(columns))}: .*; {REMEDY}$"):
        _ = read_record(path).ranks


def test_columns_of_another_record_are_refused(path: Path) -> None:
    """They are whole by themselves, with a checksum of their own."""
    write_record(path, DDP)
    (columns,) = path.parent.glob("*.npz")
    write_record(path.with_name("other.json"), make_record(DDP.trial.cell, seed=1))
    (other,) = path.parent.glob("other*.npz")
    other.replace(columns)
    with pytest.raises(BadFile, match=r"found the SHA-256 \w+…; allowed: \w+…"):
        list(read_record(path).ranks)


def test_columns_are_only_read_beside_the_record(path: Path) -> None:
    write_record(path, DDP)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["arrays"]["file"] = f"../../{content['arrays']['file']}"
    path.write_text(sealed_text(content), encoding="utf-8")
    assert len(read_record(path).ranks) == 2


@pytest.mark.parametrize("text", ["[" * 10**6, '{"schema":' * 5000 + "1" + "}" * 5000])
def test_deeply_nested_json_is_refused(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadFile, match="can't be read as a record: "):
        read_record(path)


def test_file_that_is_not_handed_out_is_no_damaged_one(path: Path) -> None:
    path.mkdir()
    with pytest.raises(
        FileUnavailable, match="as a record: Is a directory; try again, and look at the disk"
    ):
        read_record(path)


def test_seal_is_the_digest_of_the_text_before_it() -> None:
    text = sealed_text({"path": Path("a"), "pair": (1, 2), "names": {10: "ä", 9: "b"}})
    body, _, end = text.partition(',\n "seal"')
    assert end == f': "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'
    assert problem_of(text.encode()) is None
    content = json.loads(text)
    del content["seal"]
    assert content == {"path": "a", "pair": [1, 2], "names": {"10": "ä", "9": "b"}}


def test_a_value_that_json_does_not_know_is_refused_when_it_is_written() -> None:
    with pytest.raises(TypeError):
        sealed_text({"steps": np.int64(3)})
