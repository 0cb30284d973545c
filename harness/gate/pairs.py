"""Starts pairs of arms, the ranks of two trees of files, which train in turn."""

from __future__ import annotations

import json
import os
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
from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.core.ports import unix_socket_path
from harness.core.processes import Process
from harness.core.redaction import secret_values
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree
from harness.gate.arms import LONGEST_MESSAGE, PROTOCOL, START_TIMEOUT, TrainingArm
from harness.gate.ranks import StackTree, rank_requests, server_of, start_ranks
from harness.launch.forkserver import ForkRequest, ForkServer
from harness.launch.logs import scrub_logs
from harness.launch.torchrun import Torchrun
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
        *,
        other_cells: Mapping[str, Cell] | None = None,
    ) -> None:
        """Prepare to train a cell in `trees`; the cell's paths are relative to the folder `base`.

        `other_cells` are cells that single arms train instead, by the arm's key. They must have the
        same ranks, threads and variables as `cell`.
        """
        self.cell = cell
        self.other_cells = other_cells or {}
        cells = [cell, *self.other_cells.values()]
        self.num_workers = max(each.axes.num_workers for each in cells)
        self.seed = seed
        self.trees = trees
        self.base = base
        self.profile = profile
        self.server: ForkServer | None = None  # None if arms have their own stacks

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
        """Remove the folder, except for the logs that a HarnessError names."""
        if isinstance(error, HarnessError) and str(self.folder) in str(error):
            secrets = secret_values(os.environ, self.profile.environment)
            for key in self.trees:
                scrub_logs(TrialFolder(self.folder / key), secrets)
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
            secrets = secret_values(os.environ, self.profile.environment)
            cores = self._draw_cores()
            for key in keys:
                log = TrialFolder(self.folder / key).launch_log
                arms[key] = TrainingArm(self.trees[key].name, log, secrets)
                for rank, request in enumerate(self._rank_requests(key, cores)):
                    requests[ArmRank(key, rank)] = request
            self.server = server_of(self.trees.values(), self.variables, self.profile)
            of_trees = [(self.trees[name.arm], request) for name, request in requests.items()]
            started = start_ranks(self.server, of_trees, stack)
            processes = dict(zip(requests, started, strict=True))
            self._accept_all(arms, processes, stack)
            for key, arm in arms.items():
                for rank in arm.sockets:
                    arm.wait_until_ready(rank)
                process_ids = [
                    process.pid for name, process in processes.items() if name.arm == key
                ]
                arm.watch(process_ids, with_delays=self._can_measure_delays())
            refuse_different_units(list(arms.values()))
            for arm in arms.values():
                arm.freeze()
            yield arms

    def _can_measure_delays(self) -> bool:
        """Return whether a rank that waits for a core waits for other programs.

        Not with loader workers, which belong to the arm; nor on a GPU, which works while its rank
        waits; nor in a container, where the rank is not the process that was started.
        """
        for tree in self.trees.values():
            if isinstance(tree, StackTree) and tree.stack.prefix:
                return False
        return not self.profile.gpus and self.num_workers == 0

    def _draw_cores(self) -> list[list[int]]:
        """Return the cores of each rank, shared only with the same rank of the other arm.

        With different cores, a disturbance of one core would look like a difference between the
        arms. The first core is drawn at random, because another gate may run on this machine.
        """
        axes = self.cell.axes
        usable = usable_cores()
        # Ranks with a binding bind themselves, to a part of what they have.
        if self.profile.gpus or axes.binding != "none":
            return [usable] * axes.world_size
        wanted = axes.num_threads + self.num_workers
        if axes.strategy != "single":
            wanted += 1  # for the threads of gloo
        share = min(len(usable) // axes.world_size, wanted)
        if not share:
            return [usable] * axes.world_size
        start = random.randrange(len(usable))
        rotated = usable[start:] + usable[:start]
        return [rotated[rank * share :][:share] for rank in range(axes.world_size)]

    def _rank_requests(self, key: str, cores: Sequence[Sequence[int]]) -> list[ForkRequest]:
        """Return a fork request for each rank of an arm.

        Its ranks never reach the end of training: they end when their connections are closed.
        """
        # All steps count as warm-up, so that no telemetry lengthens the turns.
        cell = self.other_cells.get(key, self.cell).with_any_code()
        endless = replace(cell, length=ENDLESS, evaluate=ENDLESS, warmup=STEPS)
        return rank_requests(
            Trial(cell=endless, seed=self.seed),
            self.trees[key],
            TrialFolder(self.folder / key),
            self.base,
            self.profile,
            module="harness.gate.turn_worker",
            arguments=[str(self.socket_path), key],
            variables=self.variables,
            cores=cores,
        )

    def _accept_all(
        self,
        arms: Mapping[str, TrainingArm],
        processes: Mapping[ArmRank, Process],
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
            if self.server is not None and self.server.has_ended:
                raise self.server.error()
            # A rank that has ended may have connected before, and sent the reason.
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
    """Add the connection of a rank to its arm; raises HarnessError for another protocol.

    The rank is identified by the process id that the kernel reports for the connection, by `names`:
    the code of one arm could otherwise answer for the other arm. Connections of other processes,
    and a second one of a rank, are closed. The connection is closed with `stack`. In a container, a
    rank is another process of the same process group than the one in `names`.
    """
    stack.enter_context(connection)
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process_id, _, _ = struct.unpack("3i", credentials)
    name = names.get(process_id) or names.get(_process_group(process_id))
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


def _process_group(process_id: int) -> int:
    """Return the group of a process, 0 of one that has ended."""
    try:
        return os.getpgid(process_id)
    except ProcessLookupError:
        return 0


def check_connected(ended: Sequence[ArmRank], arms: Mapping[str, TrainingArm]) -> None:
    """Raise HarnessError if one of the ranks that have ended never connected.

    The next message of a rank that has connected is the reason why it ended.
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
