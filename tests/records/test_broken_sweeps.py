"""A sweep that can't be read is named, and the others are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.records.store import recorded_sweep_names
from tests.factories import make_record, write_sweep
from tests.support.commands import harness


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """The results of two sweeps."""
    results = Results(tmp_path)
    for name in ("first", "second"):
        (results.runs / name).mkdir(parents=True)
        write_sweep(results.sweep_folder(name), [make_record(sweep=name)])
    return results


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", "[" * 9999, '{"schema": "1.0", "name": 3}', '{"schema": "1.1"}'],
    ids=["empty", "cut", "list", "no-keys", "deep", "name", "unsealed"],
)
def test_status_goes_on_after_a_broken_sweep(results: Results, content: str) -> None:
    path = results.sweep_folder("first").spec_path
    path.write_text(content, encoding="utf-8")
    assert recorded_sweep_names(results) == ["first", "second"]
    ended = harness("status", "--results", str(results.path))
    assert ended.code == 2
    assert ended.out.startswith("second: ")
    assert ended.err.startswith(f"harness: {path}: ")
    assert ended.err.count("\n") == 1


def test_status_goes_on_after_a_sweep_with_a_broken_record(results: Results) -> None:
    (path,) = results.sweep_folder("first").record_paths()
    path.write_text("{}", encoding="utf-8")
    for arguments in ((), ("--watch",), ("first",), ("first", "--watch")):
        ended = harness("status", *arguments, "--results", str(results.path))
        assert ended.code == 2
        assert ended.out.startswith("first: 1 trial: 1 unreadable") or "first" in arguments
        assert ("second: " in ended.out) == ("first" not in arguments)
        assert ended.err.startswith(f"harness: {path}: schema: found null")
