"""Files of a running trial that are empty, broken or of other types do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.core.errors import BadFile
from harness.core.paths import TrialFolder
from harness.records.assignment import FailedRank, read_failed_ranks, read_progress_file

FAILED = {"exitcode": -9, "at": 1.7e9}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "3",
        "[" * 100_000,
    ],
    ids=["empty", "broken", "list", "number", "deep"],
)
def test_progress_that_cannot_be_used_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "progress.json"
    path.write_text(content, encoding="utf-8")
    assert read_progress_file(path) == {}


@pytest.mark.parametrize(
    "content", ["", "[]", {"x": FAILED}, {"²": FAILED}, {"9" * 5000: FAILED}, {"0": 3}], ids=str
)
def test_failures_that_cannot_be_read_fail_the_trial(tmp_path: Path, content: object) -> None:
    folder = TrialFolder(tmp_path)
    folder.failures_path.write_text(json.dumps({"3": FAILED}), encoding="utf-8")
    assert read_failed_ranks(folder.failures_path) == {3: FailedRank(exitcode=-9, at=1.7e9)}
    text = content if isinstance(content, str) else json.dumps(content)
    folder.failures_path.write_text(text, encoding="utf-8")
    with pytest.raises(BadFile, match="list of failed ranks"):
        read_failed_ranks(folder.failures_path)
