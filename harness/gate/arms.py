"""The ranks of one tree of files, which train only when it is their turn.

A rank reports its own speed, so the code that is measured could misreport it. Therefore the gate
reads its own clock around every turn, and stops an arm's processes while the other arm trains.
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
from harness.core.redaction import redact_text
from harness.measure.timeline import StepPart
from harness.spec.cell import THROUGHPUT_UNITS, ThroughputUnit

# The version of the messages between a gate and its arms, which may be of another revision. Raise it
# with every change of the messages, the arguments of `turn_worker` or the content of `trial.json`.
PROTOCOL = 5
START_TIMEOUT = 300.0  # seconds that all ranks may take until they can train
TURN_TIMEOUT = 600.0  # seconds that a turn may take
WAKE_SECONDS = 1.0  # without an answer, after which an arm is continued once more
LONGEST_MESSAGE = 10_000_000  # characters; a turn of 200 steps takes 5,000
# How far a rank's clock, which may be a GPU's, and this one may be apart after a turn.
CLOCK_DRIFT = 0.01  # a fraction of the turn
CLOCK_ERROR = 1e-4  # seconds
# <linux/posix-timers.h>: the clock of the CPU time of a process, all of its threads together, has
# the number ~PID << 3 | CPUCLOCK_SCHED.
CPUCLOCK_SCHED = 2
NANOSECOND = 1e-9


class WaitClock:
    """Counts the seconds for which other programs kept a process's main thread from a core.

    Another program takes a core from whichever arm is training. The kernel counts how long a thread
    that could run waited for a core, so this time can be subtracted from a turn. Linux only;
    elsewhere nothing is subtracted.
    """

    def __init__(self, process_id: int) -> None:
        self._path = Path(f"/proc/{process_id}/schedstat")
        self._cpu_clock = (~process_id << 3) | CPUCLOCK_SCHED

    def read(self) -> float:
        """Return a count of seconds, of which only differences mean something.

        The main thread may also have waited for other threads of the same process, for at most as
        long as those ran. Their CPU time is subtracted, so code cannot hide its own CPU time. 0 for
        a process that has ended, and where the kernel does not count.
        """
        try:
            # Nanoseconds on a core and waiting for one, of the main thread (sched-stats.rst).
            ran, waited, _ = self._path.read_text(encoding="ascii").split()
            process_ran = time.clock_gettime_ns(self._cpu_clock)
        except (OSError, ValueError):
            return 0.0
        other_threads_ran = process_ran - int(ran)
        return (int(waited) - other_threads_ran) * NANOSECOND


@dataclass(frozen=True, kw_only=True)
class ArmTurn:
    """The measurement of one turn: steps that an arm trained without a pause, the other arm stopped."""

    seconds: Sequence[float]  # of each step, at the slowest rank, by the ranks' own clocks
    reported: Sequence[float]  # seconds of all steps together, by rank, by the rank's own clock
    elapsed: Sequence[float]  # seconds from the request to the answer, by rank, by this clock
    delay: float  # seconds of the turn that the arm or the gate waited for cores of other programs
    losses: str  # digests of the losses, one for each rank
    parts: Sequence[Sequence[StepPart]] = ()  # of the profiled steps, by rank; empty without any

    @property
    def wall_seconds(self) -> float:
        """Return how long the whole turn took by the gate's clock."""
        return max(self.elapsed)


class TrainingArm:
    """The ranks of one tree, with a connection to each.

    A rank waits for a message with the number of steps to train. Messages are lines of JSON, as
    `turn_worker` sends them. The process group of a rank is stopped outside of the arm's turns:
    spinning threads and loader workers would take the other arm's cores, and the arm could do work
    while no clock runs.
    """

    def __init__(self, name: str, log: Path, secrets: Sequence[str] = ()) -> None:
        self.name = name  # of the tree, for messages
        self.log = log  # the output of its ranks
        # As ranks report when they are ready; the batch size is that of all of them.
        self.batch_size = 1
        self.unit: ThroughputUnit = "samples/s"
        self.secrets = secrets  # texts that are removed from messages
        self.sockets: dict[int, socket.socket] = {}  # by rank
        self.lines: dict[int, TextIO] = {}  # messages of each rank
        self.process_groups: Sequence[int] = ()  # of its ranks
        self._wait_clocks: Sequence[WaitClock] = ()  # of its ranks
        self._gate_clock = WaitClock(os.getpid())

    def watch(self, process_ids: Sequence[int], *, with_delays: bool) -> None:
        """Store the processes of the ranks, each the leader of its own group.

        `with_delays`: whether delays by other programs can be measured.
        """
        self.process_groups = process_ids
        self._wait_clocks = [WaitClock(number) for number in process_ids if with_delays]

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
        return self._take_turn(steps)

    def profile(self, steps: int, first: int) -> ArmTurn:
        """Train as `train` does, and profile the steps from `first` on."""
        return self._take_turn(steps, profiled_from=first)

    def _take_turn(self, steps: int, profiled_from: int | None = None) -> ArmTurn:
        """Have all ranks train `steps` steps, while the gate's clock runs."""
        content = {"steps": steps}
        if profiled_from is not None:
            content["profiled_from"] = profiled_from
        request = (json.dumps(content) + "\n").encode()
        waited = self._read_wait_clocks()
        # Before the arm may run, so that nothing it does goes uncounted.
        start = time.perf_counter()
        self._signal(signal.SIGCONT)
        for connection in self.sockets.values():
            connection.settimeout(TURN_TIMEOUT)
            with suppress(BrokenPipeError):  # its last message, read below, has the reason
                connection.sendall(request)
        elapsed = self._wait_for_answers(start)
        self.freeze()
        delay = self._delay_since(waited)
        answers = {rank: self.receive(rank, TURN_TIMEOUT) for rank in sorted(self.sockets)}
        by_rank = []
        for rank, answer in answers.items():
            by_rank.append(self._step_seconds(rank, answer, steps, elapsed[rank]))
        slowest = [max(step) for step in zip(*by_rank, strict=True)]
        losses = [str(answer.get("losses")) for answer in answers.values()]
        parts = []
        if profiled_from is not None:
            parts = [self._parts(rank, answer) for rank, answer in answers.items()]
        return ArmTurn(
            seconds=slowest,
            reported=[math.fsum(seconds) for seconds in by_rank],
            elapsed=[elapsed[rank] for rank in answers],
            delay=delay,
            losses=" ".join(losses),
            parts=parts,
        )

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
            raise HarnessError(f"{self.name}: {self.scrub(message['failure'])}; log: {self.log}")
        return message

    def scrub(self, text: object) -> str:
        """Return a rank's text in one line, without secrets."""
        return one_line(redact_text(str(text), self.secrets))

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the arm."""
        for group in self.process_groups:
            with suppress(ProcessLookupError):  # reading its connection reports that it has ended
                os.killpg(group, number)

    def _read_wait_clocks(self) -> list[float]:
        """Return how long each rank, and last the gate, have waited for a core; empty if unknown."""
        if not self._wait_clocks:
            return []
        return [clock.read() for clock in (*self._wait_clocks, self._gate_clock)]

    def _delay_since(self, before: Sequence[float]) -> float:
        """Return how long other programs have delayed a turn that began with these readings.

        Ranks wait for each other, so the longest delay counts. The gate's own delay is added,
        because it has to wake up for the answer.
        """
        if not before:
            return 0.0
        waited = []
        for start, end in zip(before, self._read_wait_clocks(), strict=True):
            waited.append(max(0.0, end - start))
        *ranks_waited, gate_waited = waited
        return max(ranks_waited) + gate_waited

    def _wait_for_answers(self, start: float) -> dict[int, float]:
        """Return how many seconds after `start` each rank answered, or ended."""
        ranks = {connection: rank for rank, connection in self.sockets.items()}
        elapsed: dict[int, float] = {}
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
            now = time.perf_counter()
            for connection in ready:
                elapsed[ranks.pop(connection)] = now - start
        return elapsed

    def _no_answer(self, rank: int, timeout: float) -> HarnessError:
        """Return the error for a rank that does not answer."""
        return HarnessError(
            f"{self.name}: rank {rank} did not answer for {timeout:g} s; log: {self.log}"
        )

    def _step_seconds(
        self, rank: int, answer: Mapping[str, Any], steps: int, elapsed: float
    ) -> list[float]:
        """Return the seconds of each step as a rank reports them.

        Raises HarnessError unless there are `steps` positive numbers, and if they add up to more
        time than has passed.
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
        if sum(seconds) > elapsed * (1 + CLOCK_DRIFT) + CLOCK_ERROR:
            raise HarnessError(
                f"{self.name}: rank {rank} reported {milliseconds(sum(seconds))}"
                f" for a turn that took {milliseconds(elapsed)}; log: {self.log}"
            )
        return seconds

    def _parts(self, rank: int, answer: Mapping[str, Any]) -> list[StepPart]:
        """Return the parts of a rank's profiled steps; raises HarnessError if it sent none."""
        try:
            return [StepPart(**part) for part in answer["parts"]]
        except (KeyError, TypeError):
            raise HarnessError(
                f"{self.name}: rank {rank} did not report its profile; log: {self.log}"
            ) from None


def milliseconds(seconds: float) -> str:
    """Return a duration as `0.4 ms` or `510 ms`."""
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"
