"""Records of every schema with our major number can be read: those in tests/records/schemas, and so
those of users.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.records.files import read_record, write_record
from harness.records.record import SCHEMA

SCHEMAS = Path(__file__).parent / "schemas"
RECORDS = sorted(SCHEMAS.glob("*/*.json"))  # each with its columns next to it


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_record_of_an_earlier_minor_schema_is_read(path: Path) -> None:
    record = read_record(path)
    assert record.status == path.stem
    assert [rank.rank for rank in record.ranks] == list(range(record.trial.cell.axes.world_size))
    assert (record.rank0 is not None) == (record.status == "done")


def test_present_schema_has_sample_records() -> None:
    assert {path.stem for path in SCHEMAS.glob(f"{SCHEMA}/*.json")} == {"done", "failed"}


def test_a_field_that_is_new_or_gone_changes_the_schema(tmp_path: Path) -> None:
    """Raise the minor number for a new field with a default, the major number for anything else.

    Then leave sample records of the new schema beside the old ones.
    """
    path = SCHEMAS / SCHEMA / "done.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    write_record(tmp_path / "done.json", read_record(path))
    written = json.loads((tmp_path / "done.json").read_text(encoding="utf-8"))
    assert keys(written) == keys(content)
    (columns,) = tmp_path.glob("*.npz")
    assert columns.name == content["columns"]["file"]


def keys(value: Any) -> Any:
    """Return the keys of nested mappings, without the values below them."""
    if isinstance(value, dict):
        return {name: keys(item) for name, item in value.items()}
    if isinstance(value, list):
        return [keys(item) for item in value]
    return None
