"""Finds the forkserver that an earlier command has left running, or starts one that stays.

Loading torch takes seconds of CPU time, in each command anew. So a forkserver stays for a while and
serves the later commands of its user, each through a process of the command's own
(`forkserver_process` has the details). A command uses one only where a new forkserver would be the
same: `_identity` lists what both must have in common. Wherever something is not as it should be, the
command starts a forkserver for itself alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from harness.core.control_groups import memory_limit
from harness.core.errors import HarnessError
from harness.core.locks import lock_file
from harness.core.ports import MAX_SOCKET_PATH
from harness.core.private import make_private_folder
from harness.core.processes import start_session
from harness.core.redaction import is_secret_name, redact_text
from harness.launch.stall import POLL, STALL_TIMEOUT, START_TIMEOUT, StallDetector

PROGRAM = Path(__file__).with_name("forkserver_process.py")
CREDENTIALS = struct.Struct("3i")  # `struct ucred` of <sys/socket.h>: process, user, group
SERVER_BYTES = 230 * 2**20  # of memory that one with torch loaded takes
MEMORY_SHARE = 8  # forkservers may take one part in so many of the memory
FEWEST_SERVERS = 4  # that are kept however little memory there is
LEAVE_TIMEOUT = 30.0  # seconds until a new server can be connected to, which loads nothing before
LOCK_TIMEOUT = 60.0  # seconds; whoever holds the lock has LEAVE_TIMEOUT itself
ATTEMPTS = 2  # to use a server: one that runs may be about to end
MAX_LINE = 100  # bytes of a server's first message
# Variables of a terminal, a session, a CI job or a test, which nothing reads when it is loaded. They
# differ from command to command. Processes get them with each request, as they get secrets.
INCIDENTAL_VARIABLE = re.compile(
    r"_|PWD|OLDPWD|SHLVL|TERM|TERM_.*|COLORTERM|COLUMNS|LINES|LS_COLORS|PS\d|HIST.*|PAGER|EDITOR|LESS.*"
    r"|DISPLAY|WAYLAND_.*|XAUTHORITY|WINDOWID|SSH_.*|TMUX.*|STY|VTE_.*|VSCODE_.*|DBUS_.*|MAIL"
    r"|XDG_(SESSION|SEAT|VTNR|RUNTIME|CACHE)_?.*|INVOCATION_ID|JOURNAL_STREAM"
    r"|CI|CI_.*|GITHUB_.*|RUNNER_.*|GITLAB_.*|PYTEST_.*|_?MLFLOW_.*|HARNESS_(?!COMPILE_CACHE$).*"
)
# What a process inherits and can't, or should not, change by itself; see `man 5 proc`.
INHERITED_STATUS = re.compile(
    r"(Uid|Gid|Groups|Umask|SigBlk|SigIgn|Cap\w+|NoNewPrivs|Seccomp\w*|\w+_allowed|THP_enabled):.*"
)
INHERITED_FILES = ("limits", "cgroup", "personality", "oom_score_adj", "coredump_filter")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a forkserver loads before it forks anything: the first message of its protocol."""

    preload: Sequence[str]  # modules
    blocked_signals: Sequence[int] = ()  # which all that it forks inherits
    refuse_threads: bool = True  # end if a module has started a thread
    python: str = sys.executable  # the interpreter that it runs under
    installed: str = ""  # SHA-256 of the list of the interpreter's packages, if it is another one
    code: str = ""  # SHA-256 of the training code, if it looks that up for all that it forks


def most_servers() -> int:
    """Return how many forkservers may be kept at once: as many as an eighth of the memory holds.

    That is the memory of this machine, or of the control group that limits this process.
    """
    memory: int = psutil.virtual_memory().total
    limit = memory_limit()
    if limit is not None:
        memory = min(memory, limit)
    return max(FEWEST_SERVERS, memory // MEMORY_SHARE // SERVER_BYTES)


class KeptProcess:
    """A command's own process of a server, with the methods of `subprocess.Popen`.

    It is no child of the command, so its exit code is not known, and 0 stands for any.
    """

    def __init__(self, pid: int) -> None:
        """Watch a process that runs; raises ProcessLookupError if it has ended."""
        self.pid = pid
        self._handle = os.pidfd_open(pid)
        self._has_ended = False

    def poll(self) -> int | None:
        """Return 0 if it has ended, None while it runs."""
        self._wait(0)
        return 0 if self._has_ended else None

    def wait(self, timeout: float | None = None) -> int:
        """Return 0; raises TimeoutExpired if it still runs after `timeout` seconds."""
        self._wait(timeout)
        if not self._has_ended:
            raise subprocess.TimeoutExpired("a kept forkserver", timeout or 0.0)
        return 0

    def send_signal(self, sig: int) -> None:
        """Send it a signal if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(self._handle, sig)

    def _wait(self, timeout: float | None) -> None:
        """Wait until it has ended, for `timeout` seconds at most."""
        if self._has_ended or not select.select([self._handle], [], [], timeout)[0]:
            return
        self._has_ended = True
        os.close(self._handle)


@dataclass(frozen=True, kw_only=True)
class KeptServer:
    """A connection to a command's own process of a server."""

    process: KeptProcess
    connection: socket.socket
    log: Path


def connect(
    setup: Setup,
    variables: Mapping[str, str],
    idle_seconds: float,
    while_loading: Callable[[], object] = lambda: None,
) -> KeptServer | None:
    """Return a connection to a server that has loaded what `setup` says, with `variables`.

    One that is started stays for `idle_seconds` after the last command that uses it; while it loads
    its modules, `while_loading` is called. Returns None where there can be none, and where a new one
    does not come up: its own log does not say more than that of a forkserver for this command alone,
    which the caller then starts.
    """
    folder = _private_folder()
    if folder is None:
        return None
    variables = loading_variables(variables)
    path = folder / f"{_identity(setup, variables)}.socket"
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        return None
    try:
        return _use_server(path, setup, variables, idle_seconds, while_loading)
    except OSError:  # such as a full disk, which the caller's forkserver would meet, and name, too
        return None


def _use_server(
    path: Path,
    setup: Setup,
    variables: Mapping[str, str],
    idle_seconds: float,
    while_loading: Callable[[], object],
) -> KeptServer | None:
    """Connect to the server at `path`, or to a new one; None if that fails. Raises OSError."""
    for _ in range(ATTEMPTS):
        with path.with_name("lock").open("wb") as lock:
            if not lock_file(lock, LOCK_TIMEOUT):
                return None
            connection = _connect(path)
            is_new = connection is None
            if connection is None:
                _start(path, setup, variables, idle_seconds)
                connection = _connect(path)
        if connection is None:
            return None
        if is_new:
            while_loading()
        process = _wait_for_process(connection, path)
        if process is not None:
            return KeptServer(process=process, connection=connection, log=path.with_suffix(".log"))
        connection.close()
        if is_new:
            return None
    return None


def loading_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a server gets: nothing secret or incidental of this process's.

    Variables that are set for the ranks, such as a cell's, are left in whatever their names. The
    entries of PYTHONPATH become absolute, as a server has another working directory.
    """
    kept: dict[str, str] = {}
    for name, value in variables.items():
        is_inherited = os.environ.get(name) == value
        if is_inherited and INCIDENTAL_VARIABLE.fullmatch(name):
            continue
        if not is_secret_name(name) and redact_text(value, ()) == value:
            kept[name] = value
    if kept.get("PYTHONPATH"):
        entries = [str(Path(entry).absolute()) for entry in kept["PYTHONPATH"].split(os.pathsep)]
        kept["PYTHONPATH"] = os.pathsep.join(entries)
    return kept


def _private_folder() -> Path | None:
    """Return the folder of sockets that only this user can enter; None if there can't be one."""
    if not hasattr(os, "pidfd_open"):  # Linux has had it since 5.3
        return None
    folder = Path(f"/tmp/harness-forkservers-{os.geteuid()}")
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime_folder and Path(runtime_folder).is_dir():
        folder = Path(runtime_folder) / "harness-forkservers"
    try:
        make_private_folder(folder)
        os.close(os.pidfd_open(os.getpid()))
    except (HarnessError, OSError):
        return None
    return folder


def _identity(setup: Setup, variables: Mapping[str, str]) -> str:
    """Return a digest of all that a forkserver loads and inherits.

    That modules which it has loaded are still the same, a server checks by itself.
    """
    interpreter = Path(setup.python).resolve().stat()
    content = {
        "setup": asdict(setup),
        "variables": dict(sorted(variables.items())),
        "program": str(PROGRAM),
        "interpreter": [setup.python, sys.version, interpreter.st_ino, interpreter.st_mtime_ns],
        "packages": _installed_packages(),
        "inherited": _inherited_state(),
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _installed_packages() -> list[str]:
    """Return the name and version of every installed distribution: one that is new may be loaded."""
    names: list[str] = []
    for entry in sys.path:
        with suppress(OSError):
            names += [name for name in os.listdir(entry) if name.endswith(".dist-info")]  # noqa: PTH208
    return sorted(names)


def _inherited_state() -> list[str]:
    """Return what this process would hand down to a forkserver: limits, cgroup, cores and the like.

    A server that has others would have trials run elsewhere, or slower.
    """
    this_process = Path("/proc/thread-self")
    state = [
        f"nice {os.getpriority(os.PRIO_PROCESS, 0)}",
        f"scheduler {os.sched_getscheduler(0)}",
    ]
    for line in (this_process / "status").read_text(encoding="utf-8").splitlines():
        if INHERITED_STATUS.fullmatch(line):
            state.append(line)
    for name in INHERITED_FILES:
        with suppress(OSError):
            state.append((this_process / name).read_text(encoding="utf-8"))
    with suppress(OSError, IndexError), (this_process / "numa_maps").open() as maps:
        state.append(maps.readline().split()[1])  # the policy of memory, as numactl sets it
    for namespace in sorted((this_process / "ns").iterdir()):
        with suppress(OSError):
            state.append(str(namespace.readlink()))
    return state


def _connect(path: Path) -> socket.socket | None:
    """Return a connection to the server at `path`, None if none of this user's listens there."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(STALL_TIMEOUT)
    try:
        connection.connect(str(path))
        _, user = _peer(connection)
        os.utime(path)  # it has been used just now
    except OSError:
        user = -1
    if user == os.geteuid():
        return connection
    connection.close()
    return None


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process at the other end of a connection, and its user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, user, _ = CREDENTIALS.unpack(credentials)
    return process, user


def _start(path: Path, setup: Setup, variables: Mapping[str, str], idle_seconds: float) -> None:
    """Start a server at `path`, and return once it can be connected to, or has failed.

    Those that were used longest ago lose their sockets, and end, beyond `most_servers`.
    """
    for surplus in _by_last_use(path.parent)[most_servers() - 1 :]:
        surplus.unlink(missing_ok=True)
        surplus.with_suffix(".log").unlink(missing_ok=True)
    log = path.with_suffix(".log")
    log.unlink(missing_ok=True)
    command = [setup.python, "-P", str(PROGRAM), str(path), json.dumps(asdict(setup))]
    starter = start_session([*command, str(idle_seconds)], variables, log)
    try:
        starter.wait(LEAVE_TIMEOUT)
    except subprocess.TimeoutExpired:
        starter.kill()
        starter.wait()


def _by_last_use(folder: Path) -> list[Path]:
    """Return the sockets in a folder, that which was used last first."""
    used_at: dict[Path, float] = {}
    for path in folder.glob("*.socket"):
        with suppress(FileNotFoundError):
            used_at[path] = path.lstat().st_mtime
    return sorted(used_at, key=lambda path: used_at[path], reverse=True)


def _wait_for_process(connection: socket.socket, path: Path) -> KeptProcess | None:
    """Return the command's own process of a server; None if the server ends, or stalls, before.

    A server that stalls loses its socket, so that the next one can be started. It is ended unless it
    serves another command.
    """
    server, _ = _peer(connection)
    stall = StallDetector(server)
    deadline = time.monotonic() + START_TIMEOUT
    while not select.select([connection], [], [], POLL)[0]:
        if stall.seconds() > STALL_TIMEOUT or time.monotonic() > deadline:
            path.unlink(missing_ok=True)
            with suppress(psutil.NoSuchProcess):
                if not _serves_a_command(server):
                    psutil.Process(server).kill()
            return None
    try:
        line = connection.recv(MAX_LINE)
        return KeptProcess(json.loads(line)["server"]) if line else None
    except OSError:  # it has ended meanwhile
        return None


def _serves_a_command(server: int) -> bool:
    """Return whether a server has a child that runs; one that is stopped takes no notice of ends."""
    states = [child.status() for child in psutil.Process(server).children()]
    return any(state != psutil.STATUS_ZOMBIE for state in states)
