"""Delivers for a command that runs trials: in a process of its own that has MLflow loaded already.

To load MLflow takes seconds, and a run would spend them between its first two trials, when nothing
else may happen. So that is loaded in a forkserver, which stays for a while for later commands, as that
of the ranks does. Where there can be none, the command delivers by itself.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from harness.core import own_process
from harness.core.errors import HarnessError
from harness.core.import_path import import_variables
from harness.core.logs import last_log_line
from harness.core.paths import Results, SweepFolder
from harness.core.ports import unix_socket_path
from harness.core.scratch import ScratchFolder
from harness.launch.forkserver import (
    AVAILABLE,
    ForkedProcess,
    ForkRequest,
    ForkServer,
    ForkServerStalled,
    Setup,
    kill_all,
)
from harness.launch.stall import POLL, STALL_TIMEOUT, StallDetector
from harness.tracking.connect import TrackerDown
from harness.tracking.tracker import Delivery, Tracker

SETUP = Setup(preload=["harness.tracking.preload"])
# Seconds without CPU time, after which a delivery counts as hung: more than a tracker waits for
# another delivery, or for a server.
DELIVERY_TIMEOUT = 300.0
LOG_NAME = "delivery.log"  # of the file of the process's output


@dataclass(frozen=True, kw_only=True)
class DeliveryRequest:
    """What a process is to deliver: the arguments of `Tracker.deliver_trials`."""

    folder: SweepFolder
    trials: Sequence[str]  # their ids
    in_passing: bool


class Deliverer(Protocol):
    """Delivers records to MLflow."""

    def load(self) -> None:
        """Load what deliveries need, which takes seconds."""
        ...

    def deliver_trials(
        self, folder: SweepFolder, trials: Sequence[str], *, in_passing: bool = False
    ) -> Delivery:
        """Deliver the records of some trials, as `Tracker.deliver_trials` does."""
        ...

    def close(self) -> None:
        """Deliver nothing more."""
        ...


def choose_deliverer(results: Results, uri: str | None) -> Deliverer:
    """Return what delivers to the MLflow store `uri`, by default the database in the results folder.

    Raises BadInput for a URI that no store can have.
    """
    tracker = Tracker(results, uri)
    if AVAILABLE and own_process.is_own():
        return DeliveryProcess(tracker)
    return tracker


class DeliveryProcess:
    """Has another process deliver, which is started when it is first needed."""

    def __init__(self, tracker: Tracker) -> None:
        """Have it deliver as `tracker` would, which does so where there can be no such process."""
        self._tracker = tracker
        self._worker: _Worker | None = None
        self._was_started = False

    def load(self) -> None:
        """Start the process; what it is forked from loads MLflow, unless it has."""
        if self._was_started:
            return
        self._was_started = True
        try:
            self._worker = _start(self._tracker)
        except (HarnessError, OSError):
            self._worker = None  # a delivery by this process would meet the same, and name it

    def deliver_trials(
        self, folder: SweepFolder, trials: Sequence[str], *, in_passing: bool = False
    ) -> Delivery:
        """Deliver the records of some trials; `trials` are their ids.

        A process that has ended is replaced, once: what it was forked from is shared by commands, and
        to deliver again adds nothing. Raises TrackerDown, and StorageError for a disk that does not
        take them.
        """
        request = DeliveryRequest(folder=folder, trials=list(trials), in_passing=in_passing)
        try:
            return self._deliver(request)
        except _WorkerEnded:
            return self._deliver(request, is_last_try=True)

    def _deliver(self, request: DeliveryRequest, *, is_last_try: bool = False) -> Delivery:
        """Deliver, once; raises what `deliver_trials` does, and _WorkerEnded."""
        self.load()
        if self._worker is None:
            return self._tracker.deliver_trials(
                request.folder, request.trials, in_passing=request.in_passing
            )
        try:
            answer = self._worker.ask(request)
        except BaseException as error:
            if isinstance(error, _WorkerHung) or is_last_try:
                self._worker.log_folder.keep()  # the error names the log
            # After Ctrl-C too: what it answers later must not be taken for the answer to the next.
            self.close()
            raise
        if isinstance(answer, HarnessError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process."""
        worker = self._worker
        self._worker = None
        self._was_started = False
        if worker is not None:
            worker.close()


class _WorkerEnded(TrackerDown):
    """The process that delivers has ended."""


class _WorkerHung(TrackerDown):
    """The process that delivers neither answers nor computes."""


@dataclass(frozen=True, kw_only=True)
class _Worker:
    """A process that delivers, and the connection to it."""

    server: ForkServer  # from which it was forked
    process: ForkedProcess
    connection: Connection[Any, Any]
    log_folder: ScratchFolder

    @property
    def log(self) -> Path:
        """Return the file of its output."""
        return self.log_folder.path / LOG_NAME

    def ask(self, request: DeliveryRequest) -> Delivery | HarnessError:
        """Return what a delivery did, or the error that it has raised.

        Raises _WorkerEnded and _WorkerHung.
        """
        try:
            self.connection.send(request)
            self._wait_for_answer()
            answer: Delivery | HarnessError = self.connection.recv()
        except BlockingIOError:  # it has not read the request within DELIVERY_TIMEOUT
            raise self._hung() from None
        except (EOFError, OSError):
            raise _WorkerEnded(
                f"MLflow: the process that delivers {self._describe_end()};"
                f" `harness results collect` delivers the rest; log: {self.log}"
            ) from None
        return answer

    def _describe_end(self) -> str:
        """Return how it has ended: by which signal, or else with which last line of its log."""
        with suppress(subprocess.TimeoutExpired):
            exit_code = self.process.wait(STALL_TIMEOUT)
            if exit_code < 0:
                return f"was ended by {signal.Signals(-exit_code).name}"
        return f"ended: {last_log_line(self.log)}"

    def _wait_for_answer(self) -> None:
        """Wait until an answer can be read, or the other end is closed."""
        stall = StallDetector(self.process.pid)
        while not self.connection.poll(POLL):
            if stall.seconds() > DELIVERY_TIMEOUT:
                raise self._hung()

    def _hung(self) -> _WorkerHung:
        """Return the error that says that it hangs."""
        return _WorkerHung(
            f"MLflow: waited {DELIVERY_TIMEOUT:g} s for the process that delivers, which used no CPU"
            f" time and was ended; `harness results collect` delivers the rest; log: {self.log}"
        )

    def close(self) -> None:
        """End it, and wait until it is gone."""
        self.connection.close()
        with suppress(ForkServerStalled):  # a disk that hangs keeps it; nothing waits for it then
            kill_all([self.process])
        self.server.close()
        self.log_folder.remove()


def _start(tracker: Tracker) -> _Worker:
    """Start a process that delivers as `tracker` would.

    Raises HarnessError or OSError if it does not start.
    """
    variables = {**os.environ, **import_variables()}
    server = ForkServer.start(SETUP, variables)
    log_folder = ScratchFolder("delivery")
    try:
        process, connection = _fork(server, tracker, variables, log_folder.path)
    except BaseException:
        server.close()
        log_folder.remove()
        raise
    return _Worker(server=server, process=process, connection=connection, log_folder=log_folder)


def _fork(
    server: ForkServer, tracker: Tracker, variables: Mapping[str, str], folder: Path
) -> tuple[ForkedProcess, Connection[Any, Any]]:
    """Return a new process of the forkserver, with its log in `folder`, and the connection to it.

    Raises HarnessError if the process ends, or hangs, before it has connected.
    """
    with (
        unix_socket_path(folder / "socket") as path,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        listening.bind(str(path))
        listening.listen(1)
        request = ForkRequest(
            module="harness.tracking.delivery_worker",
            arguments=[str(path), str(tracker.results.path), tracker.uri],
            variables=variables,
            folder=str(Path.cwd()),
            log=str(folder / LOG_NAME),
        )
        (process,) = server.fork([request])
        stall = StallDetector(process.pid)
        while not select.select([listening], [], [], POLL)[0]:
            if process.poll() is not None or stall.seconds() > STALL_TIMEOUT:
                raise HarnessError("the process that delivers to MLflow did not start")
        stream, _ = listening.accept()
        path.unlink()
    # A process that is stopped would not read a request that is larger than the socket's buffer.
    timeout = struct.pack("ll", math.ceil(DELIVERY_TIMEOUT), 0)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    return process, Connection(stream.detach())
