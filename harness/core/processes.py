"""Starting processes, and making sure that they end.

A process is started in a session of its own: it leads a group, so that everything that it starts
can be ended with it, and a Ctrl-C in the terminal reaches only the command, which then decides.
"""

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

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
TERMINATE_TIMEOUT = 5.0  # seconds between SIGTERM and SIGKILL


class Process(Protocol):
    """The part of `subprocess.Popen` that launchers need, of a process that leads a group."""

    @property
    def pid(self) -> int:
        """Return the process's id, which is that of its group too."""
        ...

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, None while the process runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status; raises subprocess.TimeoutExpired after `timeout` seconds."""
        ...

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process alone, not to its group."""
        ...


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends, however that ends.

    Linux only. Nothing is sent if the parent has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def wait_for_idle_threads(timeout: float = 1.0) -> None:
    """Wait until all other threads of this process sleep, for `timeout` seconds at most.

    Linux only. This is for a fork under CPython before 3.12: the child hangs if a thread was adding
    itself to the interpreter's list of threads at that moment, because the lock of that list is
    copied in its locked state. gloo's threads do so after a collective, each time they release a
    tensor.
    """
    deadline = time.monotonic() + timeout
    quiet = 0  # looks in a row at which all others slept: one could fall between two naps
    while sys.platform == "linux" and quiet < 2 and time.monotonic() < deadline:
        time.sleep(0.001)  # others get the interpreter, if that is what they wait for
        if set(_other_threads()) <= {"S"}:
            quiet += 1
        else:
            quiet = 0


def _other_threads() -> Iterator[str]:
    """Yield the states of this process's other threads, as /proc gives them: `S` is asleep."""
    for thread in Path("/proc/self/task").iterdir():
        if int(thread.name) != threading.get_native_id():
            with suppress(OSError):  # it has ended meanwhile
                # `TID (NAME) STATE …`, where the name may hold spaces and parentheses (man proc).
                yield (thread / "stat").read_text().rpartition(")")[2].split()[0]


def start_session(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own and append its output to `log`.

    It runs in `folder`, or in the current one, with `variables` as its whole environment. The
    output of everything that it starts goes to the log too. It has no input unless `stdin` is a
    file descriptor or subprocess.PIPE.
    """
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
    """End a process that leads a group, and everything that it started in the group.

    The group gets SIGTERM, and SIGKILL if the process still runs TERMINATE_TIMEOUT seconds later.
    Returns once the process has ended; nothing happens if it has already.
    """
    for ending in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, ending)
        try:
            process.wait(TERMINATE_TIMEOUT)
        except subprocess.TimeoutExpired:
            continue


def output_lines(
    command: Sequence[str], variables: Mapping[str, str], timeout_seconds: float
) -> list[str]:
    """Run a command in a session of its own, and return the lines of both its streams.

    Empty lines are left out. A command that takes longer than `timeout_seconds` is ended with
    everything that it started, and a line that says so is added. `variables` are its whole
    environment.
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
