"""Processes and shared memory that outlived the launcher of the ranks that have made them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.launch.abandoned import (
    MIN_AGE,
    VARIABLE,
    kill_abandoned,
    mark_variables,
    remove_abandoned_blocks,
)
from tests.support.running import wait_until

# A command that starts something in a session of its own, and runs until it is killed.
COMMAND = """
import os, subprocess, time
from harness.launch.abandoned import mark_variables
variables = {**os.environ, **mark_variables("launch.log")}
child = subprocess.Popen(["sleep", "60"], env=variables, start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def command() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, text=True)
    with process:
        yield process
        process.kill()


def test_those_of_a_command_that_was_killed_are_found_by_the_next(
    command: subprocess.Popen[str],
) -> None:
    """Its parent may not have noticed yet that it has ended."""
    assert command.stdout is not None
    child = psutil.Process(int(command.stdout.readline()))
    kill_abandoned()
    assert child.is_running(), "its command runs"
    command.send_signal(signal.SIGKILL)
    wait_until(lambda: psutil.Process(command.pid).status() == psutil.STATUS_ZOMBIE)
    kill_abandoned()
    wait_until(lambda: not child.is_running(), 10)


def test_those_of_one_trial_leave_others_alone() -> None:
    children = {}
    for log in ("one.log", "other.log"):
        variables = {**os.environ, **mark_variables(log)}
        children[log] = subprocess.Popen(["sleep", "60"], env=variables, start_new_session=True)
    kill_abandoned("one.log")
    assert children["one.log"].wait(10) == -signal.SIGKILL
    assert children["other.log"].poll() is None
    kill_abandoned("other.log")
    assert children["other.log"].wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("mark", ["", "no mark", "pid:[1] 1 1 launch.log"])
def test_a_mark_of_elsewhere_says_nothing(mark: str) -> None:
    """In another namespace of process ids, a container for example, the command may run."""
    variables = {**os.environ, VARIABLE: mark}
    with subprocess.Popen(["sleep", "60"], env=variables) as child:
        kill_abandoned()
        assert child.poll() is None
        child.kill()


def ended_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def block(folder: Path, creator: int, *, content: bytes = b"", age: float = 2 * MIN_AGE) -> Path:
    """Return a block as torch names it, last changed `age` seconds ago."""
    path = folder / f"torch_{creator}_1234567_0"
    path.write_bytes(content)
    changed = path.stat().st_mtime - age
    os.utime(path, (changed, changed))
    return path


@pytest.mark.parametrize("content", [b"", bytes(512)], ids=["empty", "reserved"])
def test_only_blocks_that_nobody_can_use_are_removed(tmp_path: Path, content: bytes) -> None:
    """Torch reserves the pages of a block before it removes the name."""
    ended, others = ended_process(), tmp_path / "others"
    others.mkdir()
    abandoned = block(tmp_path, ended, content=content)
    kept = [
        block(tmp_path, os.getpid()),
        block(others, ended, content=bytes(512) + b"in use"),
    ]
    remove_abandoned_blocks(tmp_path)
    remove_abandoned_blocks(others)
    assert not abandoned.exists()
    assert all(path.exists() for path in kept)


def test_a_block_that_was_just_created_is_left(tmp_path: Path) -> None:
    created = block(tmp_path, ended_process(), age=0)
    remove_abandoned_blocks(tmp_path)
    assert created.exists()


def test_a_machine_without_such_a_folder(tmp_path: Path) -> None:
    remove_abandoned_blocks(tmp_path / "none")
    assert not (tmp_path / "none").exists()
