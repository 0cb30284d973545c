"""Starts pairs of arms, the ranks of two trees of files, and lets them train in turn: only one arm
trains at a time.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from harness.core.errors import HarnessError, one_line
from harness.core.paths import TrialFolder, write_atomically
from harness.core.ports import free_port, unix_socket_path
from harness.gate.protocol import PROTOCOL
from harness.gate.worktree import Tree
from harness.launch.forkserver import TORCH, ForkedProcess, ForkRequest, kill_all, shared_server
from harness.launch.launcher import rank_variables
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Assignment
from harness.spec.cell import Cell, Length, Trial
from harness.spec.cluster import Profile, count_gpus

STEPS = 10_000_000  # more than any comparison takes
ENDLESS = Length(steps=STEPS)
START_TIMEOUT = 300.0  # seconds that all ranks may take until they can train
TURN_TIMEOUT = 600.0  # seconds that a turn may take
POLL = 0.2  # seconds between two looks at ranks that start


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What an arm did in a turn: so many steps without a pause, while the other arm waited."""

    seconds: Sequence[float]  # of each step, at the slowest rank
    losses: str  # digests of the losses, one for each rank


class Arm:
    """The ranks of one tree, each behind a connection of its own.

    A rank waits until it is told how many steps to train. Its messages are lines of JSON, as
    `turn_worker` sends them.
    """

    def __init__(self, name: str, log: Path) -> None:
        self.name = name  # of the tree, for people
        self.log = log  # what its ranks print
        self.sockets: dict[int, socket.socket] = {}  # by rank
        self.lines: dict[int, TextIO] = {}  # what a rank sends, by rank

    def connect(self, rank: int, connection: socket.socket, lines: TextIO) -> None:
        """Take the connection of a rank."""
        self.sockets[rank] = connection
        self.lines[rank] = lines

    def train(self, steps: int) -> Turn:
        """Train so many steps and return how long each took.

        All ranks get the request before the first answer is read, because they train together.
        Raises HarnessError with a rank's own message if it fails.
        """
        request = (json.dumps({"steps": steps}) + "\n").encode()
        for connection in self.sockets.values():
            with suppress(
                BrokenPipeError
            ):  # its last message, which is read below, says why it ended
                connection.sendall(request)
        answers = [self.receive(rank, TURN_TIMEOUT) for rank in sorted(self.sockets)]
        by_rank = [answer["seconds"] for answer in answers]
        slowest = [max(step) for step in zip(*by_rank, strict=True)]
        return Turn(seconds=slowest, losses=" ".join(answer["losses"] for answer in answers))

    def receive(self, rank: int, timeout: float) -> dict[str, Any]:
        """Return a rank's next message.

        Raises HarnessError if the rank reports a failure, if it has ended, and if it does not
        answer for `timeout` seconds. The error names the arm, the rank and the log.
        """
        self.sockets[rank].settimeout(timeout)
        try:
            line = self.lines[rank].readline()
        except TimeoutError:
            raise HarnessError(
                f"{self.name}: rank {rank} did not answer for {timeout:g} s; log: {self.log}"
            ) from None
        except OSError:
            line = ""
        if not line:
            raise HarnessError(f"{self.name}: rank {rank} ended; log: {self.log}")
        message: dict[str, Any] = json.loads(line)
        if "failure" in message:
            raise HarnessError(f"{self.name}: {message['failure']}; log: {self.log}")
        return message


@dataclass(frozen=True)
class ArmRank:
    """Names one rank of one arm."""

    arm: str  # the key of its arm: `a` or `b`
    rank: int


class PairStarter:
    """Starts pairs of arms, the ranks of both from one forkserver; to be used as a context.

    As the ranks of both arms come from one process, neither arm has its libraries in better places
    in memory. What chance decides about a process is drawn anew with every pair.
    """

    def __init__(
        self, cell: Cell, seed: int, trees: Mapping[str, Tree], base: Path, profile: Profile
    ) -> None:
        """Prepare to train a cell from `trees`; `base` is the folder that the cell's paths are
        relative to.
        """
        self.cell = cell
        self.seed = seed
        self.trees = trees
        self.base = base
        self.profile = profile

    def __enter__(self) -> PairStarter:
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="harness-gate-"))
            stack.push(self._remove_folder)
            self.socket_path = stack.enter_context(unix_socket_path(self.folder / "turns"))
            self.listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            self.listening.bind(str(self.socket_path))
            self.listening.listen(64)
            launcher = Torchrun(environment=self.profile.environment)
            self.variables = launcher.variables(self.cell.axes.num_threads)
            # What drivers and libraries of GPUs start when they are loaded is not known.
            on_gpus = self.profile.device != "cpu" and count_gpus() > 0
            self.server = shared_server(self.variables, preload=TORCH, refuse_threads=not on_gpus)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def _remove_folder(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave nothing but the logs that a HarnessError names."""
        if kind is None or not issubclass(kind, HarnessError):
            shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, Arm]]:
        """Give fresh arms of the trees with these keys, started in this order and ready to train.

        Their ranks are gone when the context ends. Raises HarnessError if a rank fails.
        """
        with ExitStack() as stack:
            arms: dict[str, Arm] = {}
            requests: dict[ArmRank, ForkRequest] = {}
            cores = self._draw_cores()
            for key in keys:
                arms[key] = Arm(self.trees[key].name, TrialFolder(self.folder / key).launch_log)
                for rank, request in enumerate(self._rank_requests(key, cores)):
                    requests[ArmRank(key, rank)] = request
            forked = self.server.fork(list(requests.values()))
            stack.callback(kill_all, forked)
            self._accept_all(arms, dict(zip(requests, forked, strict=True)), stack)
            for arm in arms.values():
                for rank in arm.sockets:
                    arm.receive(rank, START_TIMEOUT)  # `ready`
            yield arms

    def _draw_cores(self) -> list[list[int]]:
        """Return the cores of each rank, which it shares with the same rank of the other arm alone.

        What disturbs one core leaves another one undisturbed, and would be taken for a difference
        between the arms. The first core is drawn at random, as another gate may run on this
        machine.
        """
        axes = self.cell.axes
        usable = sorted(os.sched_getaffinity(0))
        wanted = axes.num_threads + axes.num_workers
        if axes.strategy != "single":
            wanted += 1  # for the threads of gloo
        share = min(len(usable) // axes.world_size, wanted)
        if not share or self.profile.device != "cpu":
            return [usable] * axes.world_size
        start = random.randrange(len(usable))
        rotated = usable[start:] + usable[:start]
        return [rotated[rank * share :][:share] for rank in range(axes.world_size)]

    def _rank_requests(self, key: str, cores: Sequence[Sequence[int]]) -> list[ForkRequest]:
        """Write the assignment of an arm and return what to fork for each of its ranks.

        An arm imports from its own tree, because the PYTHONPATH of its ranks begins with it, and it
        has a port of its own for its process group. Its ranks never reach the end of their
        training: they end when their connections are closed.
        """
        tree = self.trees[key]
        folder = TrialFolder(self.folder / key)
        # All steps count as warm-up, so that no telemetry lengthens the turns.
        endless = replace(self.cell, length=ENDLESS, evaluate=ENDLESS, warmup=STEPS)
        assignment = Assignment(
            trial=Trial(cell=endless, seed=self.seed),
            base_folder=str(tree.counterpart(self.base)),
            device=self.profile.device,
        )
        content = json.dumps(asdict(assignment)) + "\n"
        write_atomically(folder.assignment_path, content, durable=False)
        folder.log_folder.mkdir(exist_ok=True)
        variables = {
            **self.variables,
            "PYTHONPATH": tree.python_path,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        requests = []
        world_size = self.cell.axes.world_size
        for rank in range(world_size):
            request = ForkRequest(
                module="harness.gate.turn_worker",
                arguments=[str(folder.path), str(self.socket_path), key],
                variables={**variables, **rank_variables(rank, world_size)},
                folder=str(tree.path),
                log=str(folder.launch_log),
                cores=cores[rank],
            )
            requests.append(request)
        return requests

    def _accept_all(
        self,
        arms: Mapping[str, Arm],
        processes: Mapping[ArmRank, ForkedProcess],
        stack: ExitStack,
    ) -> None:
        """Wait until every rank has connected.

        Raises HarnessError if a rank ends before it has connected, if the forkserver ends, and if
        the ranks take longer than `START_TIMEOUT`.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while any(name.rank not in arms[name.arm].sockets for name in processes):
            if time.monotonic() > deadline:
                logs = ", ".join(str(arm.log) for arm in arms.values())
                raise HarnessError(
                    f"the ranks did not start within {START_TIMEOUT:g} s; logs: {logs}"
                )
            ended = [name for name, process in processes.items() if process.poll() is not None]
            if self.server.has_ended:
                raise self.server.error()
            # A rank that has ended may have connected before that, and its message says why it
            # ended.
            while select.select([self.listening], [], [], 0)[0]:
                connection, _ = self.listening.accept()
                connect_rank(connection, arms, stack)
            check_connected(ended, arms)
            select.select([self.listening.fileno(), self.server.fileno()], [], [], POLL)


def connect_rank(connection: socket.socket, arms: Mapping[str, Arm], stack: ExitStack) -> None:
    """Give the connection of a rank to its arm; raises HarnessError if it speaks another protocol.

    The connection is closed with `stack`.
    """
    stack.enter_context(connection)
    connection.settimeout(START_TIMEOUT)
    lines = stack.enter_context(connection.makefile("r", encoding="utf-8"))
    line = lines.readline()
    if not line:
        return  # it ended at once, which `check_connected` reports
    hello = json.loads(line)
    arm = arms[hello["side"]]
    if hello["protocol"] != PROTOCOL:
        raise HarnessError(
            f"{arm.name}: its turn worker speaks protocol {hello['protocol']}; allowed: {PROTOCOL}"
        )
    arm.connect(hello["rank"], connection, lines)


def check_connected(ended: Sequence[ArmRank], arms: Mapping[str, Arm]) -> None:
    """Raise HarnessError if one of the ranks that have ended never connected.

    A rank that connected has said itself why it ended, and its next message is that reason.
    """
    for name in ended:
        arm = arms[name.arm]
        if name.rank not in arm.sockets:
            raise HarnessError(
                f"{arm.name}: rank {name.rank} did not start: {_error_line(arm.log)}; log: {arm.log}"
            )


def _error_line(log: Path) -> str:
    """Return the first line of a log that names an error, else its first line.

    The first error is the cause: torch prints more of them while a process ends.
    """
    if not log.exists():
        return "it printed nothing"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    for line in lines:
        if "Error" in line or "No module named" in line:
            return one_line(line)
    return one_line(lines[0]) if lines else "it printed nothing"
