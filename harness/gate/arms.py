"""Starts pairs of arms, the ranks of two trees of files, and lets them train in turn: only one arm
runs at a time.

What a rank says of its own speed is the word of the code that is measured. So the gate reads its
own clock around every turn, and stops the processes of an arm while it is not its turn.
"""

from __future__ import annotations

import json
import math
import os
import random
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from harness.core.cores import usable_cores
from harness.core.errors import HarnessError, one_line
from harness.core.paths import TrialFolder
from harness.core.ports import free_port, unix_socket_path
from harness.core.processes import Process
from harness.core.redaction import redact_text, secret_values
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree
from harness.gate.contention import WaitClock
from harness.gate.protocol import PROTOCOL
from harness.gate.ranks import StackTree, end_fresh, start_fresh
from harness.launch.forkserver import TORCH, ForkRequest, ForkServer, Setup, kill_all, shared_server
from harness.launch.launcher import rank_variables
from harness.launch.logs import scrub_logs
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Assignment, write_assignment
from harness.spec.cell import Cell, Length, Trial
from harness.spec.cluster import Profile, count_gpus

STEPS = 10_000_000  # more than any comparison takes
ENDLESS = Length(steps=STEPS)
START_TIMEOUT = 300.0  # seconds that all ranks may take until they can train
TURN_TIMEOUT = 600.0  # seconds that a turn may take
WAKE_SECONDS = 1.0  # without an answer, after which an arm is continued once more
POLL = 0.2  # seconds between two looks at ranks that start
LONGEST_MESSAGE = 10_000_000  # characters; a turn of 200 steps takes 5,000
# How far a rank's clock, which may be a GPU's, and this one may be apart after a turn.
CLOCK_DRIFT = 0.01  # a fraction of the turn
CLOCK_ERROR = 1e-4  # seconds
LONGEST_LOG = 1_000_000  # bytes of a log that are searched for an error


@dataclass(frozen=True, kw_only=True)
class ArmTurn:
    """What an arm did in a turn: so many steps without a pause, while the other arm stood still."""

    seconds: Sequence[float]  # of each step, at the slowest rank, by the ranks' own clocks
    reported: Sequence[float]  # seconds of all steps together, by rank, by the rank's own clock
    elapsed: Sequence[float]  # seconds from the request to the answer, by rank, by this clock
    delay: float  # seconds of the turn for which other programs kept arm and gate from a core
    losses: str  # digests of the losses, one for each rank

    @property
    def wall_seconds(self) -> float:
        """Return how long the whole turn took by the gate's clock."""
        return max(self.elapsed)


class TrainingArm:
    """The ranks of one tree, each behind a connection of its own.

    A rank waits until it is told how many steps to train. Its messages are lines of JSON, as
    `turn_worker` sends them. Its process, and whatever that has started in its group, is stopped
    whenever it is not the arm's turn: threads that spin and loader workers would take the other
    arm's cores, and work could be done where no clock runs.
    """

    def __init__(self, name: str, log: Path, secrets: Sequence[str] = ()) -> None:
        self.name = name  # of the tree, for people
        self.log = log  # what its ranks print
        self.batch_size = 1  # over all ranks, as they say when they are ready
        self.secrets = secrets  # texts that no message may repeat
        self.sockets: dict[int, socket.socket] = {}  # by rank
        self.lines: dict[int, TextIO] = {}  # what a rank sends, by rank
        self.process_groups: Sequence[int] = ()  # of its ranks
        self._wait_clocks: Sequence[WaitClock] = ()  # of its ranks
        self._gate_clock = WaitClock(os.getpid())

    def watch(self, process_ids: Sequence[int], *, with_delays: bool) -> None:
        """Take the processes of the ranks, each of which leads a group of its own.

        `with_delays`: whether what other programs take from a turn can be told.
        """
        self.process_groups = process_ids
        self._wait_clocks = [WaitClock(number) for number in process_ids if with_delays]

    def connect(self, rank: int, connection: socket.socket, lines: TextIO) -> None:
        """Take the connection of a rank."""
        self.sockets[rank] = connection
        self.lines[rank] = lines

    def freeze(self) -> None:
        """Stop all processes of the arm until its next turn; those that have ended are skipped."""
        self._signal(signal.SIGSTOP)

    def train(self, steps: int) -> ArmTurn:
        """Train so many steps and return how long each took.

        All ranks get the request before the first answer is read, because they train together.
        Raises HarnessError with a rank's own message if it fails, and for answers that can't be
        true.
        """
        request = (json.dumps({"steps": steps}) + "\n").encode()
        waited = self._read_wait_clocks()
        # Before the arm may run, so that nothing it does goes uncounted.
        start = time.perf_counter()
        self._signal(signal.SIGCONT)
        for connection in self.sockets.values():
            connection.settimeout(TURN_TIMEOUT)
            with suppress(BrokenPipeError):  # its last message, read below, says why it ended
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
        return ArmTurn(
            seconds=slowest,
            reported=[math.fsum(seconds) for seconds in by_rank],
            elapsed=[elapsed[rank] for rank in answers],
            delay=delay,
            losses=" ".join(losses),
        )

    def wait_until_ready(self, rank: int) -> None:
        """Wait until a rank is built and has said how many samples a step has.

        Raises HarnessError if it says no such number, and as `receive` does.
        """
        batch_size = self.receive(rank, START_TIMEOUT).get("batch_size")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise HarnessError(
                f"{self.name}: rank {rank} said no batch size when it was ready; log: {self.log}"
            )
        self.batch_size = batch_size

    def receive(self, rank: int, timeout: float) -> dict[str, Any]:
        """Return a rank's next message.

        Raises HarnessError if the rank reports a failure, if it has ended, if it does not answer
        for `timeout` seconds, and if its message is none. The error names the arm, the rank and the
        log.
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
        """Return what a rank said in one line, without secrets."""
        return one_line(redact_text(str(text), self.secrets))

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the arm."""
        for group in self.process_groups:
            with suppress(ProcessLookupError):  # its connection says that it has ended
                os.killpg(group, number)

    def _read_wait_clocks(self) -> list[float]:
        """Return how long each rank and then the gate have waited for a core, if that is told."""
        if not self._wait_clocks:
            return []
        return [clock.read() for clock in (*self._wait_clocks, self._gate_clock)]

    def _delay_since(self, before: Sequence[float]) -> float:
        """Return how long other programs have delayed a turn that began with these readings.

        Ranks wait for each other, so what delays one delays all: the longest counts. The gate
        delays a turn besides, as it has to wake up for the answer.
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
                # Once more: Linux stops a process that is forked while its group is stopped and
                # continued, such as a loader's worker, and forgets to continue it.
                self._signal(signal.SIGCONT)
                continue
            now = time.perf_counter()
            for connection in ready:
                elapsed[ranks.pop(connection)] = now - start
        return elapsed

    def _no_answer(self, rank: int, timeout: float) -> HarnessError:
        """Return the error that a rank does not answer."""
        return HarnessError(
            f"{self.name}: rank {rank} did not answer for {timeout:g} s; log: {self.log}"
        )

    def _step_seconds(
        self, rank: int, answer: Mapping[str, Any], steps: int, elapsed: float
    ) -> list[float]:
        """Return the seconds of each step as a rank reports them.

        Raises HarnessError unless they are so many positive numbers, and for more time than passed.
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


def milliseconds(seconds: float) -> str:
    """Return a duration as `0.4 ms` or `510 ms`."""
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


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
        self,
        cell: Cell,
        seed: int,
        trees: Mapping[str, Tree],
        base: Path,
        profile: Profile,
        *,
        other_cells: Mapping[str, Cell] | None = None,
    ) -> None:
        """Prepare to train a cell from `trees`; `base` is the folder that the cell's paths are
        relative to.

        `other_cells` are what single arms train instead, by their keys. They must have the cell's
        ranks, threads, loader workers and variables.
        """
        self.cell = cell
        self.other_cells = other_cells or {}
        self.seed = seed
        self.trees = trees
        self.base = base
        self.profile = profile
        self.server: ForkServer | None = None  # none for arms with stacks of their own

    def __enter__(self) -> PairStarter:
        with ExitStack() as stack:
            self._scratch = ScratchFolder("gate")
            self.folder = self._scratch.path
            stack.push(self._remove_folder)
            self.socket_path = stack.enter_context(unix_socket_path(self.folder / "turns"))
            self.listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            self.listening.bind(str(self.socket_path))
            self.listening.listen(64)
            launcher = Torchrun(environment=self.profile.environment)
            threads = self.cell.axes.num_threads
            self.variables = launcher.variables(threads, self.cell.environment)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def _remove_folder(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave nothing but the logs that a HarnessError names."""
        if isinstance(error, HarnessError) and str(self.folder) in str(error):
            secrets = secret_values(os.environ, self.profile.environment)
            for key in self.trees:
                scrub_logs(TrialFolder(self.folder / key), secrets)
            self._scratch.keep()
        self._scratch.remove()

    @contextmanager
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, TrainingArm]]:
        """Give fresh arms of the trees with these keys, started in this order and ready to train.

        Their ranks are gone when the context ends. Raises HarnessError if a rank fails.
        """
        with ExitStack() as stack:
            arms: dict[str, TrainingArm] = {}
            requests: dict[ArmRank, ForkRequest] = {}
            secrets = secret_values(os.environ, self.profile.environment)
            cores = self._draw_cores()
            # What drivers and libraries of GPUs start when they are loaded is not known.
            on_gpus = self.profile.device != "cpu" and count_gpus() > 0
            for key in keys:
                log = TrialFolder(self.folder / key).launch_log
                arms[key] = TrainingArm(self.trees[key].name, log, secrets)
                for rank, request in enumerate(self._rank_requests(key, cores)):
                    requests[ArmRank(key, rank)] = request
            processes = self._start(requests, stack, on_gpus=on_gpus)
            self._accept_all(arms, processes, stack)
            for key, arm in arms.items():
                for rank in arm.sockets:
                    arm.wait_until_ready(rank)
                process_ids = [
                    process.pid for name, process in processes.items() if name.arm == key
                ]
                arm.watch(process_ids, with_delays=self._can_tell_delays())
            for arm in arms.values():
                arm.freeze()
            yield arms

    def _start(
        self, requests: Mapping[ArmRank, ForkRequest], stack: ExitStack, *, on_gpus: bool
    ) -> dict[ArmRank, Process]:
        """Start the ranks in the order of the requests; they are gone when `stack` is closed."""
        self.server = None
        if not any(isinstance(tree, StackTree) for tree in self.trees.values()):
            setup = Setup(preload=TORCH, refuse_threads=not on_gpus)
            self.server = shared_server(self.variables, setup)
            forked = self.server.fork(list(requests.values()))
            stack.callback(kill_all, forked)
            return dict(zip(requests, forked, strict=True))
        processes: dict[ArmRank, Process] = {}
        for name, request in requests.items():
            tree = self.trees[name.arm]
            assert isinstance(tree, StackTree)
            (processes[name],) = start_fresh([request], tree)
            stack.callback(end_fresh, [processes[name]])
        return processes

    def _can_tell_delays(self) -> bool:
        """Return whether a rank that waits for a core waits for other programs.

        Not with loader workers, which are the arm's own. And a GPU works on while its rank waits. In
        a container the rank is another process than the one that was started.
        """
        for tree in self.trees.values():
            if isinstance(tree, StackTree) and tree.stack.prefix:
                return False
        on_cpu = self.profile.device == "cpu" or not count_gpus()
        return on_cpu and self.cell.axes.num_workers == 0

    def _draw_cores(self) -> list[list[int]]:
        """Return the cores of each rank, which it shares with the same rank of the other arm alone.

        What disturbs one core leaves another one undisturbed, and would be taken for a difference
        between the arms. The first core is drawn at random, as another gate may run on this
        machine.
        """
        axes = self.cell.axes
        usable = usable_cores()
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
        cell = self.other_cells.get(key, self.cell).with_any_code()
        endless = replace(cell, length=ENDLESS, evaluate=ENDLESS, warmup=STEPS)
        assignment = Assignment(
            trial=Trial(cell=endless, seed=self.seed),
            base_folder=str(tree.counterpart(self.base)),
            device=self.profile.device,
            interpreter=tree.stack.executable if isinstance(tree, StackTree) else None,
        )
        write_assignment(folder.assignment_path, assignment)
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
                packages=tree.own_packages,
            )
            requests.append(request)
        return requests

    def _accept_all(
        self,
        arms: Mapping[str, TrainingArm],
        processes: Mapping[ArmRank, Process],
        stack: ExitStack,
    ) -> None:
        """Wait until every rank has connected.

        Raises HarnessError if a rank ends before it has connected, if the forkserver ends, and if
        the ranks take longer than `START_TIMEOUT`.
        """
        deadline = time.monotonic() + START_TIMEOUT
        names = {process.pid: name for name, process in processes.items()}
        while any(name.rank not in arms[name.arm].sockets for name in processes):
            if time.monotonic() > deadline:
                logs = ", ".join(str(arm.log) for arm in arms.values())
                raise HarnessError(
                    f"the ranks did not start within {START_TIMEOUT:g} s; logs: {logs}"
                )
            ended = [name for name, process in processes.items() if process.poll() is not None]
            if self.server is not None and self.server.has_ended:
                raise self.server.error()
            # A rank that has ended may have connected before that, and its message says why it
            # ended.
            while select.select([self.listening], [], [], 0)[0]:
                connection, _ = self.listening.accept()
                connect_rank(connection, names, arms, stack)
            check_connected(ended, arms)
            waited_for = [self.listening.fileno()]
            if self.server is not None:
                waited_for.append(self.server.fileno())
            select.select(waited_for, [], [], POLL)


def connect_rank(
    connection: socket.socket,
    names: Mapping[int, ArmRank],
    arms: Mapping[str, TrainingArm],
    stack: ExitStack,
) -> None:
    """Give the connection of a rank to its arm; raises HarnessError if it speaks another protocol.

    The kernel says which process connected, and `names` which rank that is: the code of one arm
    could otherwise answer for the other one. Connections of other processes, and further ones of a
    rank, are closed. The connection is closed with `stack`. In a container a rank is another process
    than the one in `names`, of the same process group.
    """
    stack.enter_context(connection)
    process_id = _peer_process_id(connection)
    name = names.get(process_id) or names.get(_process_group(process_id))
    if name is None or name.rank in arms[name.arm].sockets:
        connection.close()
        return
    arm = arms[name.arm]
    connection.settimeout(START_TIMEOUT)
    lines = stack.enter_context(connection.makefile("r", encoding="utf-8", errors="replace"))
    line = lines.readline(LONGEST_MESSAGE)
    if not line:
        return  # it ended at once, which `check_connected` reports
    try:
        protocol = json.loads(line)["protocol"]
    except (ValueError, KeyError, TypeError, RecursionError):
        protocol = None
    if protocol != PROTOCOL:
        raise HarnessError(
            f"{arm.name}: its turn worker speaks protocol {protocol}; allowed: {PROTOCOL}"
        )
    arm.connect(name.rank, connection, lines)


def _process_group(process_id: int) -> int:
    """Return the group of a process, 0 of one that has ended."""
    try:
        return os.getpgid(process_id)
    except ProcessLookupError:
        return 0


def _peer_process_id(connection: socket.socket) -> int:
    """Return the number of the process that made a Unix connection, as the kernel has it."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    process_id, _, _ = struct.unpack("3i", credentials)
    return int(process_id)


def check_connected(ended: Sequence[ArmRank], arms: Mapping[str, TrainingArm]) -> None:
    """Raise HarnessError if one of the ranks that have ended never connected.

    A rank that connected has said itself why it ended, and its next message is that reason.
    """
    for name in ended:
        arm = arms[name.arm]
        if name.rank not in arm.sockets:
            raise HarnessError(
                f"{arm.name}: rank {name.rank} did not start: {arm.scrub(_error_line(arm.log))};"
                f" log: {arm.log}"
            )


def _error_line(log: Path) -> str:
    """Return the first line of a log that names an error, else its first line.

    The first error is the cause: torch prints more of them while a process ends.
    """
    if not log.exists():
        return "it printed nothing"
    with log.open("rb") as file:
        lines = file.read(LONGEST_LOG).decode(errors="replace").strip().splitlines()
    for line in lines:
        if "Error" in line or "No module named" in line:
            return line
    return lines[0] if lines else "it printed nothing"
