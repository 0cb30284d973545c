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
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.files import last_log_line
from harness.core.paths import TrialFolder
from harness.core.ports import LOOPBACK, free_port
from harness.core.processes import (
    TERMINATE_TIMEOUT,
    Process,
    end_process_group,
    parent_variables,
    signal_group,
    start_session,
)
from harness.core.scratch import ScratchFolder
from harness.launch.hold import kill_abandoned, mark_variables
from harness.launch.launcher import RankProgram, rank_failures, rank_variables
from harness.records.assignment import FailedRank
from harness.records.record import Failure
from harness.training.progress import SIGNAL

PROGRAM = Path(__file__).with_name("forkserver_process.py")
# What every rank finds loaded. DDP, FSDP2 and optimizers import modules of torch one by one. Functions are called:
# they remember what they return.
LIBRARIES = ("torch._dynamo", "torch.distributed.fsdp", "msgspec", "psutil", "platform:platform")
# And a worker of this harness, with the code that is loaded here whatever becomes of its files. A gate's arms get
# LIBRARIES alone, because each imports the harness from its own tree.
PRELOAD = (
    *LIBRARIES,
    "harness.measure.clock",
    "harness.training.worker",
    "harness.records.environment:describe_packages",
    "harness.records.environment:training_digest",
)
# Libraries read these when they are loaded, which would start threads otherwise: NumPy's OpenBLAS, and the
# allocator of pyarrow, which pandas imports.
WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
START_TIMEOUT = 300.0  # seconds that it may take to load its modules and to fork
SEND_TIMEOUT = 15.0  # seconds that it may take to read a request
END_TIMEOUT = 60.0  # seconds that the kernel may take to end a process that was killed
MAX_SERVERS = 4  # that a command keeps where they run nothing: each takes 230 MiB with torch loaded


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """A process to fork, to run what `python -P -m MODULE ARGUMENT…` would run."""

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

    def __init__(
        self, variables: Mapping[str, str], preload: Sequence[str], *, refuse_threads: bool = True
    ) -> None:
        """Start one for this process alone, with `variables` as its environment.

        It loads the modules `preload`, and calls functions that are named as in `module:function`. With
        `refuse_threads`, it ends if one of them has started a thread.
        """
        self._log_folder = ScratchFolder("forkserver")
        self.log = self._log_folder.path / "forkserver.log"
        self.connection, servers_end = socket.socketpair()
        self.connection.settimeout(SEND_TIMEOUT)  # of sending: `select` precedes what is received
        with servers_end:
            setup = json.dumps({"preload": preload, "refuse_threads": refuse_threads})
            command = [sys.executable, "-P", str(PROGRAM), setup]
            environment = {**variables, **WITHOUT_THREADS, **parent_variables()}
            self.process: Process = start_session(
                command, environment, self.log, stdin=servers_end.fileno()
            )
        self.has_ended = False
        # The exit codes of forked processes by their numbers, None of those that run, and when they ended.
        self.exit_codes: dict[int, int | None] = {}
        self.ended_at: dict[int, float] = {}
        self._answer: list[int] | None = None  # to the last request: the numbers of new processes
        self._incomplete = b""  # the beginning of a line whose rest has not arrived

    def fork(
        self, requests: Sequence[ForkRequest], folder: TrialFolder | None = None
    ) -> ForkedRanks:
        """Return new processes in the order of the requests, the ranks of a trial with a `folder`.

        Raises HarnessError if the forkserver has ended or does not answer; it has ended then.
        """
        message = [asdict(request) for request in requests]
        line = json.dumps(message) + "\n"
        self._answer = None
        deadline = time.monotonic() + START_TIMEOUT
        with suppress(OSError):  # it has ended, or reads nothing: then there is no answer
            self.connection.sendall(line.encode())
            while self._answer is None and not self.has_ended and time.monotonic() < deadline:
                self.receive(1.0)
        if self._answer is None:  # a late one must not be taken for the answer to the next request
            self.has_ended = True
            signal_group(self.process.pid, signal.SIGKILL)
            self.process.wait(END_TIMEOUT)
            reason = last_log_line(self.log)
            raise HarnessError(
                f"the process that ranks are forked from gave no answer; its log ends with: {reason}"
            )
        return ForkedRanks(self, self._answer, folder)

    def receive(self, timeout: float) -> None:
        """Take in the messages that arrive within `timeout` seconds."""
        if self.has_ended:
            return
        readable, _, _ = select.select([self.connection], [], [], timeout)
        if not readable:
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
                self.ended_at[message["pid"]] = time.time()

    def is_idle(self) -> bool:
        """Return whether everything that it has forked has ended."""
        return None not in self.exit_codes.values()

    def close(self) -> None:
        """End the forkserver and all that it has forked; remove its log."""
        self.connection.close()
        end_process_group(self.process)
        self._log_folder.remove()


class ForkedRanks:
    """Processes that were forked together, as one that has ended once all of them have.

    Each leads a process group. Whoever watches them has to end the others of one that has failed.
    """

    def __init__(self, server: ForkServer, pids: Sequence[int], folder: TrialFolder | None) -> None:
        self.server, self.pids = server, pids
        self._folder = folder  # of the trial whose ranks they are

    def exit_codes(self) -> list[int | None]:
        """Return their exit codes, None of those that run.

        A negative code is the signal that ended it, which is SIGKILL if the forkserver has ended.
        """
        self.server.receive(0)
        codes = [self.server.exit_codes[pid] for pid in self.pids]
        if self.server.has_ended:
            return [-signal.SIGKILL if code is None else code for code in codes]
        return codes

    def wait(self, timeout: float) -> int:
        """Return the exit code of the first one that failed, 0 if all have ended well.

        Raises subprocess.TimeoutExpired after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while None in (codes := self.exit_codes()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise subprocess.TimeoutExpired("forked processes", timeout)
            self.server.receive(remaining)
        return next((code for code in codes if code), 0)

    def interrupt(self, number: int = SIGNAL) -> None:
        """Send a signal to those that run, by default the one that asks ranks to save and stop."""
        for pid, exit_code in zip(self.pids, self.exit_codes(), strict=True):
            if exit_code is None:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)

    def observed_failures(self) -> list[Failure]:
        """Return a failure of each rank that has failed; those that end with the forkserver are lost."""
        failed = {}
        for rank, pid in enumerate(self.pids):
            exit_code = self.server.exit_codes[pid]
            if exit_code:
                failed[rank] = FailedRank(exitcode=exit_code, at=self.server.ended_at[pid])
        return [] if self._folder is None else rank_failures(failed, self._folder)

    def end(self, grace: float = TERMINATE_TIMEOUT) -> None:
        """End them and all that they have started, `grace` seconds after SIGTERM.

        They are gone when this returns, so they take no time from what is measured next.
        """
        if grace:
            self.interrupt(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.wait(grace)
        for pid in self.pids:
            signal_group(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.wait(END_TIMEOUT)
        if self._folder is not None:
            kill_abandoned(self._folder.launch_log)


# The forkservers of this process by setup and environment, in the order of their last use.
_servers: dict[str, ForkServer] = {}


def shared_server(
    variables: Mapping[str, str], preload: Sequence[str], *, refuse_threads: bool = True
) -> ForkServer:
    """Return a forkserver as it would be started with these arguments.

    There is one for each set of modules and each change of this process's
    environment, because libraries read variables when they are loaded. It ends with this process, or
    when MAX_SERVERS others were used after it: if it is needed again, it has to load torch again.
    """
    # Not by all variables: pytest has one that changes with each test.
    changed = sorted(variables.items() - os.environ.items())
    missing = sorted(os.environ.keys() - variables.keys())
    key = json.dumps([preload, refuse_threads, changed, missing], sort_keys=True)
    for other in _servers.values():
        other.receive(0)
    server = _servers.pop(key, None)
    if server is None or server.has_ended:
        idle = [key for key, other in _servers.items() if other.is_idle()]
        if len(_servers) >= MAX_SERVERS and idle:
            _servers.pop(idle[0]).close()
        if server is not None:
            server.close()
        server = ForkServer(variables, preload, refuse_threads=refuse_threads)
    _servers[key] = server
    return server


@atexit.register
def _close_servers() -> None:
    """End the forkservers before this process ends, and leave none of their logs."""
    for server in _servers.values():
        server.close()


def start_ranks(program: RankProgram, variables: Mapping[str, str]) -> ForkedRanks:
    """Return forked ranks that run a program as torchrun would start them, with the worker loaded.

    Raises HarnessError if no forkserver starts.
    """
    master = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    log = program.folder.launch_log
    common = {**variables, **master, **mark_variables(log)}
    requests = []
    for rank in range(program.world_size):
        request = ForkRequest(
            module=program.module,
            arguments=[str(program.folder.attempt_path), *program.arguments],
            variables={**common, **rank_variables(rank, program.world_size)},
            folder=str(Path.cwd()),
            log=str(log),
        )
        requests.append(request)
    server = shared_server(variables, [*PRELOAD, *program.preload])
    return server.fork(requests, program.folder)
