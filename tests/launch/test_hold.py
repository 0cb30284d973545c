"""One sweep at a time measures on a machine, and nothing that another has left behind computes beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.core.errors import HarnessError
from harness.launch import hold
from harness.launch.hold import VARIABLE, hold_machine, kill_abandoned, mark_variables
from harness.sweep.cluster import SHARED_HOST, Profile
from tests.support.commands import harness
from tests.support.repository import Repository
from tests.support.running import wait_until

# A command that starts something in a session of its own, and runs until it is killed.
COMMAND = """
import os, subprocess, time
from harness.launch.hold import mark_variables
variables = {**os.environ, **mark_variables("launch.log")}
child = subprocess.Popen(["sleep", "60"], env=variables, start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


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


def test_a_lock_that_cannot_be_opened_is_named(path: Path) -> None:
    path.symlink_to("elsewhere")
    with pytest.raises(HarnessError, match=r"host.lock: .*; `validity.contention: null`"):
        hold_machine(Profile(), "first").__enter__()


@pytest.mark.parametrize(
    "command", ["gate --against HEAD", "bisect HEAD~1 HEAD", "certify", "peak"]
)
def test_what_measures_on_this_machine_holds_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
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


def test_those_of_a_command_that_was_killed_are_found_by_the_next() -> None:
    """Its parent may not have noticed yet that it has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        child = psutil.Process(int(command.stdout.readline()))
        kill_abandoned()
        assert child.is_running(), "its command runs"
        command.send_signal(signal.SIGKILL)
        wait_until(lambda: psutil.Process(command.pid).status() == psutil.STATUS_ZOMBIE)
        kill_abandoned()
        wait_until(lambda: not child.is_running(), 10)


def test_those_of_one_trial_leave_others_alone() -> None:
    """A mark of another namespace of process ids, a container's for example, says nothing."""
    marks = {log: mark_variables(log) for log in ("one.log", "other.log")}
    marks |= {"none": {VARIABLE: ""}, "elsewhere": {VARIABLE: "pid:[1] 1 launch.log"}}
    children = {}
    for name, mark in marks.items():
        variables = {**os.environ, **mark}
        children[name] = subprocess.Popen(["sleep", "60"], env=variables, start_new_session=True)
    for log in ("one.log", "other.log"):
        kill_abandoned()
        kill_abandoned(log)
        assert children.pop(log).wait(10) == -signal.SIGKILL
        assert [child.poll() for child in children.values()] == [None] * len(children)
    for child in children.values():
        child.kill()
        child.wait()
