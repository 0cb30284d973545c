"""What a process does, as it is seen from outside: its state, its stack, what it waits for.

A process that calls `write_stacks_on_signal` writes its Python stacks into its log when it gets a
signal. The handler needs no lock of Python, so it works in an endless loop of native code too.
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from harness.core.errors import HarnessError
from harness.core.processes import run_command
from harness.records.record import FRAME, own_frame
from harness.records.running import ProcessView

# Has a process write the Python stacks of its threads. No library and no user has one this high.
STACK_SIGNAL = signal.SIGRTMIN + 5
STACK_SECONDS = 2.0  # that a process has to write them
NATIVE_SECONDS = 10.0  # that py-spy has
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
OF_HARNESS = re.compile(r"/(?:harness|workloads)/")
# A thread in what faulthandler writes, and a call of it.
THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*\(most recent call first\):$", re.MULTILINE)
CALL = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
# A call of Python in what py-spy writes.
PY_SPY_CALL = re.compile(r"^    (\S+) \((/.+\.py):(\d+)\)$", re.MULTILINE)


def write_stacks_on_signal() -> None:
    """Have this process write its Python stacks to its log when it is asked, and when it crashes.

    Processes that it forks do too.
    """
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)


def site_of(stack: str) -> str:
    """Return the user's own line of a traceback, as in `train.py:88`, or else the nearest to it.

    That is the last line of the harness, and of anything if there is none; empty without any.
    """
    frame = own_frame(stack)
    if frame is None:
        calls = FRAME.findall(stack)
        of_harness = [call for call in calls if OF_HARNESS.search(call[0])]
        if not calls:
            return ""
        frame = (of_harness or calls)[-1]
    path, line = frame
    return f"{Path(path).name}:{line}"


def look_at(pid: int, created: float, log: Path, *, native: bool = False) -> ProcessView | None:
    """Return what a process does, None if there is none with this id that was created then.

    `log` is where its stacks go. With `native`, and of a process that is stopped, they are also read
    by py-spy, if that is installed and may look into the process.
    """
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - created) > 1:  # such as in another container
            return None
        state = process.status()
    except psutil.Error:
        return None
    stack, native_stack = "", ""
    if state not in (*STOPPED, *ENDED):
        stack = _read_stack(pid, log)
    if state in STOPPED or (native and state not in ENDED):
        native_stack = _read_native_stack(pid, is_stopped=state in STOPPED)
    if not stack:
        stack = _python_calls(native_stack)
    return ProcessView(
        pid=pid,
        state=state,
        waits_in=kernel_function(pid),
        stack=stack,
        native_stack=native_stack,
    )


def kernel_function(pid: int) -> str:
    """Return the function of the kernel in which a process's main thread sleeps, empty if unknown."""
    with suppress(OSError):
        name = Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8").strip()
        return "" if name == "0" else name
    return ""


def _read_stack(pid: int, log: Path) -> str:
    """Have a process write its stacks to its log, and return that of its main thread.

    Empty for a process that does not catch the signal, which would end it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        if caught is None or not int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1:
            return ""  # it has no handler for the signal
        start = log.stat().st_size
        os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + STACK_SECONDS
        size, grown_to = start, start
        while time.monotonic() < deadline and (size == start or size != grown_to):
            grown_to = size
            time.sleep(0.1)
            size = log.stat().st_size
        with log.open("rb") as file:
            file.seek(start)
            text = file.read(2**20).decode("utf-8", errors="replace")
    except OSError:
        return ""
    return main_stack(text)


def main_stack(text: str) -> str:
    """Return the main thread's stack from what faulthandler has written, the last call at the end.

    The main thread is the last of its threads.
    """
    *_, calls = THREAD.split(text)
    lines = []
    for path, line, name in reversed(CALL.findall(calls)):
        lines.append(f'  File "{path}", line {line}, in {name}')
    return "\n".join(lines)


def _read_native_stack(pid: int, *, is_stopped: bool) -> str:
    """Return the stacks of a process by py-spy, with those of native code; empty without py-spy.

    py-spy stops a process to read native code, which one that is stopped already would not show.
    """
    program = shutil.which("py-spy") or shutil.which(
        "py-spy", path=str(Path(sys.executable).parent)
    )
    if program is None:
        return ""
    option = "--nonblocking" if is_stopped else "--native"
    command = [program, "dump", option, "--full-filenames", "--pid", str(pid)]
    try:
        done = run_command(command, timeout=NATIVE_SECONDS)
    except (HarnessError, OSError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _python_calls(native_stack: str) -> str:
    """Return the main thread's stack from what py-spy has written, without its native calls."""
    _, _, calls = native_stack.partition('"MainThread"\n')
    lines = []
    for name, path, line in reversed(PY_SPY_CALL.findall(calls.partition("\nThread ")[0])):
        lines.append(f'  File "{path}", line {line}, in {name}')
    return "\n".join(lines)
