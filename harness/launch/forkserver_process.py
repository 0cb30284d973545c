"""The forkserver: a process that loads modules once and then forks processes that have them loaded.

Started as `python -P forkserver_process.py` with a socket as its standard input, it serves the
process that has started it. It imports nothing of the harness, so that a process that it forks can
import the harness from any tree; what to load, the starter says.

Each message is a line of JSON. The starter sends first

    {"preload": [MODULE, ...], "blocked_signals": [NUMBER, ...], "refuse_threads": BOOLEAN,
     "python": PATH}

where PATH is the interpreter that this process runs under already. Then it sends, as often as it
likes, a list of processes to fork together, each an object with the parameters of `become_process`.
The answer to each list is `{"pids": [PID, ...]}`, in the same order. When a process has ended,
`{"pid": PID, "exit_code": CODE}` follows; a negative code is the signal that ended it. When the
starter closes the socket, the forkserver ends, and all that it has forked with it.

The forkserver computes nothing and has one thread only, so what it forks is as if it had just
loaded the same modules.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
PARENT_VARIABLE = "HARNESS_PARENT_PID"  # as in harness.core.processes
# Read by libraries when they are loaded, which would start threads otherwise: NumPy's OpenBLAS, and the
# allocator of pyarrow, which pandas imports.
OPENBLAS = "OPENBLAS_NUM_THREADS"
ARROW = "JE_ARROW_MALLOC_CONF"


def main() -> None:
    """Load what the starter says, then fork what each line asks for until it closes the socket."""
    _end_with_parent(int(os.environ.pop(PARENT_VARIABLE)))
    connection = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    requests = Lines(connection)
    setup = json.loads(requests.next_line())
    signal.pthread_sigmask(signal.SIG_BLOCK, setup["blocked_signals"])
    inherited = _python_path(os.environ)
    common_path = [entry for entry in sys.path if entry not in inherited]
    preload(setup["preload"])
    if setup["refuse_threads"]:
        refuse_threads()
    serve(connection, requests, common_path)


def serve(connection: socket.socket, requests: Lines, common_path: Sequence[str]) -> None:
    """Fork what each line of the starter asks for; return when the starter closes the socket.

    Every forked process imports from `common_path`, after its own PYTHONPATH.
    """
    # It can be read from whenever a child has ended: Python's own handler for SIGCHLD writes to the
    # other end. pidfd_open would need Linux 5.3.
    child_ended, writable = socket.socketpair()
    child_ended.setblocking(False)
    writable.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable.detach(), warn_on_full_buffer=False)
    while True:
        if not requests.has_line():
            ready, _, _ = select.select([connection, child_ended], [], [])
            if child_ended in ready:
                child_ended.recv(4096)
                _report_ended(connection)
            if connection not in ready:
                continue
        line = requests.next_line()
        if not line:
            return
        pids = [fork(process, common_path) for process in json.loads(line)]
        _send(connection, {"pids": pids})


class Lines:
    """Reads lines from a socket. A file object would hide from `select` the lines that it has read
    ahead.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""

    def has_line(self) -> bool:
        """Whether a line has arrived."""
        return b"\n" in self.buffer

    def next_line(self) -> bytes:
        """Wait for a line; empty once the other end is closed."""
        while not self.has_line():
            received = self.connection.recv(65536)
            if not received:
                return b""
            self.buffer += received
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line


def preload(modules: Sequence[str]) -> None:
    """Import modules without starting a thread."""
    before = dict(os.environ)
    os.environ[OPENBLAS] = "1"
    options = [before[ARROW]] if ARROW in before else []
    os.environ[ARROW] = ",".join([*options, "background_thread:false"])
    for module in modules:
        importlib.import_module(module)
    for name in (OPENBLAS, ARROW):
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


def refuse_threads() -> None:
    """End this process if a module has started a thread, such as a profiler's.

    A fork would lose the thread, and the locks that it holds would stay locked for ever.
    """
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        sys.exit(f"the forkserver has {threads} threads after loading its modules; allowed: 1")


def fork(process: Mapping[str, Any], common_path: Sequence[str]) -> int:
    """Return the number of a new process that runs a module; see `become_process`."""
    forkserver = os.getpid()
    pid = os.fork()
    if not pid:
        _end_with_parent(forkserver)
        become_process(**process, common_path=common_path)
    # Both sides set the group: it exists before the child does anything and before the starter
    # hears of the number.
    os.setpgid(pid, pid)
    return pid


def become_process(
    *,
    module: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    folder: str,
    log: str,
    cores: Sequence[int],
    packages: Mapping[str, str],
    common_path: Sequence[str],
) -> NoReturn:
    """Run `module` as `python -P -m` would, in a forked process; end with its exit code.

    It runs in `folder` with `variables` as its whole environment. It imports each of `packages`
    from the folder that holds it, and everything else from its own PYTHONPATH, then from `common_path`,
    which is where any process of this interpreter imports from. It uses `cores` only (those of the
    forkserver if there are none) and adds its output to `log`. It leads a process group.
    """
    exit_code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _close_files()
        os.chdir(folder)
        if cores:
            os.sched_setaffinity(0, cores)
        os.environ.clear()
        os.environ.update(variables)
        importlib.invalidate_caches()
        for package, holder in packages.items():
            # Once it is imported, its modules are looked up in it alone, whatever the path has.
            sys.path[:] = [holder, *common_path]
            importlib.import_module(package)
        sys.path[:] = [*_python_path(variables), *common_path]
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        exit_code = 0
    except SystemExit as ending:
        exit_code = _exit_code(ending)
    except BaseException:
        traceback.print_exc()
    finally:
        # Whatever is raised here would let this process go on as a second forkserver.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # the disk does not take its log
                exit_code = exit_code or 1
        os._exit(exit_code)


def _close_files() -> None:
    """Close all files but the standard three: the forkserver's sockets must not stay open in what
    it forks.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        if int(name) > 2:
            with suppress(OSError):  # the folder that was listed is closed already
                os.close(int(name))


def _exit_code(ending: SystemExit) -> int:
    """Return the exit code that Python gives such a process; print the message, if it has one, as
    Python does.
    """
    if ending.code is None:
        return 0
    if isinstance(ending.code, int):
        return ending.code
    print(ending.code, file=sys.stderr)
    return 1


def _python_path(variables: Mapping[str, str]) -> list[str]:
    """Return the entries that PYTHONPATH adds to `sys.path`, absolute as Python makes them."""
    text = variables.get("PYTHONPATH", "")
    if not text:
        return []
    return [os.path.abspath(entry) for entry in text.split(os.pathsep)]  # noqa: PTH100


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end it now if that has happened.

    This is `harness.core.processes.die_with_parent`, which can't be imported here.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _report_ended(connection: socket.socket) -> None:
    """Send the exit code of every child that has ended."""
    with suppress(ChildProcessError):  # no child is left
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _send(connection, {"pid": pid, "exit_code": os.waitstatus_to_exitcode(status)})


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall((json.dumps(message) + "\n").encode())


if __name__ == "__main__":
    main()
