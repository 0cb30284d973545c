"""The forkserver: a process that loads modules once and then forks processes that have them loaded.

Started as `python -P forkserver_process.py SETUP` with a socket as its standard input, it serves the
process that has started it. It imports nothing of the harness, so that a process that it forks can
import the harness from any tree; what to load, the starter says: SETUP is JSON of what
`harness.launch.forkserver.ForkServer` gets.

Each message is a line of JSON. The starter sends a list of processes to fork together, each an object with
the fields of `harness.launch.forkserver.ForkRequest`, and waits for the answer `{"pids": [PID, ...]}`, in the
same order, before it sends the next. When a process has ended, `{"pid": PID, "exit_code": CODE}` follows; a
negative code is the signal that ended it. When the starter closes the socket, the forkserver ends, and all
that it has forked.

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
PARENT_VARIABLE = "HARNESS_PARENT_PID"  # as in harness.core.processes


def main() -> None:
    """Load what the starter says, then fork what each line asks for until it closes the socket.

    In a forked process, run what it is for: it ends as Python ends after any module.
    """
    setup = json.loads(sys.argv[1])
    end_with_parent(int(os.environ.pop(PARENT_VARIABLE)))
    connection = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    # It asks ranks to stop: all that is forked inherits that it waits until they look for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    inherited = python_path(os.environ)
    common_path = [entry for entry in sys.path if entry not in inherited]
    for name in setup["preload"]:
        module_name, _, function = name.partition(":")
        module = importlib.import_module(module_name)
        if function:
            getattr(module, function)()
    if setup["refuse_threads"]:
        refuse_threads()
    request = serve(connection)
    if request is not None:
        become_process(request, common_path)


def refuse_threads() -> None:
    """End this process if a module has started a thread, such as a profiler's.

    A fork would lose the thread, and the locks that it holds would stay locked for ever.
    """
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        sys.exit(f"the forkserver has {threads} threads after loading its modules; allowed: 1")


def serve(connection: socket.socket) -> Mapping[str, Any] | None:
    """Fork what each line of the starter asks for; return None when the starter closes the socket.

    In each forked process, return what the starter asks for.
    """
    # It can be read from whenever a child has ended: Python's own handler for SIGCHLD writes to the
    # other end. pidfd_open would need Linux 5.3.
    child_ended, writable = socket.socketpair()
    child_ended.setblocking(False)
    writable.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable.detach(), warn_on_full_buffer=False)
    forkserver = os.getpid()
    lines = connection.makefile("rb")
    while True:
        ready, _, _ = select.select([connection, child_ended], [], [])
        if child_ended in ready:
            child_ended.recv(4096)
            report_ended(connection)
        if connection not in ready:
            continue
        line = lines.readline()
        if not line:
            return None
        pids = []
        for request in json.loads(line):
            pid = os.fork()
            if not pid:
                end_with_parent(forkserver)
                return dict(request)
            # Both sides set the group: it exists before the child does anything and before the starter
            # hears of the number.
            os.setpgid(pid, pid)
            pids.append(pid)
        send(connection, {"pids": pids})


def become_process(request: Mapping[str, Any], common_path: Sequence[str]) -> None:
    """Run what a request asks for as `python -P -m` would, in a forked process.

    It imports each of the request's packages from the folder that holds it, and everything else from its own
    PYTHONPATH, then from `common_path`, which is where any process of this interpreter imports from. It leads
    a process group.
    """
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(request["folder"])
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    output = os.open(request["log"], append, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    close_files()
    if request["cores"]:
        os.sched_setaffinity(0, request["cores"])
    os.environ.clear()
    os.environ.update(request["variables"])
    importlib.invalidate_caches()
    for package, holder in request["packages"].items():
        # Once it is imported, its modules are looked up in it alone, whatever the path has.
        sys.path[:] = [holder, *common_path]
        importlib.import_module(package)
    sys.path[:] = [*python_path(os.environ), *common_path]
    sys.argv[1:] = request["arguments"]
    # Python warns of a program that was imported before it is run.
    sys.modules.pop(request["module"], None)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def close_files() -> None:
    """Close all files but the standard three: the forkserver's sockets must not stay open in what
    it forks.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        if int(name) > 2:
            with suppress(OSError):  # the folder that was listed is closed already
                os.close(int(name))


def python_path(variables: Mapping[str, str]) -> list[str]:
    """Return the entries that PYTHONPATH adds to `sys.path`, absolute as Python makes them."""
    text = variables.get("PYTHONPATH", "")
    if not text:
        return []
    return [os.path.abspath(entry) for entry in text.split(os.pathsep)]  # noqa: PTH100


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end it now if that has happened.

    This is `harness.core.processes.die_with_parent`, which can't be imported here.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def report_ended(connection: socket.socket) -> None:
    """Send the exit code of every child that has ended."""
    with suppress(ChildProcessError):  # no child is left
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            send(connection, {"pid": pid, "exit_code": os.waitstatus_to_exitcode(status)})


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a line to the starter."""
    line = json.dumps(message) + "\n"
    connection.sendall(line.encode())


if __name__ == "__main__":
    main()
