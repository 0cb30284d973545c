"""One sweep at a time measures on a machine, and whoever waits is told for whom."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.launch import host_lock as module
from harness.launch.host_lock import host_lock
from harness.spec.cluster import SHARED_HOST
from tests.support.commands import harness
from tests.support.repository import Repository


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the lock's path, which is not that of the machine that the tests run on."""
    path = tmp_path / "host.lock"
    monkeypatch.setattr(module, "LOCK_PATH", path)
    monkeypatch.setattr("sys.argv", ["/bin/harness", "run", "--tracking-uri=//me:hunter2@host"])
    return path


class Waiting:
    """A second sweep, which gives up waiting once it was told whom it waits for."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.ran = False

    def run(self) -> None:
        with host_lock(
            "running trials of second",
            on_message=self.messages.append,
            should_wait=lambda: not self.messages,
        ):
            self.ran = True


def test_a_second_sweep_waits_and_is_told_for_whom(path: Path) -> None:
    second = Waiting()
    with host_lock("running trials of first", on_message=second.messages.append):
        assert second.messages == []
        assert path.stat().st_mode & 0o777 == 0o666
        second.run()
        third = Waiting()  # is told the same, as the second has not got the lock
        third.run()
    assert third.messages == second.messages
    (message,) = second.messages
    assert message.startswith(
        f"waiting, because process {os.getpid()} (`harness run`) has been running trials of first"
        " on this machine since "
    )
    assert message.endswith("; `validity.contention: null` in the profile allows both side by side")


def test_it_is_not_waited_for_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.0)
    with (
        host_lock("first", on_message=print),
        pytest.raises(HarnessError, match=r"^waited 0 h; process \d+ "),
        host_lock("second", on_message=print),
    ):
        pytest.fail("it did not wait")


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b'{"pid": 1, "since": 1e999}', b"[" * 5000]
)
def test_whatever_the_file_says_it_is_waited_for(path: Path, content: bytes) -> None:
    second = Waiting()
    with host_lock("first", on_message=print):
        path.write_bytes(content)
        second.run()
    assert second.messages[0].startswith("waiting, because another process has been measuring")


def test_a_sweep_runs_where_there_can_be_no_lock(path: Path) -> None:
    path.symlink_to("elsewhere")
    second = Waiting()
    second.run()
    assert second.ran
    assert "so another command may measure at the same time" in second.messages[0]


def test_a_full_disk_loses_only_the_name_of_the_holder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    second = Waiting()
    with host_lock("running trials of first", on_message=print):
        second.run()
    assert second.messages[0].startswith("waiting, because another process has been measuring")


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
    monkeypatch.delenv(SHARED_HOST)
    monkeypatch.setattr(module, "TIMEOUT", 0.0)
    repository = Repository(tmp_path / "repository")
    repository.write(0.5)
    repository.commit("after")
    arguments = [] if command == "peak" else [str(repository.sweep)]
    if command in ("certify", "peak"):
        arguments += ["--results", str(tmp_path)]
    with host_lock("running trials of first", on_message=print):
        ended = harness(*command.split(), *arguments)
    assert ended.code == 1, ended.out
    assert "has been running trials of first on this machine since" in ended.err.splitlines()[-1]
