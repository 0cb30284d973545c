"""The forkserver: a process that loads modules once and then forks processes that have them loaded.

Started as `python -P forkserver_process.py` with a socket as its standard input, it serves the
process that has started it. It imports nothing of the harness, so that a process that it forks can
import the harness from any tree; what to load, the starter says.

Each message is a line of JSON. The starter sends first

    {"preload": [MODULE, ...], "blocked_signals": [NUMBER, ...], "refuse_threads": BOOLEAN}

and then, as often as it likes, a list of processes to fork together, each an object with the
parameters of `become_process`. The answer to each list is `{"pids": [PID, ...]}`, in the same
order. When a process has ended, `{"pid": PID, "exit_code": CODE}` follows; a negative code is the
signal that ended it. When the starter closes the socket, the forkserver ends, and all that it has
forked with it.

Started as `python -P forkserver_process.py SOCKET SETUP IDLE_SECONDS`, it serves all commands of its
user that connect to SOCKET, one after the other or side by side. SETUP is the first of the messages
above. For each command it forks a forkserver of the command's own, which sends `{"server": PID}` and
then understands the rest of the above. It ends when no command has used it for IDLE_SECONDS, when a
file that it has loaded has changed, and when SOCKET is gone or another's.

The forkserver computes nothing and has one thread only, so what it forks is as if it had just
loaded the same modules.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
PARENT_VARIABLE = "HARNESS_PARENT_PID"  # as in harness.core.processes
OPENBLAS = "OPENBLAS_NUM_THREADS"
CREDENTIALS = struct.Struct("3i")  # `struct ucred` of <sys/socket.h>: process, user, group
QUEUE = 16  # commands that may wait for their forkserver
CHECK_SECONDS = 30.0  # between two looks at SOCKET
MADV_COLLAPSE = 25  # of <linux/mman.h>, since Linux 6.1
HUGE_PAGE = 2 * 2**20  # bytes; where huge pages have another size, the kernel refuses


def main() -> None:
    """Serve the process that has started this one, or all commands that connect to a socket."""
    if sys.argv[1:]:
        path, setup, idle_seconds = sys.argv[1:]
        leave_starter(Path(path))
        CommandServer(Path(path), json.loads(setup), float(idle_seconds)).run()
        return
    starter = os.environ.pop(PARENT_VARIABLE, None)
    _end_with_parent(os.getppid() if starter is None else int(starter))
    connection = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    requests = Lines(connection)
    common_path = load(json.loads(requests.next_line()))
    serve(connection, requests, common_path)


def load(setup: Mapping[str, Any]) -> list[str]:
    """Load what the starter says, and return the path that every forked process imports from.

    Its own PYTHONPATH comes before that path.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, setup["blocked_signals"])
    inherited = _python_path(os.environ)
    common_path = [entry for entry in sys.path if entry not in inherited]
    preload(setup["preload"])
    if setup["refuse_threads"]:
        refuse_threads()
    return common_path


def serve(connection: socket.socket, requests: Lines, common_path: Sequence[str]) -> None:
    """Fork what each line of the starter asks for until the starter closes the socket."""
    child_ended = _watch_children()
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


# Serving all commands of a user


class CommandServer:
    """Gives each command that connects a forkserver of its own, which is forked with all loaded.

    A command's forkserver ends with the command, however that ends, and with this process.
    """

    def __init__(self, path: Path, setup: Mapping[str, Any], idle_seconds: float) -> None:
        """Take over the listening socket at `path` from standard input, and load what `setup` says."""
        self.path = path
        self.inode = path.lstat().st_ino
        self.idle_seconds = idle_seconds
        listening = socket.socket(fileno=os.dup(0))
        listening.setblocking(False)
        self.listeners = [listening]  # none once no further command is served
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        self.common_path = load(setup)
        self.loaded = file_states(_loaded_files())
        self.child_ended = _watch_children()
        self.commands: dict[int, int] = {}  # the forkserver of each command, by the command's pidfd

    def run(self) -> None:
        """Serve commands until this process is not used any more, and leave no file."""
        try:
            self._serve()
        finally:
            self._remove_files()

    def _serve(self) -> None:
        """Serve commands as long as one may come."""
        idle_since = time.monotonic()
        while self.commands or self._may_stay(idle_since):
            waited_for: list[socket.socket | int] = [
                *self.listeners,
                self.child_ended,
                *self.commands,
            ]
            ready, _, _ = select.select(waited_for, [], [], min(CHECK_SECONDS, self.idle_seconds))
            if self.child_ended in ready:
                self.child_ended.recv(4096)
                self._forget_ended()
            for command in set(self.commands).intersection(ready):
                self._end(command)
            for listening in self.listeners:
                if listening in ready:
                    self._accept(listening)
            if self.commands:
                idle_since = time.monotonic()

    def _may_stay(self, idle_since: float) -> bool:
        """Return whether a command may still come; `idle_since` is by the monotonic clock."""
        if not self.listeners or time.monotonic() >= idle_since + self.idle_seconds:
            return False
        try:
            return self.path.lstat().st_ino == self.inode
        except OSError:  # such as a folder that is removed when its user logs out
            return False

    def _accept(self, listening: socket.socket) -> None:
        """Fork the forkserver of a command that has connected.

        A connection of another user is closed. So are all, and the socket with them, once a file has
        changed that a new forkserver would load otherwise.
        """
        try:
            connection, _ = listening.accept()
        except BlockingIOError:  # whoever connected has given up
            return
        with connection:
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size
            )
            process, user, _ = CREDENTIALS.unpack(credentials)
            if user != os.geteuid() or not process:
                return
            if file_states(self.loaded) != self.loaded:
                self._refuse_more()
                return
            try:
                command = os.pidfd_open(process)
            except OSError:  # it has ended already
                return
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                self._become_forkserver(connection, parent)
            self.commands[command] = pid

    def _become_forkserver(self, connection: socket.socket, parent: int) -> NoReturn:
        """Serve one command in a process that has just been forked; `parent` is the one before."""
        exit_code = 1
        try:
            _end_with_parent(parent)
            os.setsid()  # it is signaled as a group, as one that a command has started by itself
            signal.set_wakeup_fd(-1)
            for listening in self.listeners:
                listening.close()
            self.child_ended.close()
            for command in self.commands:
                os.close(command)
            _send(connection, {"server": os.getpid()})
            serve(connection, Lines(connection), self.common_path)
            exit_code = 0
        except (BrokenPipeError, ConnectionResetError):
            exit_code = 0  # the command has ended
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(exit_code)

    def _end(self, command: int) -> None:
        """End the forkserver of a command that has ended; one that is stopped would not notice."""
        os.kill(self.commands.pop(command), signal.SIGKILL)
        os.close(command)

    def _forget_ended(self) -> None:
        """Note which forkservers of commands have ended."""
        ended = set()
        with suppress(ChildProcessError):  # no child is left
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                ended.add(pid)
        for command, pid in list(self.commands.items()):
            if pid in ended:
                del self.commands[command]
                os.close(command)

    def _refuse_more(self) -> None:
        """Serve no further command: the next one finds no socket, and starts another server."""
        self._remove_files()
        for listening in self.listeners:
            listening.close()
        self.listeners = []

    def _remove_files(self) -> None:
        """Remove the socket and an empty log, unless another server has put its own there."""
        log = self.path.with_suffix(".log")
        with suppress(OSError):
            if self.path.lstat().st_ino != self.inode:
                return
            self.path.unlink()
            if not log.stat().st_size:
                log.unlink()


def leave_starter(path: Path) -> None:
    """Listen at `path`, and go on in a process that does not belong to the starter.

    The process that was started ends as soon as commands can connect. The socket becomes standard
    input. It replaces that of an earlier server, which nothing listens at any more.
    """
    listening = socket.socket(socket.AF_UNIX)
    new_path = path.with_suffix(".new")
    new_path.unlink(missing_ok=True)
    listening.bind(str(new_path))
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        os._exit(0 if os.read(readable, 1) else 1)
    os.close(readable)
    os.setsid()
    # Here, because whoever connects is told that the process which has called this is at the other end.
    listening.listen(QUEUE)
    new_path.rename(path)
    os.dup2(listening.fileno(), 0)
    listening.close()
    os.chdir("/")  # so that it keeps no file system busy
    os.write(writable, b"1")
    os.close(writable)


def file_states(paths: Iterable[str]) -> dict[str, tuple[int, int, int] | None]:
    """Return inode, size and time of modification (ns) of each file, None of those that are gone."""
    states: dict[str, tuple[int, int, int] | None] = {}
    for path in paths:
        states[path] = None
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116 - of thousands of files, for each command
            states[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return states


def _loaded_files() -> list[str]:
    """Return the files of all modules that this process has loaded."""
    files = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            files.append(file)
    return files


# Loading and forking


def preload(modules: Sequence[str]) -> None:
    """Import what takes long, without starting a thread."""
    before = os.environ.get(OPENBLAS)
    os.environ[OPENBLAS] = "1"  # NumPy's OpenBLAS starts its threads when it is loaded
    gc.disable()  # collections that find nothing would take a seventh of the time to load torch
    for module in modules:
        importlib.import_module(module)
    gc.enable()
    if before is None:
        del os.environ[OPENBLAS]
    else:
        os.environ[OPENBLAS] = before
    # As in a new process. Each forked one would invalidate what is known of a thousand folders.
    sys.path_importer_cache.clear()
    gc.freeze()  # what is loaded stays, so no forked process needs to traverse it again
    use_huge_pages()


def use_huge_pages() -> None:
    """Move what this process has loaded to huge pages, where the kernel has them.

    A fork copies the entry of each page in the page table, and an end removes each: 10 ms each for
    the 230 MB of torch in pages of 4 KiB, 2 ms in huge ones. A process that writes to a huge page
    which it shares still copies 4 KiB of it.
    """
    libc = ctypes.CDLL(None)
    for start, end in private_memory(Path("/proc/self/maps").read_text(encoding="utf-8")):
        first = -(-start // HUGE_PAGE) * HUGE_PAGE
        size = (end - first) // HUGE_PAGE * HUGE_PAGE
        if size > 0:
            # What it returns does not matter: the memory is the same whatever its pages are.
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), MADV_COLLAPSE)


def private_memory(maps: str) -> list[tuple[int, int]]:
    """Return the addresses of memory that a process has allocated: start and end of each range.

    `maps` is its /proc/PID/maps, of which a line is `START-END PERMISSIONS OFFSET DEVICE INODE NAME`.
    Files, stacks and what is shared are left out.
    """
    ranges: list[tuple[int, int]] = []
    for line in maps.splitlines():
        addresses, permissions, _, _, _, *name = line.split(maxsplit=5)
        if permissions == "rw-p" and name in ([], ["[heap]"]):
            start, end = addresses.split("-")
            ranges.append((int(start, 16), int(end, 16)))
    return ranges


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
    from the folder that holds it, and all else from its own PYTHONPATH, then from `common_path`,
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
        sys.path[:] = [*_python_path(variables), *common_path]
        sys.meta_path.insert(0, PackageFinder(packages))
        importlib.invalidate_caches()
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


class PackageFinder:
    """Finds packages in folders that it is given, whatever comes first on the path; for
    `sys.meta_path`.
    """

    def __init__(self, folders: Mapping[str, str]) -> None:
        """Find each package in the folder that holds it, by the package's name."""
        self.folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a package is; None for any other module, which Python then looks for."""
        if name not in self.folders:
            return None
        return PathFinder.find_spec(name, [self.folders[name]])


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


def _watch_children() -> socket.socket:
    """Return a socket that can be read from whenever a child has ended.

    It is written to by Python's own handler for SIGCHLD: pidfd_open would need Linux 5.3.
    """
    readable, writable = socket.socketpair()
    readable.setblocking(False)
    writable.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable.detach(), warn_on_full_buffer=False)
    return readable


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
