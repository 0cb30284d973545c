"""Starts pairs of arms, the ranks of two trees of files, which train in turn."""

from __future__ import annotations

import json
import random
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import TrialFolder
from harness.core.ports import free_port
from harness.core.processes import Process
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree
from harness.gate.arms import LONGEST_MESSAGE, PROTOCOL, START_TIMEOUT, TrainingArm
from harness.launch.forkserver import TORCH, ForkRequest, ForkServer, Setup, kill_all, shared_server
from harness.launch.launcher import rank_variables
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Assignment, write_assignment
from harness.spec.cell import Cell, Length, Trial
from harness.spec.cluster import Profile

STEPS = 10_000_000  # more than any comparison takes
ENDLESS = Length(steps=STEPS)
POLL = 0.2  # seconds between two checks of ranks that start
LONGEST_LOG = 1_000_000  # bytes of a log that are searched for an error


@dataclass(frozen=True)
class ArmRank:
    """Names one rank of one arm."""

    arm: str  # the key of its arm: `a` or `b`
    rank: int


class PairStarter:
    """Context manager that starts pairs of arms, the ranks of both from one forkserver.

    All ranks are forked from one process, so neither arm has a better memory layout of its
    libraries. Everything random about a process differs from pair to pair.
    """

    def __init__(
        self,
        cell: Cell,
        seed: int,
        trees: Mapping[str, Tree],
        base: Path,
        profile: Profile,
    ) -> None:
        """Prepare to train a cell in `trees`; the cell's paths are relative to the folder `base`.

        Raises BadInput for a cell of a stack: its packages would be those of the harness.
        """
        if cell.axes.stack is not None:
            raise BadInput(
                f"{cell.label}: stack: found {cell.axes.stack}; allowed: cells without a stack"
                " (harness run and harness compare compare stacks)"
            )
        self.cell = cell
        self.seed = seed
        self.trees = trees
        self.base = base
        self.profile = profile

    def __enter__(self) -> PairStarter:
        with ExitStack() as stack:
            self._scratch = ScratchFolder("gate")
            self.folder = self._scratch.path
            stack.push(self._remove_folder)
            # Not where TMPDIR says: the path of a socket has 107 bytes at most.
            sockets = stack.enter_context(ScratchFolder("socket", Path("/tmp")))
            self.socket_path = sockets.path / "turns"
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
        """Remove the folder, except for the logs that a HarnessError names."""
        if isinstance(error, HarnessError) and str(self.folder) in str(error):
            self._scratch.keep()
        self._scratch.remove()

    @contextmanager
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, TrainingArm]]:
        """Start arms of the trees with these keys, in this order; they are ready to train.

        Their ranks are killed when the context ends. Raises HarnessError if a rank fails.
        """
        with ExitStack() as stack:
            arms: dict[str, TrainingArm] = {}
            requests: dict[ArmRank, ForkRequest] = {}
            cores = self._draw_cores()
            for key in keys:
                log = TrialFolder(self.folder / key).launch_log
                arms[key] = TrainingArm(self.trees[key].name, log)
                for rank, request in enumerate(self._rank_requests(key, cores)):
                    requests[ArmRank(key, rank)] = request
            # Drivers and libraries of GPUs may start threads when they are loaded.
            setup = Setup(preload=TORCH, refuse_threads=not self.profile.gpus)
            server = shared_server(self.variables, setup)
            forked = server.fork(list(requests.values()))
            stack.callback(kill_all, forked)
            processes = dict(zip(requests, forked, strict=True))
            self._accept_all(arms, processes, server, stack)
            for key, arm in arms.items():
                for rank in arm.sockets:
                    arm.wait_until_ready(rank)
                arm.process_groups = [
                    process.pid for name, process in processes.items() if name.arm == key
                ]
            refuse_different_units(list(arms.values()))
            for arm in arms.values():
                arm.freeze()
            yield arms

    def _draw_cores(self) -> list[list[int]]:
        """Return the cores of each rank, shared only with the same rank of the other arm.

        With different cores, a disturbance of one core would look like a difference between the
        arms. The first core is drawn at random, because another gate may run on this machine.
        """
        axes = self.cell.axes
        usable = usable_cores()
        # Ranks with a binding bind themselves, to a part of what they have.
        if self.profile.gpus:
            return [usable] * axes.world_size
        wanted = axes.num_threads + axes.num_workers
        if axes.strategy != "single":
            wanted += 1  # for the threads of gloo
        share = min(len(usable) // axes.world_size, wanted)
        if not share:
            return [usable] * axes.world_size
        start = random.randrange(len(usable))
        rotated = usable[start:] + usable[:start]
        return [rotated[rank * share :][:share] for rank in range(axes.world_size)]

    def _rank_requests(self, key: str, cores: Sequence[Sequence[int]]) -> list[ForkRequest]:
        """Write the assignment of an arm, and return a fork request for each of its ranks.

        The ranks import from their arm's tree, with which their PYTHONPATH begins. They never reach
        the end of training: they end when their connections are closed.
        """
        tree = self.trees[key]
        folder = TrialFolder(self.folder / key)
        # All steps count as warm-up, so that no telemetry lengthens the turns.
        endless = replace(self.cell.with_any_code(), length=ENDLESS, evaluate=ENDLESS, warmup=STEPS)
        assignment = Assignment(
            trial=Trial(cell=endless, seed=self.seed),
            base_folder=str(tree.counterpart(self.base)),
            device=self.profile.device,
        )
        write_assignment(folder.assignment_path, assignment)
        folder.log_folder.mkdir(exist_ok=True)
        common = {
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
                variables={**common, **rank_variables(rank, world_size)},
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
        server: ForkServer,
        stack: ExitStack,
    ) -> None:
        """Wait until every rank has connected.

        Raises HarnessError if a rank ends before it connects, if the forkserver ends, or if the
        ranks take longer than `START_TIMEOUT`.
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
            if server.has_ended:
                raise server.error()
            # A rank that has ended may have connected before, and sent the reason.
            while select.select([self.listening], [], [], 0)[0]:
                connection, _ = self.listening.accept()
                connect_rank(connection, names, arms, stack)
            check_connected(ended, arms)
            select.select([self.listening.fileno(), server.fileno()], [], [], POLL)


def connect_rank(
    connection: socket.socket,
    names: Mapping[int, ArmRank],
    arms: Mapping[str, TrainingArm],
    stack: ExitStack,
) -> None:
    """Add the connection of a rank to its arm; raises HarnessError for another protocol.

    The rank is identified by the process id that the kernel reports for the connection, by `names`:
    the code of one arm could otherwise answer for the other arm. Connections of other processes,
    and a second one of a rank, are closed. The connection is closed with `stack`.
    """
    stack.enter_context(connection)
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process_id, _, _ = struct.unpack("3i", credentials)
    name = names.get(process_id)
    if name is None or name.rank in arms[name.arm].sockets:
        connection.close()
        return
    arm = arms[name.arm]
    connection.settimeout(START_TIMEOUT)
    lines = stack.enter_context(connection.makefile("r", encoding="utf-8", errors="replace"))
    line = lines.readline(LONGEST_MESSAGE)
    if not line:
        return  # it has ended, which `check_connected` reports
    try:
        protocol = json.loads(line)["protocol"]
    except (ValueError, KeyError, TypeError, RecursionError):
        protocol = None
    if protocol != PROTOCOL:
        raise HarnessError(
            f"{arm.name}: its turn worker speaks protocol {protocol}; allowed: {PROTOCOL}"
        )
    arm.connect(name.rank, connection, lines)


def refuse_different_units(arms: Sequence[TrainingArm]) -> None:
    """Raise HarnessError where an arm's samples are counted and those of the other one are not."""
    if len({arm.unit for arm in arms}) > 1:
        found = " and ".join(f"{arm.unit} in {arm.name}" for arm in arms)
        raise HarnessError(f"throughput is in {found}, which can't be compared")


def check_connected(ended: Sequence[ArmRank], arms: Mapping[str, TrainingArm]) -> None:
    """Raise HarnessError if one of the ranks that have ended never connected.

    The next message of a rank that has connected is the reason why it ended.
    """
    for name in ended:
        arm = arms[name.arm]
        if name.rank not in arm.sockets:
            raise HarnessError(
                f"{arm.name}: rank {name.rank} did not start: {_error_line(arm.log)};"
                f" log: {arm.log}"
            )


def _error_line(log: Path) -> str:
    """Return the first line of a log that names an error, else its first line.

    The first error is the cause: torch prints further ones while a process ends.
    """
    if not log.exists():
        return "it printed nothing"
    with log.open("rb") as file:
        lines = file.read(LONGEST_LOG).decode(errors="replace").strip().splitlines()
    for line in lines:
        if "Error" in line or "No module named" in line:
            return line
    return lines[0] if lines else "it printed nothing"
