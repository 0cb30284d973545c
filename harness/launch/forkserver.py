"""Starts forkservers and has them fork processes, such as the ranks of a trial.

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
from harness.core.files import last_log_line
from harness.core.paths import TrialFolder
from harness.core.ports import LOOPBACK, free_port
from harness.core.processes import (
    TERMINATE_TIMEOUT,
    Process,
    end_process_group,
    oom_kills,
    parent_variables,
    signal_group,
    start_session,
)
from harness.core.scratch import ScratchFolder
from harness.launch.abandoned import mark_variables
from harness.launch.launcher import rank_variables, write_failed_ranks
from harness.records.assignment import FailedRank
from harness.training.progress import SIGNAL

PROGRAM = Path(__file__).with_name("forkserver_process.py")
AVAILABLE = sys.platform == "linux"  # it needs prctl, /proc and CPU affinities
# DDP, FSDP2 and optimizers import these one by one.
TORCH = ("torch._dynamo", "torch.distributed.fsdp")
# What every worker finds loaded, whatever it trains: torch, and what ranks of this harness need of it.
# A gate's arms get TORCH alone, because each imports the harness from its own tree.
PRELOAD = (*TORCH, "harness.launch.preload")
# Libraries read these when they are loaded, which would start threads otherwise: NumPy's OpenBLAS, and the
# allocator of pyarrow, which pandas imports.
WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
START_TIMEOUT = 300.0  # seconds that it may take to load its modules and to fork
SEND_TIMEOUT = 15.0  # seconds that it may take to read a request
END_TIMEOUT = 60.0  # seconds that the kernel may take to end a process that was killed
FOR_EVER = 1e6  # seconds
MAX_SERVERS = 4  # that a command keeps where they run nothing: each takes 230 MiB with torch loaded


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a forkserver loads before it forks anything: the argument of its program."""

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
            command = [setup.python, "-P", str(PROGRAM), json.dumps(asdict(setup))]
            environment = {**variables, **WITHOUT_THREADS, **parent_variables()}
            self.process: Process = start_session(
                command, environment, self.log, stdin=servers_end.fileno()
            )
        self.has_ended = False
        # The exit codes of forked processes by their numbers, None of those that run.
        self.exit_codes: dict[int, int | None] = {}
        self._answer: list[int] | None = None  # to the last request: the numbers of new processes
        self._incomplete = b""  # the beginning of a line whose rest has not arrived

    def fork(self, requests: Sequence[ForkRequest], failures: Path | None = None) -> ForkedRanks:
        """Return new processes in the order of the requests; see there for `failures`.

        Raises HarnessError if the forkserver has ended or does not answer; it has ended then.
        """
        marked = []
        for request in requests:
            variables = {**request.variables, **mark_variables(request.log)}
            marked.append(asdict(replace(request, variables=variables)))
        self._answer = None
        deadline = time.monotonic() + START_TIMEOUT
        with suppress(OSError):  # it has ended, or reads nothing: then there is no answer
            self.connection.sendall((json.dumps(marked) + "\n").encode())
            while self._answer is None and not self.has_ended and time.monotonic() < deadline:
                self.receive(max(0.0, deadline - time.monotonic()))
        if self._answer is None:  # a late one must not be taken for the answer to the next request
            self.has_ended = True
            signal_group(self.process.pid, signal.SIGKILL)
            self.process.wait(END_TIMEOUT)
            reason = last_log_line(self.log)
            raise HarnessError(f"the process that ranks are forked from gave no answer: {reason}")
        return ForkedRanks(self, self._answer, failures)

    def receive(self, timeout: float) -> None:
        """Take in the messages that arrive within `timeout` seconds."""
        if self.has_ended or not select.select([self.connection], [], [], timeout)[0]:
            return
        received = b""
        with suppress(ConnectionResetError):  # it ended before it had read the request
            received = self.connection.recv(65536)
        self.has_ended = not received
        *lines, self._incomplete = (self._incomplete + received).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "pids" in message:
                self._answer = message["pids"]
                self.exit_codes |= dict.fromkeys(message["pids"])
            else:
                self.exit_codes[message["pid"]] = message["exit_code"]

    def is_idle(self) -> bool:
        """Return whether everything that it has forked has ended."""
        self.receive(0)
        return None not in self.exit_codes.values()

    def close(self) -> None:
        """End the forkserver and all that it has forked; remove its log."""
        self.connection.close()
        end_process_group(self.process)
        self._log_folder.remove()


class ForkedRanks:
    """Processes that were forked together, as one that has ended once all of them have.

    Each leads a process group. How those end that fail is written to `failures`: whoever watches them has
    to end the others.
    """

    def __init__(self, server: ForkServer, pids: Sequence[int], failures: Path | None) -> None:
        self.server, self.pids = server, pids
        self._failures = failures
        self._failed: dict[int, FailedRank] = {}
        self._is_ending = False
        self._kills_before = oom_kills()

    @property
    def pid(self) -> int:
        """Return the id of the first one."""
        return self.pids[0]

    def exit_codes(self) -> list[int | None]:
        """Return their exit codes, None of those that run.

        A negative code is the signal that ended it, which is SIGKILL if the forkserver has ended.
        """
        self.server.receive(0)
        codes = [self.server.exit_codes[pid] for pid in self.pids]
        if self.server.has_ended:
            return [-signal.SIGKILL if code is None else code for code in codes]
        return codes

    def poll(self) -> int | None:
        """Return the exit code of the first one that failed, 0 if all have ended well."""
        codes = self.exit_codes()
        # Ranks that are ended have not failed, and those that end with the forkserver were lost.
        if not self._is_ending and not self.server.has_ended:
            self._note_failures(codes)
        if None in codes:
            return None
        return next((code for code in codes if code), 0)

    def _note_failures(self, codes: Sequence[int | None]) -> None:
        """Write down which ranks have failed, if there are new ones."""
        for rank, code in enumerate(codes):
            if code and rank not in self._failed:
                out_of_memory = code == -signal.SIGKILL and oom_kills() > self._kills_before
                self._failed[rank] = FailedRank(
                    exitcode=code, at=time.time(), out_of_memory=out_of_memory
                )
                if self._failures is not None:
                    write_failed_ranks(self._failures, self._failed)

    def wait(self, timeout: float | None = None) -> int:
        """Return what `poll` does in the end; raises TimeoutExpired after `timeout` seconds."""
        timeout = FOR_EVER if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while (exit_code := self.poll()) is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise subprocess.TimeoutExpired("forked processes", timeout)
            self.server.receive(remaining)
        return exit_code

    def send_signal(self, sig: int) -> None:
        """Send a signal to those that run."""
        for pid, exit_code in zip(self.pids, self.exit_codes(), strict=True):
            if exit_code is None:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, sig)

    def end(self, grace: float = TERMINATE_TIMEOUT) -> None:
        """End them and all that they have started in their groups, `grace` seconds after SIGTERM.

        They are gone when this returns, so they take no time from what is measured next.
        """
        self._is_ending = True
        if grace:
            self.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.wait(grace)
        for pid in self.pids:
            signal_group(pid, signal.SIGKILL)
        try:
            self.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise HarnessError(
                f"waited {END_TIMEOUT:g} s for the end of processes {self.pids}, which were killed"
            ) from None


# The forkservers of this process by setup and environment, in the order of their last use.
_servers: dict[str, ForkServer] = {}


def shared_server(variables: Mapping[str, str], setup: Setup) -> ForkServer:
    """Return a forkserver that has loaded what `setup` says, with `variables` as its environment.

    There is one for each interpreter, each set of modules and each change of this process's
    environment, because libraries read variables when they are loaded. It ends with this process, or
    when MAX_SERVERS others were used after it: if it is needed again, it has to load torch again.
    """
    # Not by all variables: pytest has one that changes with each test.
    changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    missing = sorted(set(os.environ) - set(variables))
    key = json.dumps([asdict(setup), changed, missing], sort_keys=True)
    server = _servers.pop(key, None)
    if server is not None:
        server.receive(0)
        if server.has_ended:
            server.close()
    if server is None or server.has_ended:
        idle = [key for key, other in _servers.items() if other.is_idle()]
        if len(_servers) >= MAX_SERVERS and idle:
            _servers.pop(idle[0]).close()
        server = ForkServer(setup, variables)
    _servers[key] = server
    return server


@atexit.register
def _close_servers() -> None:
    """End the forkservers before this process ends, and leave none of their logs."""
    for server in _servers.values():
        server.close()


def start_ranks(
    module: str,
    arguments: Sequence[str],
    world_size: int,
    variables: Mapping[str, str],
    folder: TrialFolder,
    *,
    preload: Sequence[str] = (),
    python: str = sys.executable,
) -> ForkedRanks:
    """Return forked ranks that run a module, as torchrun would start them, with the worker loaded.

    `preload` are modules that are loaded too. Raises HarnessError if no forkserver starts.
    """
    setup = Setup(preload=[*PRELOAD, *preload], blocked_signals=[SIGNAL], python=python)
    master = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    requests = []
    for rank in range(world_size):
        request = ForkRequest(
            module=module,
            arguments=arguments,
            variables={**variables, **master, **rank_variables(rank, world_size)},
            folder=str(Path.cwd()),
            log=str(folder.launch_log),
        )
        requests.append(request)
    return shared_server(variables, setup).fork(requests, folder.failures_path)
