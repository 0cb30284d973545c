"""Forks commands of the harness from a process that has loaded all that they import.

A command that is started as usual loads torch and MLflow for several seconds before it does
anything. Here it is a fork of the campaign's driver, which has them loaded, and runs the same
`harness.cli.main.main`. The forkserver, which the command starts with Popen, is a fork too, and runs
the same program. All further processes are the product's own doing.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import inspect
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil

from harness.core.processes import die_with_parent
from harness.launch import forkserver
from harness.launch.forkserver import PROGRAM
from harness.launch.forkserver_process import close_files, refuse_threads
from tests.programs.campaign import shim

PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
GRACE = 5.0  # seconds that what a command started may take to end after it
POLL = 0.01  # seconds
MODULES = (
    *forkserver.PRELOAD,
    "harness.cli.main",
    "harness.api",
    "mlflow.store.tracking.sqlalchemy_store",
)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    exit_code: int | None  # negative for a signal; None if it hung and was ended
    output: str  # of both its streams
    left_behind: Mapping[int, str]  # processes that did not end with it -> their state

    @property
    def last_line(self) -> str:
        """Return the last line that it printed."""
        return self.output.rstrip().rpartition("\n")[2]


def preload() -> None:
    """Load what commands import; raises if that starts a thread."""
    for module in MODULES:
        importlib.import_module(module)
    refuse_threads()


def adopt_orphans() -> None:
    """Become the parent of every process whose parent has ended, so that none is overlooked."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def start(
    arguments: Sequence[str],
    *,
    folder: Path,
    variables: Mapping[str, str],
    output: Path,
) -> int:
    """Return the id of a new process that runs `harness ARGUMENT…` in `folder`.

    `variables` are added to this process's environment.
    """
    pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        die_with_parent()  # a campaign that is killed leaves nothing behind either
        os.setsid()
        _redirect(output)
        os.chdir(folder)
        os.environ.update(variables)
        tempfile.tempdir = None  # it was chosen by the environment before
        _reset_signals()
        shim.enter("harness")
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
        exit_code = _run_command(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(exit_code)
    raise AssertionError("os._exit does not return")


def wait(
    pids: Sequence[int], *, outputs: Sequence[Path], deadline: float, server: int | None = None
) -> list[Ended]:
    """Wait until all commands have ended, for `deadline` seconds; then see what they left running.

    What takes longer is ended, and so is whatever was left. A `server` is one more command, which
    gets Ctrl-C once the others have ended.
    """
    started = time.monotonic()
    exit_codes: dict[int, int] = {}
    awaited = set(pids)
    while not exit_codes.keys() >= awaited and time.monotonic() < started + deadline:
        exit_codes |= _reap()
        time.sleep(POLL)
        if server is not None and server not in awaited and exit_codes.keys() >= awaited:
            awaited.add(server)
            if server not in exit_codes:
                os.kill(server, signal.SIGINT)
    left_behind: dict[int, str] = {}
    if exit_codes.keys() >= awaited:
        left_behind = _wait_for_orphans()
    _end_descendants()
    return [
        Ended(
            exit_code=exit_codes.get(pid),
            output=output.read_text(encoding="utf-8", errors="replace"),
            left_behind=left_behind,
        )
        for pid, output in zip(pids, outputs, strict=True)
    ]


def is_running(pid: int) -> bool:
    """Return whether a process runs, which one that has ended and was not waited for does not."""
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status != "zombie"


def _run_command(arguments: Sequence[str]) -> int:
    """Run the command line, and return its exit code."""
    from harness.cli.main import main

    sys.argv = ["harness", *arguments]
    try:
        main(arguments)
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return ending.code or 0
        print(ending.code, file=sys.stderr)
    return 1


def _redirect(output: Path) -> None:
    """Add the output of this process to a file; there is no input."""
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (handle, 1), (handle, 2)):
        os.dup2(source, target)
    os.close(handle)
    os.close(nothing)


def _reset_signals() -> None:
    """Handle signals as a Python that has just been started does."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(exit_code: int) -> NoReturn:
    """End this process as Python ends: threads, then what was registered with atexit."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(exit_code)


_start_program = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _execute_child(process: Any, *arguments: Any) -> None:
    """Start a program for Popen; the forkserver's is run in a fork of this process."""
    parameters = inspect.signature(_start_program).bind(process, *arguments).arguments
    command = parameters["args"]
    if isinstance(command, str) or str(PROGRAM) not in map(str, command):
        return _start_program(process, *arguments)  # type: ignore[no-any-return]
    process.pid = os.fork()
    if process.pid == 0:
        _become_forkserver(parameters)
    process._child_created = True
    pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    process._close_pipe_fds(*(parameters[name] for name in pipes))
    return None


def _become_forkserver(parameters: Mapping[str, Any]) -> NoReturn:
    """Run the forkserver's program in this process, as Popen's parameters say."""
    exit_code = 1
    try:
        if parameters["start_new_session"]:
            os.setsid()
        for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
            os.dup2(parameters[name], number)
        close_files()
        os.environ.clear()
        os.environ.update(parameters["env"])
        os.chdir(parameters["cwd"] or ".")
        _reset_signals()
        shim.enter("forkserver")
        program = str(PROGRAM)
        sys.argv = list(parameters["args"][2:])  # after `python -P`
        sys.path.insert(0, str(PROGRAM.parent))  # as Python does with a script's folder
        runpy.run_path(program, run_name="__main__")
        exit_code = 0
    except SystemExit as ending:
        print(ending.code or "", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _reap() -> dict[int, int]:
    """Return the exit codes of children that have ended, by their ids; orphans are among them."""
    exit_codes = {}
    with suppress(ChildProcessError):  # there is no child
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            exit_codes[pid] = os.waitstatus_to_exitcode(status)
    return exit_codes


def _descendants() -> list[psutil.Process]:
    """Return all processes below this one that run."""
    running = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def _wait_for_orphans() -> dict[int, str]:
    """Give what a command started GRACE seconds to end; return what still runs then, and how."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        _reap()
        if not _descendants():
            return {}
        time.sleep(5 * POLL)
    states = {}
    for process in _descendants():
        with suppress(psutil.NoSuchProcess):
            states[process.pid] = process.status()
    return states


def _end_descendants() -> None:
    """Kill every process below this one."""
    while running := _descendants():
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _reap()
        time.sleep(POLL)
    _reap()
