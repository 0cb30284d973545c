"""Starting processes, and making sure that they end.

Each process is started in a new session: it leads a group, so that everything that it starts
can be ended with it, and a Ctrl-C in the terminal reaches only the command, which then decides.

Processes that a starter must not leave behind, however it ends, call `die_with_parent` before they
import anything that takes long. So this module imports little, and nothing that is not of the standard library.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NoReturn, Protocol

from harness.core.errors import HarnessError

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
TERMINATE_TIMEOUT = 5.0  # seconds between SIGTERM and SIGKILL
KILL_TIMEOUT = 5.0  # seconds that the kernel may take to end processes that were killed
# The variable by which a starter gives its id to a process that is to end with it.
PARENT_VARIABLE = "HARNESS_PARENT_PID"

# How bytes that are not UTF-8 are decoded: "surrogateescape" lets them be encoded again.
Undecodable = Literal["replace", "surrogateescape"]


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


def end_process(exit_code: int) -> NoReturn:
    """End this process at once, without running what Python runs at exit.

    A log that the disk does not take is a failure, and nothing that keeps the process from ending.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            exit_code = exit_code or 1
    os._exit(exit_code)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends, however that ends.

    Linux only. If the parent has ended already, the kernel sends nothing, so this process kills
    itself. That takes the id of the parent that it was started by: `parent`, or the variable of
    `parent_variables`. Without either, a parent that has ended is not noticed.
    """
    variable = os.environ.pop(PARENT_VARIABLE, None)  # it does not hold for what this one starts
    if sys.platform != "linux":
        return
    if parent is None and variable is not None:
        parent = int(variable)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def parent_variables() -> dict[str, str]:
    """Return what the environment of a process needs whose `die_with_parent` means this process."""
    return {PARENT_VARIABLE: str(os.getpid())}


@contextmanager
def ending_descendants() -> Iterator[None]:
    """End all that was started below this process in the block, sessions of their own included.

    Linux only. Such processes become children of this one when their own parents end, rather than
    of init, so that they are found. Only for a process whose children are all to end.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _kill_descendants()


def _kill_descendants() -> None:
    """Kill all descendants of this process, and wait until they are gone."""
    import psutil

    deadline = time.monotonic() + KILL_TIMEOUT
    children = psutil.Process().children(recursive=True)
    # Again and again, because a process may fork while it is looked for.
    while children and time.monotonic() < deadline:
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=0.1)
        children = psutil.Process().children(recursive=True)


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
            with suppress(OSError):  # it has just ended
                # `TID (NAME) STATE …`, where the name may hold spaces and parentheses (man proc).
                text = (thread / "stat").read_text()
                after_name = text.rpartition(")")[2]
                yield after_name.split()[0]


def start_session(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process in a new session and append its output to `log`.

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

    The group gets SIGTERM, and SIGKILL once the process has ended or TERMINATE_TIMEOUT seconds have
    passed. What a process that has ended already has left in its group is killed too.
    """
    if process.poll() is None:
        signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_TIMEOUT)
    signal_group(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT)


def signal_group(group: int, number: int) -> None:
    """Send a signal to every process of a group; nothing happens if none is left."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def run_command(
    command: Sequence[str],
    *,
    timeout: float,
    variables: Mapping[str, str] | None = None,
    remedy: str = "",
    undecodable: Undecodable = "replace",
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit code and what it wrote to either stream.

    It has no input, so it can't ask for a password. `variables` are its whole environment, by
    default this process's own. Line ends stay as they are; `undecodable` says what becomes of bytes
    in its output that are not UTF-8. Raises HarnessError if it takes longer than `timeout` seconds,
    after ending it with everything that it started; `remedy` ends the message. Raises OSError if it
    can't be started.
    """
    with subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            ended = f"waited {timeout:g} s for `{Path(command[0]).name}`, which was ended"
            raise HarnessError(f"{ended}; {remedy}".rstrip("; ")) from None
        finally:
            end_process_group(process)
    return subprocess.CompletedProcess(
        command,
        process.returncode,
        stdout=output.decode(errors=undecodable),
        stderr=errors.decode(errors="replace"),
    )


if __name__ == "__main__":
    # `python -P -m harness.core.processes COMMAND ARGUMENT…`, for programs that don't call `die_with_parent`
    # themselves, such as a container's. Linux keeps the request across `execve`, unless that runs a
    # set-user-ID program.
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
