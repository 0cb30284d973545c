"""Logs of attempts that have ended, without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.launch import logs
from harness.launch.logs import scrub_logs
from tests.support.secrets import PRIVATE_KEY, SECRET, SECRET_TEXTS


@pytest.fixture
def folder(tmp_path: Path) -> TrialFolder:
    """A trial's folder with an empty folder for logs."""
    (tmp_path / "logs").mkdir()
    return TrialFolder(tmp_path)


def test_secrets_go_and_every_other_byte_stays(
    folder: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "CHUNK_BYTES", 16)
    folder.rank_log(0).write_bytes(b"caf\xe9\r\n" + b"my s3cret-value\n" * 3 + b"half a line")
    scrub_logs(folder, ["s3cret-value"])
    expected = b"caf\xe9\r\n" + b"my [redacted]\n" * 3 + b"half a line"
    assert folder.rank_log(0).read_bytes() == expected
    assert [path.name for path in folder.log_folder.iterdir()] == ["rank0.log"]


@pytest.mark.parametrize("kind", SECRET_TEXTS)
def test_no_kind_of_secret_stays_in_a_log(folder: TrialFolder, kind: str) -> None:
    folder.rank_log(0).write_text(f"before\n{SECRET_TEXTS[kind]}\nafter\n", encoding="utf-8")
    scrub_logs(folder, [])
    cleaned = folder.rank_log(0).read_text(encoding="utf-8")
    assert SECRET not in cleaned
    assert cleaned.endswith("\nafter\n")


def test_a_private_key_is_not_cut_in_two(
    folder: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "CHUNK_BYTES", 100)  # three of its six lines
    folder.rank_log(0).write_text(f"before\n{PRIVATE_KEY}\nafter\n", encoding="utf-8")
    scrub_logs(folder, [])
    assert folder.rank_log(0).read_text(encoding="utf-8") == "before\n[redacted]\nafter\n"


def test_log_without_secrets_is_not_written(folder: TrialFolder) -> None:
    folder.launch_log.write_text("nothing to hide\n", encoding="utf-8")
    before = folder.launch_log.stat()
    scrub_logs(folder, ["s3cret-value"])
    after = folder.launch_log.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_link_is_not_followed(folder: TrialFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "notes.txt"
    elsewhere.write_text("my s3cret-value\n", encoding="utf-8")
    folder.rank_log(0).symlink_to(elsewhere)
    scrub_logs(folder, ["s3cret-value"])
    assert elsewhere.read_text(encoding="utf-8") == "my s3cret-value\n"


def test_log_that_cannot_be_cleaned_is_an_error_in_one_line(folder: TrialFolder) -> None:
    folder.rank_log(0).mkdir()
    with pytest.raises(
        HarnessError, match=r"rank0\.log: can't be cleaned of secrets: Is a directory"
    ):
        scrub_logs(folder, ["s3cret-value"])
