"""Starts pairs of arms, the ranks of two trees of files, which train in turn."""

from __future__ import annotations

import json
import math
import os
import random
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, HarnessError
from harness.core.files import last_log_line
from harness.core.paths import TrialFolder
from harness.core.ports import free_port
from harness.core.progress import report_progress
from harness.core.scratch import ScratchFolder, run_folder
from harness.core.worktree import Tree
from harness.gate.arms import PROTOCOL, START_TIMEOUT, TrainingArm
from harness.launch.forkserver import LIBRARIES, ForkedRanks, ForkRequest, ForkServer, shared_server
from harness.launch.hold import mark_variables
from harness.launch.launcher import RankProgram, rank_environment, rank_variables
from harness.records.assignment import Assignment, write_assignment
from harness.sweep.cell import Cell, Length, Trial
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

STEPS = 10_000_000  # more than any comparison takes
ENDLESS = Length(steps=STEPS)
POLL = 0.2  # seconds between two checks of ranks that start
STRIDE = 20  # steps between two comparisons of losses


@contextmanager
def pair_starter(
    sweep: Sweep,
    cell: Cell,
    trees: Mapping[str, Tree],
    profile: Profile,
) -> Iterator[PairStarter]:
    """Yield what starts pairs that train a sweep's cell in `trees`, with the sweep's first seed.

    Raises BadInput for a cell of a stack: its packages would be those of the harness.
    """
    if cell.axes.stack is not None:
        raise BadInput(
            f"{cell.label}: stack: found {cell.axes.stack}; allowed: cells without a stack"
            " (harness run and harness compare compare stacks)"
        )
    with run_folder("gate") as folder:
        yield PairStarter(sweep, cell, trees, profile, folder)


def arm_server(cell: Cell, profile: Profile) -> ForkServer:
    """Return the forkserver of a cell's arms; one that has to be started loads torch meanwhile."""
    # Drivers and libraries of GPUs may start threads when they are loaded.
    variables = arm_environment(cell, profile)
    return shared_server(variables, LIBRARIES, refuse_threads=not profile.gpus)


def arm_environment(cell: Cell, profile: Profile) -> dict[str, str]:
    """Return the environment that the ranks of both arms start with."""
    program = RankProgram.of(cell, TrialFolder(Path()), None)
    return rank_environment(os.environ, profile.environment, program)


@dataclass(frozen=True)
class PairStarter:
    """Starts pairs of arms, the ranks of both from one forkserver.

    All ranks are forked from one process, so neither arm has a better memory layout of its
    libraries. Everything random about a process differs from pair to pair.
    """

    sweep: Sweep  # whose folder the cell's paths are relative to
    cell: Cell
    trees: Mapping[str, Tree]  # by their arms' keys, `a` and `b`
    profile: Profile
    folder: Path  # of the arms' assignments and logs

    @contextmanager
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, TrainingArm]]:
        """Start arms of the trees with these keys, in this order; they are ready to train.

        Their ranks are killed when the context ends. Raises HarnessError if a rank fails.
        """
        with ExitStack() as stack:
            listening = stack.enter_context(_listening_socket())
            variables = arm_environment(self.cell, self.profile)
            arms: dict[str, TrainingArm] = {}
            requests: dict[tuple[str, int], ForkRequest] = {}
            cores = self._draw_cores()
            socket_path = listening.getsockname()
            for key in keys:
                folder = self._make_folder(key)
                arms[key] = TrainingArm(self.trees[key].name, folder.launch_log)
                of_arm = self._rank_requests(key, folder, variables, cores, socket_path)
                for rank, request in enumerate(of_arm):
                    requests[key, rank] = request
            forked = arm_server(self.cell, self.profile).fork(list(requests.values()))
            stack.callback(forked.end, grace=0.0)
            for (key, _), pid in zip(requests, forked.pids, strict=True):
                arms[key].process_groups.append(pid)
            _accept_all(listening, arms, list(requests), forked, stack)
            for arm in arms.values():
                arm.wait_until_ready()
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
        if self.profile.gpus:
            return [usable] * axes.world_size
        wanted = axes.num_threads + axes.num_workers
        if axes.strategy != "single":
            wanted += 1  # for the threads of gloo
        share = min(len(usable) // axes.world_size, wanted)
        if not share:
            return [usable] * axes.world_size
        offset = random.randrange(len(usable))
        rotated = usable[offset:] + usable[:offset]
        starts = range(0, axes.world_size * share, share)
        return [rotated[start : start + share] for start in starts]

    def _make_folder(self, key: str) -> TrialFolder:
        """Make an arm's folder with the assignment of its ranks, and return it.

        The ranks never reach the end of training: they end when their connections are closed.
        """
        folder = TrialFolder(self.folder / key)
        base_folder = self.trees[key].counterpart(self.sweep.base_folder)
        endless = replace(
            self.cell.with_any_code(),
            length=ENDLESS,
            evaluate=ENDLESS,
            warmup=STEPS,  # all steps, so that no telemetry lengthens the turns
        )
        assignment = Assignment(
            trial=Trial(cell=endless, seed=self.sweep.seeds[0]),
            base_folder=str(base_folder),
            device=self.profile.device,
        )
        write_assignment(folder.assignment_path, assignment)
        folder.log_folder.mkdir(exist_ok=True)
        return folder

    def _rank_requests(
        self,
        key: str,
        folder: TrialFolder,
        variables: Mapping[str, str],
        cores: Sequence[Sequence[int]],
        socket_path: str,
    ) -> list[ForkRequest]:
        """Return a fork request for each rank of an arm.

        The ranks import from their arm's tree, with which their PYTHONPATH begins.
        """
        tree = self.trees[key]
        common = {
            **variables,
            **mark_variables(folder.launch_log),
            "PYTHONPATH": tree.python_path,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        requests = []
        world_size = self.cell.axes.world_size
        for rank in range(world_size):
            request = ForkRequest(
                module="harness.gate.turn_worker",
                arguments=[str(folder.path), socket_path, key],
                variables={**common, **rank_variables(rank, world_size)},
                folder=str(tree.path),
                log=str(folder.launch_log),
                cores=cores[rank],
                packages=tree.own_packages,
            )
            requests.append(request)
        return requests


@contextmanager
def _listening_socket() -> Iterator[socket.socket]:
    """Yield a Unix socket that listens, at a path of its own."""
    # Not where TMPDIR says: the path of a socket has 107 bytes at most.
    with (
        ScratchFolder("socket", Path("/tmp")) as scratch,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        listening.bind(str(scratch.path / "turns"))
        listening.listen(64)
        yield listening


def _accept_all(
    listening: socket.socket,
    arms: Mapping[str, TrainingArm],
    names: Sequence[tuple[str, int]],
    forked: ForkedRanks,
    stack: ExitStack,
) -> None:
    """Wait until every rank has connected; the connections are closed with `stack`.

    `names` are the arm's key and the rank of each that was forked.
    Raises HarnessError if a rank ends before it connects or speaks another protocol, or if the ranks
    take longer than `START_TIMEOUT`.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        # Before the check for a connection: a rank that has ended may have connected before.
        exit_codes = forked.exit_codes()
        missing = []
        ended = []
        for (key, rank), exit_code in zip(names, exit_codes, strict=True):
            if rank in arms[key].sockets:
                continue
            missing.append((key, rank))
            if exit_code is not None:
                ended.append((key, rank))
        if not missing:
            return
        ready, _, _ = select.select([listening], [], [], POLL)
        if ready:
            connection, _ = listening.accept()
            connect_rank(connection, arms, stack)
        elif ended or time.monotonic() > deadline:
            key, rank = (ended or missing)[0]
            log = arms[key].log
            raise HarnessError(
                f"{arms[key].name}: rank {rank} did not start: {last_log_line(log)}; log: {log}"
            )


def connect_rank(
    connection: socket.socket,
    arms: Mapping[str, TrainingArm],
    stack: ExitStack,
) -> None:
    """Add the connection of a rank to its arm; raises HarnessError for another protocol."""
    stack.enter_context(connection)
    connection.settimeout(START_TIMEOUT)
    lines = connection.makefile("r", encoding="utf-8", errors="replace")
    stack.enter_context(lines)
    line = lines.readline()
    if not line:
        return  # it has ended
    hello = json.loads(line)
    arm = arms[hello["side"]]
    if hello["protocol"] != PROTOCOL:
        raise HarnessError(
            f"{arm.name}: its turn worker speaks protocol {hello['protocol']}; allowed: {PROTOCOL}"
        )
    arm.sockets[hello["rank"]] = connection
    arm.lines[hello["rank"]] = lines


def refuse_different_units(arms: Sequence[TrainingArm]) -> None:
    """Raise HarnessError where an arm's samples are counted and those of the other one are not."""
    units = {arm.unit for arm in arms}
    if len(units) > 1:
        found = " and ".join(f"{arm.unit} in {arm.name}" for arm in arms)
        raise HarnessError(f"throughput is in {found}, which can't be compared")


def compare_losses(
    sweep: Sweep,
    cell: Cell,
    trees: Mapping[str, Tree],
    profile: Profile,
    *,
    seconds: float,
    max_steps: int | None = None,
) -> tuple[bool, int]:
    """Train a cell in the trees `a` and `b` until their losses differ.

    Losses that are the same after `seconds` of training, or after `max_steps` where that is given,
    count as the same. Returns whether they are, and the steps that were trained. Raises HarnessError
    if a rank fails.
    """
    steps = 0
    spent = 0.0
    most_steps = max_steps or math.inf
    if max_steps is not None:
        seconds = math.inf
    with (
        pair_starter(sweep, cell, trees, profile) as starter,
        starter.pair(["a", "b"]) as arms,
    ):
        while steps < most_steps and spent < seconds:
            turn_a = arms["a"].train(STRIDE)
            turn_b = arms["b"].train(STRIDE)
            steps += STRIDE
            spent += turn_a.wall_seconds + turn_b.wall_seconds
            report_progress(f"{steps} steps")
            if turn_a.losses != turn_b.losses:
                return False, steps
    return True, steps
