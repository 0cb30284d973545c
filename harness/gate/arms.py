"""The ranks of one tree of files, which train only when it is their turn.

A rank reports the times of its own steps. The gate reads its own clock around every turn as well, and
stops an arm's processes while the other arm trains.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from harness.core.errors import HarnessError, one_line
from harness.sweep.cell import ThroughputUnit

# The version of the messages between a gate and its arms, which may be of another revision. Raise it
# with every change of the messages, the arguments of `turn_worker` or the content of `trial.json`.
PROTOCOL = 6
START_TIMEOUT = 300.0  # seconds that all ranks may take until they can train
TURN_TIMEOUT = 600.0  # seconds that a turn may take
WAKE_SECONDS = 1.0  # without an answer, after which an arm is continued once more


@dataclass(frozen=True, kw_only=True)
class ArmTurn:
    """The measurement of one turn: steps that an arm trained without a pause, the other arm stopped."""

    seconds: Sequence[float]  # of each step, at the slowest rank, by the ranks' own clocks
    wall_seconds: float  # from the request to the last rank's answer, by the gate's clock
    losses: str  # digests of the losses, one for each rank


class TrainingArm:
    """The ranks of one tree, with a connection to each.

    A rank waits for a message with the number of steps to train. Messages are lines of JSON, as
    `turn_worker` sends them. The process group of a rank is stopped outside of the arm's turns:
    spinning threads and loader workers would take the other arm's cores, and the arm could do work
    while no clock runs.
    """

    def __init__(self, name: str, log: Path) -> None:
        self.name = name  # of the tree, for messages
        self.log = log  # the output of its ranks
        # As ranks report when they are ready; the batch size is that of all of them.
        self.batch_size = 1
        self.unit: ThroughputUnit = "samples/s"
        self.sockets: dict[int, socket.socket] = {}  # by rank
        self.lines: dict[int, TextIO] = {}  # messages of each rank
        self.process_groups: list[int] = []  # of its ranks

    def freeze(self) -> None:
        """Stop all processes of the arm until its next turn; those that have ended are skipped."""
        self._signal(signal.SIGSTOP)

    def train(self, steps: int) -> ArmTurn:
        """Train `steps` steps and return how long each took.

        All ranks get the request before the first answer is read, because they train together.
        Raises HarnessError with a rank's own message if it fails.
        """
        message = json.dumps({"steps": steps}) + "\n"
        request = message.encode()
        # Before the arm may run, so that nothing it does goes uncounted.
        start = time.perf_counter()
        self._signal(signal.SIGCONT)
        for connection in self.sockets.values():
            connection.settimeout(TURN_TIMEOUT)
            with suppress(BrokenPipeError):  # its last message, read below, has the reason
                connection.sendall(request)
        wall_seconds = self._wait_for_answers(start)
        self.freeze()
        seconds_of_ranks = []
        digests = []
        for rank in sorted(self.sockets):
            answer = self.receive(rank, TURN_TIMEOUT)
            seconds_of_ranks.append(answer["seconds"])
            digests.append(answer["losses"])
        return ArmTurn(
            seconds=[max(step) for step in zip(*seconds_of_ranks, strict=True)],
            wall_seconds=wall_seconds,
            losses=" ".join(digests),
        )

    def wait_until_ready(self) -> None:
        """Wait until all ranks are ready to train and have reported their batch size."""
        for rank in self.sockets:
            message = self.receive(rank, START_TIMEOUT)
            self.batch_size = message["batch_size"]
            self.unit = message.get("unit", self.unit)

    def receive(self, rank: int, timeout: float) -> dict[str, Any]:
        """Return a rank's next message.

        Raises HarnessError, with the arm, the rank and the log, if the rank reports a failure, has
        ended, or does not answer for `timeout` seconds.
        """
        self.sockets[rank].settimeout(timeout)
        try:
            line = self.lines[rank].readline()
        except TimeoutError:
            raise self._error(f"rank {rank} did not answer for {timeout:g} s") from None
        except ConnectionResetError:
            line = ""
        if not line:
            raise self._error(f"rank {rank} ended")
        message: dict[str, Any] = json.loads(line)
        if "failure" in message:
            raise self._error(one_line(message["failure"]))
        return message

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the arm."""
        for group in self.process_groups:
            with suppress(ProcessLookupError):  # reading its connection reports that it has ended
                os.killpg(group, number)

    def _wait_for_answers(self, start: float) -> float:
        """Return how many seconds after `start` the last rank answered, or ended."""
        waiting = set(self.sockets.values())
        while True:
            ready, _, _ = select.select(list(waiting), [], [], WAKE_SECONDS)
            elapsed = time.perf_counter() - start
            waiting -= set(ready)
            if not waiting:
                return elapsed
            if elapsed > TURN_TIMEOUT:
                raise self._error(f"did not answer for {TURN_TIMEOUT:g} s")
            if not ready:
                # Again: a process that is forked while its group is stopped and continued, such as
                # a loader's worker, may stay stopped on Linux.
                self._signal(signal.SIGCONT)

    def _error(self, text: str) -> HarnessError:
        """Return an error that names the arm and its log."""
        return HarnessError(f"{self.name}: {text}; log: {self.log}")
