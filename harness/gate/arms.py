"""The ranks of one tree of files, which train only when it is their turn.

A rank reports the times of its own steps. The gate reads its own clock around every turn as well, and
stops an arm's processes while the other arm trains.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from harness.core.errors import HarnessError, one_line
from harness.spec.cell import THROUGHPUT_UNITS, ThroughputUnit

# The version of the messages between a gate and its arms, which may be of another revision. Raise it
# with every change of the messages, the arguments of `turn_worker` or the content of `trial.json`.
PROTOCOL = 6
START_TIMEOUT = 300.0  # seconds that all ranks may take until they can train
TURN_TIMEOUT = 600.0  # seconds that a turn may take
WAKE_SECONDS = 1.0  # without an answer, after which an arm is continued once more
LONGEST_MESSAGE = 10_000_000  # characters; a turn of 200 steps takes 5,000


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
        self.process_groups: Sequence[int] = ()  # of its ranks

    def connect(self, rank: int, connection: socket.socket, lines: TextIO) -> None:
        """Store the connection of a rank."""
        self.sockets[rank] = connection
        self.lines[rank] = lines

    def freeze(self) -> None:
        """Stop all processes of the arm until its next turn; those that have ended are skipped."""
        self._signal(signal.SIGSTOP)

    def train(self, steps: int) -> ArmTurn:
        """Train `steps` steps and return how long each took.

        All ranks get the request before the first answer is read, because they train together.
        Raises HarnessError with a rank's own message if it fails, and for impossible answers.
        """
        request = (json.dumps({"steps": steps}) + "\n").encode()
        # Before the arm may run, so that nothing it does goes uncounted.
        start = time.perf_counter()
        self._signal(signal.SIGCONT)
        for connection in self.sockets.values():
            connection.settimeout(TURN_TIMEOUT)
            with suppress(BrokenPipeError):  # its last message, read below, has the reason
                connection.sendall(request)
        wall_seconds = self._wait_for_answers(start)
        self.freeze()
        answers = {rank: self.receive(rank, TURN_TIMEOUT) for rank in sorted(self.sockets)}
        by_rank = []
        for rank, answer in answers.items():
            by_rank.append(self._step_seconds(rank, answer, steps))
        slowest = [max(step) for step in zip(*by_rank, strict=True)]
        losses = [str(answer.get("losses")) for answer in answers.values()]
        return ArmTurn(seconds=slowest, wall_seconds=wall_seconds, losses=" ".join(losses))

    def wait_until_ready(self, rank: int) -> None:
        """Wait until a rank is ready to train and has reported its batch size.

        Raises HarnessError if it reports none, and as `receive` does.
        """
        message = self.receive(rank, START_TIMEOUT)
        batch_size = message.get("batch_size")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise HarnessError(f"{self.name}: rank {rank} reported no batch size; log: {self.log}")
        self.batch_size = batch_size
        if message.get("unit") in THROUGHPUT_UNITS:
            self.unit = message["unit"]

    def receive(self, rank: int, timeout: float) -> dict[str, Any]:
        """Return a rank's next message.

        Raises HarnessError, with the arm, the rank and the log, if the rank reports a failure, has
        ended, does not answer for `timeout` seconds, or sends no JSON object.
        """
        self.sockets[rank].settimeout(timeout)
        try:
            line = self.lines[rank].readline(LONGEST_MESSAGE)
        except TimeoutError:
            raise self._no_answer(rank, timeout) from None
        except OSError:
            line = ""
        if not line:
            raise HarnessError(f"{self.name}: rank {rank} ended; log: {self.log}")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise HarnessError(f"{self.name}: rank {rank} sent no message; log: {self.log}")
        if "failure" in message:
            raise HarnessError(f"{self.name}: {one_line(message['failure'])}; log: {self.log}")
        return message

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the arm."""
        for group in self.process_groups:
            with suppress(ProcessLookupError):  # reading its connection reports that it has ended
                os.killpg(group, number)

    def _wait_for_answers(self, start: float) -> float:
        """Return how many seconds after `start` the last rank answered, or ended."""
        ranks = {connection: rank for rank, connection in self.sockets.items()}
        elapsed = 0.0
        while ranks:
            left = start + TURN_TIMEOUT - time.perf_counter()
            if left <= 0:
                raise self._no_answer(min(ranks.values()), TURN_TIMEOUT)
            ready, _, _ = select.select(list(ranks), [], [], min(left, WAKE_SECONDS))
            if not ready:
                # Again: a process that is forked while its group is stopped and continued, such as
                # a loader's worker, may stay stopped on Linux.
                self._signal(signal.SIGCONT)
                continue
            elapsed = time.perf_counter() - start
            for connection in ready:
                del ranks[connection]
        return elapsed

    def _no_answer(self, rank: int, timeout: float) -> HarnessError:
        """Return the error for a rank that does not answer."""
        return HarnessError(
            f"{self.name}: rank {rank} did not answer for {timeout:g} s; log: {self.log}"
        )

    def _step_seconds(self, rank: int, answer: Mapping[str, Any], steps: int) -> list[float]:
        """Return the seconds of each step as a rank reports them.

        Raises HarnessError unless there are `steps` positive numbers.
        """
        seconds = answer.get("seconds")
        if not isinstance(seconds, list) or len(seconds) != steps:
            raise HarnessError(
                f"{self.name}: rank {rank} did not report {steps} steps; log: {self.log}"
            )
        if not all(isinstance(step, float) and 0 < step < math.inf for step in seconds):
            raise HarnessError(
                f"{self.name}: rank {rank} reported a step that took no time; log: {self.log}"
            )
        return seconds
