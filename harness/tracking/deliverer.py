"""Delivers the trials of a running sweep to MLflow from a separate process.

Importing MLflow takes seconds and a delivery tens of milliseconds, which no trial waits for. The
process is a `delivery_worker`; both exchange lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from harness.core.errors import HarnessError, StorageError
from harness.core.import_path import import_variables, module_command
from harness.core.paths import Results, SweepFolder
from harness.core.processes import end_process_group, parent_variables
from harness.core.scratch import ScratchFolder
from harness.launch.stall import POLL, StallDetector
from harness.tracking.connect import TrackerDown
from harness.tracking.tracker import Tracker

# Seconds without CPU time after which the process counts as hung: longer than a tracker waits for
# another delivery, a locked database or a server.
DELIVERY_TIMEOUT = 300.0
LOG_NAME = "delivery.log"  # the file that the process writes its output to


class DeliveryProcess:
    """A process that delivers trials of one sweep while this process runs others."""

    def __init__(self, results: Results, folder: SweepFolder, uri: str | None) -> None:
        """Prepare to deliver to the MLflow store `uri`, by default the results folder's database.

        Raises BadInput for a URI that no store can have.
        """
        self.tracker = Tracker(results, uri)
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self._log_folder: ScratchFolder | None = None
        self._received = b""  # the beginning of a line of which the rest has not arrived

    def start(self) -> None:
        """Start the process, which loads MLflow at once, and return without waiting for it."""
        self._log_folder = ScratchFolder("delivery")
        with (self._log_folder.path / LOG_NAME).open("ab") as log:
            self.process = subprocess.Popen(
                module_command(sys.executable, "harness.tracking.delivery_worker"),
                env={**os.environ, **import_variables(), **parent_variables()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._send(
            {
                "results": str(self.tracker.results.path),
                "uri": self.tracker.uri,  # not as an argument: it may have a password
                "folder": str(self.folder.path),
            }
        )

    def deliver(self, trials: Sequence[str]) -> None:
        """Have the process deliver trials, given by their ids, soon; do not wait for it.

        Raises what an earlier delivery has failed with: TrackerDown, or StorageError for a disk that
        is full.
        """
        self._send({"trials": list(trials)})
        while self._has_answer() and self._receive() is not None:
            pass

    def finish(self, trials: Sequence[str]) -> None:
        """Deliver all trials of the sweep that ran, with the verdicts, and wait until that is done.

        This process delivers if that one has ended. Raises TrackerDown and StorageError.
        """
        self._send({"trials": list(trials), "is_last": True})
        while (answer := self._receive()) is not None:
            if answer["is_last"]:
                return
        self.tracker.deliver(self.folder, trials)

    def close(self) -> None:
        """End the process."""
        if self.process is None:
            return
        end_process_group(self.process)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.process = None
        if self._log_folder is not None:
            self._log_folder.remove()

    def _send(self, message: dict[str, Any]) -> None:
        """Send a line; raises TrackerDown if the process does not read it."""
        if self.process is None or self.process.stdin is None:
            return
        descriptor = self.process.stdin.fileno()
        line = (json.dumps(message) + "\n").encode()
        stall = StallDetector(self.process.pid)
        while line:
            if select.select([], [descriptor], [], POLL)[1]:
                try:
                    line = line[os.write(descriptor, line) :]
                except BrokenPipeError:
                    return  # `finish` delivers for a process that has ended
            else:
                self._refuse_stalled(stall)

    def _has_answer(self) -> bool:
        """Return whether an answer, or the end of the process, has arrived."""
        if self.process is None or self.process.stdout is None:
            return False
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def _receive(self) -> dict[str, Any] | None:
        """Wait for an answer and return it, None if the process has ended.

        Raises the error that a delivery has failed with.
        """
        if self.process is None or self.process.stdout is None:
            return None
        stall = StallDetector(self.process.pid)
        while b"\n" not in self._received:
            if not select.select([self.process.stdout], [], [], POLL)[0]:
                self._refuse_stalled(stall)
                continue
            received = os.read(self.process.stdout.fileno(), 65536)
            if not received:
                return None
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            error: type[HarnessError] = StorageError if answer["is_of_disk"] else TrackerDown
            raise error(answer["error"])
        return answer

    def _refuse_stalled(self, stall: StallDetector) -> None:
        """Raise TrackerDown if the process has used no CPU time for DELIVERY_TIMEOUT seconds."""
        if stall.seconds() <= DELIVERY_TIMEOUT:
            return
        message = (
            f"MLflow: waited {DELIVERY_TIMEOUT:g} s for the process that delivers, which used no CPU time"
            " and was ended; harness collect delivers the rest"
        )
        if self._log_folder is not None:
            self._log_folder.keep()
            message += f"; log: {self._log_folder.path / LOG_NAME}"
        raise TrackerDown(message)
