"""Checked headers are kept, and never say what a record does not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.core.errors import BadFile
from harness.core.paths import Results, SweepFolder
from harness.records import headers as headers_module
from harness.records.files import read_record
from harness.records.headers import Headers
from harness.records.record import Record
from tests.factories import make_cell, make_record, write_sweep, write_trial


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    """Return the folder of a sweep of three trials, whose headers are all worth keeping."""
    monkeypatch.setattr(headers_module, "MIN_NEW", 1)
    monkeypatch.setattr(headers_module, "SETTLED_SECONDS", 0.0)
    folder = Results(tmp_path).sweep_folder("demo")
    records = [make_record(seed=0), make_record(seed=1), make_record(make_cell(precision="bf16"))]
    write_sweep(folder, records)
    time.sleep(0.01)  # longer than a tick of the kernel's clock
    return folder


def read_all(folder: SweepFolder) -> tuple[list[Record], int]:
    """Return all records as a command reads them, and how many had to be checked anew."""
    headers = Headers(folder)
    records = [headers.read(trial_id) for trial_id in folder.recorded_ids()]
    headers.save()
    return records, len(headers.new)


def test_a_kept_header_equals_its_record_and_shares_its_parts(folder: SweepFolder) -> None:
    assert read_all(folder)[1] == 3
    kept, checked = read_all(folder)
    assert checked == 0
    assert kept == [read_record(path) for path in folder.record_paths()]
    fp32 = [record for record in kept if record.trial.cell.axes.precision == "fp32"]
    assert fp32[0].trial.cell is fp32[1].trial.cell
    assert kept[0].loss is not None
    assert len(kept[0].loss.unpack()) == kept[0].loss.count


def test_a_record_that_changed_is_read_again(folder: SweepFolder) -> None:
    """Even where it has the same size and time as before."""
    read_all(folder)
    path = folder.record_paths()[0]
    stat = path.stat()
    content = bytearray(path.read_bytes())
    at = content.index(b'"seed"')
    content[at + 1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(BadFile, match="changed after it was written"):
        Headers(folder).read(path.parent.name)


def test_a_record_that_was_replaced_shows_its_new_content(folder: SweepFolder) -> None:
    read_all(folder)
    write_trial(folder, make_record(seed=0, status="failed"))
    statuses = {record.trial.id: record.status for record in read_all(folder)[0]}
    assert statuses[make_record(seed=0).trial.id] == "failed"


def test_a_record_that_was_just_written_is_not_kept(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers_module, "SETTLED_SECONDS", 60.0)
    assert read_all(folder)[1] == 0
    assert not folder.headers_path.exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_is_made_again(folder: SweepFolder, damage: str) -> None:
    before, _ = read_all(folder)
    content = bytearray(folder.headers_path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    length = {"flip": len(content), "cut": len(content) // 2, "empty": 0}[damage]
    folder.headers_path.write_bytes(content[:length])
    after, checked = read_all(folder)
    assert (after, checked) == (before, 3)
    assert read_all(folder)[1] == 0
