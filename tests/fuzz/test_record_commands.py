"""Commands that show records, given one that was changed: never a traceback, never silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from harness.core.paths import Results
from harness.records.seal import sealed_text
from tests.factories import make_cell, make_record, write_sweep
from tests.fuzz.changes import SEEDS, changed_bytes, changed_content
from tests.support.commands import CommandResult, harness

COMMANDS = [("show", "demo"), ("compare", "demo", "other"), ("status",), ("status", "demo")]
SLOW_COMMANDS = [("report", "demo"), ("show", "demo", "--phases")]
EXIT_CODES = {0, 1, 2, 3}
CASES = settings.default.max_examples  # type: ignore[union-attr]
# A command takes a hundred times as long as reading a file, and a report a thousand times. So the
# commands share the inputs of `make fuzz`.
FEW = settings(max_examples=CASES // len(COMMANDS) if CASES > 1000 else 5)
FEWER = settings(max_examples=max(2, CASES // 50))


@pytest.fixture(scope="module")
def record_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record among others in the results of two sweeps."""
    results = Results(tmp_path_factory.mktemp("results"))
    for name in ("demo", "other"):
        folder = results.sweep_folder(name)
        folder.path.mkdir(parents=True)
        write_sweep(folder, [make_record(make_cell(), seed=seed, sweep=name) for seed in range(3)])
    return results.sweep_folder("demo").record_paths()[1]


@pytest.fixture(scope="module")
def content(record_path: Path) -> bytes:
    """The record as it was written."""
    return record_path.read_bytes()


def run(command: tuple[str, ...], record_path: Path) -> CommandResult:
    """Run a command on the results that the record is among."""
    ended = harness(*command, "--results", str(record_path.parents[3]))
    assert ended.code in EXIT_CODES
    assert "Traceback" not in ended.err
    return ended


def check_named(
    command: tuple[str, ...], record_path: Path, content: bytes, changed: bytes
) -> None:
    """Check that a command names a record whose content was changed, and what to do about it."""
    record_path.write_bytes(changed)
    try:
        ended = run(command, record_path)
        if not is_same(content, changed):
            lines = [line for line in ended.err.splitlines() if str(record_path) in line]
            assert len(lines) == 1, (ended.code, ended.err)
    finally:
        record_path.write_bytes(content)


def is_same(content: bytes, changed: bytes) -> bool:
    """Return whether two files hold the same JSON."""
    try:
        return bool(json.loads(content) == json.loads(changed))
    except (ValueError, RecursionError):
        return False


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@FEW
@given(seed=SEEDS)
def test_changed_record_is_named(
    record_path: Path, content: bytes, command: tuple[str, ...], seed: int
) -> None:
    if seed % 2:
        changed = changed_bytes(content, seed)
    else:
        changed = json.dumps(changed_content(json.loads(content), seed)).encode()
    check_named(command, record_path, content, changed)


@pytest.mark.parametrize("command", SLOW_COMMANDS, ids=" ".join)
@FEWER
@given(seed=SEEDS)
def test_changed_record_is_named_by_slow_commands(
    record_path: Path, content: bytes, command: tuple[str, ...], seed: int
) -> None:
    changed = json.dumps(changed_content(json.loads(content), seed)).encode()
    check_named(command, record_path, content, changed)


@pytest.mark.parametrize("command", [*COMMANDS, *SLOW_COMMANDS], ids=" ".join)
@FEWER
@given(seed=SEEDS)
def test_record_that_was_sealed_after_the_change(
    record_path: Path, content: bytes, command: tuple[str, ...], seed: int
) -> None:
    """It may be shown, if nothing in it contradicts anything else."""
    changed = changed_content(json.loads(content), seed)
    if isinstance(changed, dict):
        record_path.write_text(sealed_text(changed), encoding="utf-8")
        try:
            assert run(command, record_path).code in EXIT_CODES
        finally:
            record_path.write_bytes(content)
