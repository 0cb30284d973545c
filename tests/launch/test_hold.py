"""One sweep at a time measures on a machine, and whoever waits is told for whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.launch import hold
from harness.launch.hold import hold_machine
from harness.sweep.cluster import SHARED_HOST, Profile
from tests.support.commands import harness
from tests.support.repository import Repository


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the lock's path, which is not that of the machine that the tests run on."""
    path = tmp_path / "host.lock"
    monkeypatch.setattr(hold, "LOCK_PATH", path)
    monkeypatch.delenv(SHARED_HOST, raising=False)
    return path


def test_a_second_sweep_waits_and_is_told_for_whom(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "TIMEOUT", 0.0)
    messages: list[str] = []
    with hold_machine(Profile(), "running trials of first", messages.append):
        assert messages == []
        assert path.stat().st_mode & 0o777 == 0o666
        second = hold_machine(Profile(), "running trials of second", messages.append)
        with pytest.raises(HarnessError, match=r"^waited 0 h for process \d+, "), second:
            pytest.fail("it did not wait")
    (message,) = messages
    holder = f"waiting for process {os.getpid()}, running trials of first since "
    assert message.startswith(holder)
    assert message.endswith("; `validity.contention: null` in the profile allows both side by side")


def test_a_sweep_runs_where_there_can_be_no_lock(path: Path) -> None:
    path.symlink_to("elsewhere")
    messages: list[str] = []
    with hold_machine(Profile(), "first", messages.append):
        assert "so another command may measure at the same time" in messages[0]


@pytest.mark.parametrize(
    "command",
    [
        "gate --against HEAD",
        "bisect HEAD~1 HEAD",
        "certify",
        "peak",
    ],
)
def test_what_measures_on_this_machine_holds_it_too(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Each waits for a sweep, before it starts anything."""
    monkeypatch.setattr(hold, "TIMEOUT", 0.0)
    repository = Repository(tmp_path / "repository")
    repository.write(0.5)
    repository.commit("after")
    arguments = [] if command == "peak" else [str(repository.sweep)]
    if command in ("certify", "peak"):
        arguments += ["--results", str(tmp_path)]
    with hold_machine(Profile(), "running trials of first"):
        ended = harness(*command.split(), *arguments)
    assert ended.code == 1, ended.out
    assert "running trials of first since" in ended.err.splitlines()[-1]
