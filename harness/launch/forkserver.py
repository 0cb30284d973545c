"""Starts forkservers and has them fork processes.

Loading torch and what training needs of it takes seconds of CPU time in every process; a fork takes
milliseconds. What a forkserver is and what it understands is in `forkserver_process`, the program
that it runs.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.logs import last_log_line
from harness.core.processes import (
    Process,
    end_process_group,
    parent_variables,
    signal_group,
    start_session,
)
from harness.core.scratch import ScratchFolder
from harness.launch.abandoned import mark_variables
from harness.launch.stack import ReadyStack
from harness.training.interruption import SIGNAL

PROGRAM = Path(__file__).with_name("forkserver_process.py")
AVAILABLE = sys.platform == "linux"  # it needs prctl, /proc and CPU affinities
# DDP, FSDP2 and optimizers import these one by one.
TORCH = ("torch._dynamo", "torch.distributed.fsdp")
# What every worker finds loaded, whatever it trains: torch, and what ranks of this harness need of it.
# A gate's arms get TORCH alone, because each imports the harness from its own tree.
PRELOAD = (*TORCH, "harness.launch.preload")
START_TIMEOUT = 300.0  # seconds that it may take to load its modules and to fork
SEND_TIMEOUT = 15.0  # seconds that it may take to read a request
END_TIMEOUT = 60.0  # seconds that the kernel may take to end a process that was killed
MAX_SERVERS = 4  # that a command keeps where they run nothing: each takes 230 MiB with torch loaded
STARTS = 2  # that are tried before ranks are started without one


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a forkserver loads before it forks anything: the first message of its protocol."""

    preload: Sequence[str]  # modules
    blocked_signals: Sequence[int] = ()  # which all that it forks inherits
    refuse_threads: bool = True  # end if a module has started a thread
    python: str = sys.executable  # the interpreter that it runs under


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """A process to fork, to run what `python -P -m MODULE ARGUMENT…` would run.

    The fields are the parameters of `forkserver_process.become_process`, which explains them.
    """

    module: str
    arguments: Sequence[str]
    variables: Mapping[str, str]  # its whole environment
    folder: str  # its working directory
    log: str  # the file that its output is added to
    cores: Sequence[int] = ()  # CPU cores that it may use; none: those of the forkserver
    # Packages that nothing on its path may hide: by name, the folder that holds each.
    packages: Mapping[str, str] = field(default_factory=dict)


class ForkServer:
    """A forkserver that runs, as its starter sees it.

    It ends with this process, however that ends, and everything that it has forked ends with it.
    """

    def __init__(self, setup: Setup, variables: Mapping[str, str]) -> None:
        """Start one for this process alone, with `variables` as its environment."""
        self._log_folder = ScratchFolder("forkserver")
        self.log = self._log_folder.path / "forkserver.log"
        self.connection, servers_end = socket.socketpair()
        self.connection.settimeout(SEND_TIMEOUT)  # of sending: `select` precedes what is received
        with servers_end:
            command = [setup.python, "-P", str(PROGRAM)]
            environment = {**variables, **parent_variables()}
            self.process: Process = start_session(
                command, environment, self.log, stdin=servers_end.fileno()
            )
        self.has_ended = False
        self.exit_codes: dict[int, int] = {}  # of forked processes that have ended, by number
        self._running: set[int] = set()  # numbers of forked processes that have not ended
        self._forked: list[list[int]] = []  # answers to requests, each the numbers of new processes
        self._incomplete = b""  # the beginning of a line whose rest has not arrived
        self._send(asdict(setup))

    def fork(self, requests: Sequence[ForkRequest]) -> list[ForkedProcess]:
        """Return new processes in the order of the requests.

        Raises HarnessError if the forkserver has ended or does not answer; it has ended then.
        """
        marked = []
        for request in requests:
            variables = {**request.variables, **mark_variables(request.log)}
            marked.append(asdict(replace(request, variables=variables)))
        try:
            self._send(marked)
            self._wait_for_answer()
        except BaseException:
            # The answer to this request must not be taken for the answer to the next.
            self.has_ended = True
            signal_group(self.process.pid, signal.SIGKILL)
            self.process.wait(END_TIMEOUT)
            raise
        return [ForkedProcess(self, pid) for pid in self._forked.pop()]

    def _wait_for_answer(self) -> None:
        """Wait until the forkserver has forked what it was last asked for."""
        deadline = time.monotonic() + START_TIMEOUT
        while not self._forked:
            self.receive(max(0.0, deadline - time.monotonic()))
            if self.has_ended:
                raise self.error()
            if not self._forked and time.monotonic() > deadline:
                raise HarnessError(
                    f"waited {START_TIMEOUT:.0f} s for the process that ranks are forked from"
                )

    def error(self) -> HarnessError:
        """Return the error that says that the forkserver has ended, with the last line that it wrote."""
        return HarnessError(
            f"the process that ranks are forked from ended: {last_log_line(self.log)}"
        )

    def receive(self, timeout: float | None) -> None:
        """Take in the messages that arrive within `timeout` seconds; None waits for at least one."""
        if self.has_ended or not select.select([self.connection], [], [], timeout)[0]:
            return
        try:
            received = self.connection.recv(65536)
        except ConnectionResetError:  # it ended before it had read the request
            received = b""
        self.has_ended = not received
        *lines, self._incomplete = (self._incomplete + received).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "pids" in message:
                self._forked.append(message["pids"])
                self._running.update(message["pids"])
                for pid in message["pids"]:
                    self.exit_codes.pop(pid, None)  # of an earlier process with the same number
            else:
                self.exit_codes[message["pid"]] = message["exit_code"]
                self._running.discard(message["pid"])

    def is_idle(self) -> bool:
        """Return whether everything that it has forked has ended."""
        self.receive(0)
        return not self._running

    def fileno(self) -> int:
        """Return what `select` waits on for messages of the forkserver."""
        return self.connection.fileno()

    def close(self) -> None:
        """End the forkserver and all that it has forked; remove its log."""
        self.connection.close()
        end_process_group(self.process)
        self._log_folder.remove()

    def _send(self, message: object) -> None:
        """Send a line; raises HarnessError if there is no room for it in the socket."""
        try:
            self.connection.sendall((json.dumps(message) + "\n").encode())
        except BrokenPipeError:
            pass  # it has ended, which the next `receive` notices
        except TimeoutError:
            raise HarnessError(
                f"waited {SEND_TIMEOUT:g} s for the process that ranks are forked from"
            ) from None


class ForkedProcess:
    """A process that was forked, with the methods of `subprocess.Popen`; it leads its own group."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server = server
        self.pid = pid

    def poll(self) -> int | None:
        """Return its exit code, None while it runs.

        A negative code is the signal that ended it, which is SIGKILL if the forkserver has ended.
        """
        self.server.receive(0)
        if self.pid in self.server.exit_codes:
            return self.server.exit_codes[self.pid]
        return -signal.SIGKILL if self.server.has_ended else None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code; raises TimeoutExpired if it still runs after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            exit_code = self.poll()
            if exit_code is not None:
                return exit_code
            remaining = None
            if deadline is not None and timeout is not None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise subprocess.TimeoutExpired("a forked process", timeout)
            self.server.receive(remaining)

    def send_signal(self, sig: int) -> None:
        """Send it a signal if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, sig)


def kill_all(processes: Sequence[ForkedProcess]) -> None:
    """Kill processes and all that they have started in their groups.

    They are gone when this returns, so they take no time from what is measured next.
    """
    for process in processes:
        process.poll()
        signal_group(process.pid, signal.SIGKILL)
    for process in processes:
        try:
            process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise HarnessError(
                f"waited {END_TIMEOUT:g} s for the end of process {process.pid}, which was killed"
            ) from None


def shared_server(variables: Mapping[str, str], setup: Setup) -> ForkServer:
    """Return a forkserver that has loaded what `setup` says, with `variables` as its environment.

    There is one for each interpreter, each set of modules and each change of this process's
    environment, because libraries read variables when they are loaded. It ends with this process,
    or when MAX_SERVERS others were used after it.
    """
    key = _key(variables, setup)
    server = _servers.pop(key, None)
    if server is not None:
        server.receive(0)
        if not server.has_ended:
            _servers[key] = server  # at the end: the one that was used last
            return server
        _close(server)
    # Make room for another one: those that run nothing end, the least recently used ones first. If one
    # is needed again, it has to load torch again.
    for other_key, other in list(_servers.items()):
        if len(_servers) >= MAX_SERVERS and other.is_idle():
            del _servers[other_key]
            _close(other)
    server = ForkServer(setup, variables)
    _servers[key] = server
    atexit.register(server.close)
    return server


# The forkservers of this process, by what `shared_server` tells them apart by, in the order of their
# last use.
_servers: dict[str, ForkServer] = {}
# Why those could not be started that are not tried any more.
_refused: dict[str, str] = {}


def _key(variables: Mapping[str, str], setup: Setup) -> str:
    """Return what tells the forkservers of this process apart."""
    changed: dict[str, str | None] = {}  # None where a variable is missing
    for name in sorted({*variables, *os.environ}):
        if variables.get(name) != os.environ.get(name):
            changed[name] = variables.get(name)
    return json.dumps([asdict(setup), changed])


def _close(server: ForkServer) -> None:
    """End a forkserver before this process ends."""
    atexit.unregister(server.close)
    server.close()


def start_worker(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    *,
    preload: Sequence[str] = (),
    stack: ReadyStack | None = None,
) -> Process | None:
    """Start `python -P -m MODULE ARGUMENT…` as `processes.start_session` does, but forked and with the
    worker and the modules `preload` loaded.

    The worker runs under `stack`, if there is one. Returns None if no forkserver starts, of which
    `log` has the reason.
    """
    module, *module_arguments = arguments[arguments.index("-m") + 1 :]
    log.parent.mkdir(parents=True, exist_ok=True)
    request = ForkRequest(
        module=module,
        arguments=module_arguments,
        variables=variables,
        folder=str(Path.cwd()),
        log=str(log.absolute()),
    )
    setup = Setup(
        preload=[*PRELOAD, *preload],
        blocked_signals=[SIGNAL],
        python=sys.executable if stack is None else stack.python,
    )

    key = _key(variables, setup)
    for start in range(STARTS):
        if key in _refused:
            break
        try:
            (process,) = shared_server(variables, setup).fork([request])
            return process
        except HarnessError as error:
            if start == STARTS - 1:
                _refused[key] = str(error)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"harness: {_refused[key]}\n")
    return None
