"""Processes that end when they should."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

PR_SET_PDEATHSIG = 1
PATIENCE = 5.0  # seconds between asking a process to end and ending it


class Process(Protocol):
    """What `subprocess.Popen` shows of a process that leads its own group."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent ends, however that ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def wait_for_idle_threads(patience: float = 1.0) -> None:
    """Wait until no other thread of this process is at work, for so many seconds at most. Linux only.

    For a fork under CPython before 3.12: the child hangs if a thread was adding itself to the interpreter's list of
    threads meanwhile, because that list's lock is copied as held. gloo's threads do so after a collective, each time
    they let go of a tensor.
    """
    deadline, quiet = time.monotonic() + patience, 0
    while sys.platform == "linux" and quiet < 2 and time.monotonic() < deadline:
        time.sleep(0.001)  # others get the interpreter, if that is what they wait for
        quiet = quiet + 1 if set(_other_threads()) <= {"S"} else 0


def _other_threads() -> Iterator[str]:
    """The states of this process's other threads, as /proc has them."""
    for thread in Path("/proc/self/task").iterdir():
        if int(thread.name) != threading.get_native_id():
            with suppress(OSError):  # it has ended meanwhile
                yield (thread / "stat").read_text().rpartition(")")[2].split()[0]


def start_session(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, in `folder` or here, with its output, and that of all it starts, added
    to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments,
            env=dict(variables),
            cwd=folder,
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def end_process_group(process: Process) -> None:
    """End a process that leads its own group, and all that it started there; waits until it is gone."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, ending)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            continue


def output_lines(
    command: Sequence[str], variables: Mapping[str, str], timeout_seconds: float
) -> list[str]:
    """Run a command in a session of its own, and return what it wrote to both streams, without empty lines.

    A command that takes longer is ended with everything that it started, and a line that says so is added.
    """
    process = subprocess.Popen(
        command,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        end_process_group(process)
        output, _ = process.communicate()
        output += f"\nended after {timeout_seconds:g} s".encode()
    finally:
        end_process_group(process)
    lines = output.decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()]
