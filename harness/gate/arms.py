"""Starting pairs of ranks of two trees, and giving them their turns: only one of the two trains at a time."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, one_line
from harness.core.paths import TrialFolder, write_atomically
from harness.core.ports import free_port
from harness.core.processes import end_process_group, start_session
from harness.gate.worktree import Tree
from harness.launch.torchrun import Torchrun
from harness.spec.cell import Assignment, Cell, Length, Trial
from harness.spec.cluster import Profile

PROTOCOL = 1  # of `player.PROTOCOL`
STEPS = 10_000_000  # which nobody waits for
ENDLESS = Length(steps=STEPS)
FORKSERVER = Path(__file__).parent / "forkserver.py"
START = 300.0  # seconds that all ranks may take until they can train
TURN = 600.0  # seconds that a turn may take


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a side did: seconds of each step at the slowest rank, and digests of all ranks' losses."""

    seconds: Sequence[float]
    losses: str


class Arm:
    """The ranks of one tree."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self.lines: dict[int, Any] = {}
        self.sockets: dict[int, socket.socket] = {}

    def join(self, connection: socket.socket, lines: Any, rank: int) -> None:
        self.sockets[rank], self.lines[rank] = connection, lines

    def train(self, steps: int) -> Turn:
        """Raises HarnessError with a rank's own words if it fails."""
        for connection in self.sockets.values():
            with suppress(BrokenPipeError):  # what it said last tells why
                connection.sendall((json.dumps({"steps": steps}) + "\n").encode())
        said = [self.hear(rank, TURN) for rank in sorted(self.sockets)]
        seconds = [max(step) for step in zip(*(one["seconds"] for one in said), strict=True)]
        return Turn(seconds=seconds, losses=" ".join(one["losses"] for one in said))

    def hear(self, rank: int, patience: float) -> dict[str, Any]:
        """A rank's next word; raises HarnessError."""
        connection = self.sockets[rank]
        connection.settimeout(patience)
        try:
            line = self.lines[rank].readline()
        except TimeoutError:
            raise HarnessError(
                f"{self.name}: rank {rank} said nothing for {patience:g} s; log: {self.log}"
            ) from None
        except OSError:
            line = ""
        if not line:
            raise HarnessError(f"{self.name}: rank {rank} ended; log: {self.log}")
        words: dict[str, Any] = json.loads(line)
        if "failure" in words:
            raise HarnessError(f"{self.name}: {words['failure']}; log: {self.log}")
        return words


class PairStarter:
    """Starts pairs of sides, all from one forkserver; its block ends whatever is left of them."""

    def __init__(
        self, cell: Cell, seed: int, trees: Mapping[str, Tree], base: Path, profile: Profile
    ) -> None:
        self.cell, self.seed, self.trees, self.base, self.profile = cell, seed, trees, base, profile

    def __enter__(self) -> PairStarter:
        """Raises HarnessError if the forkserver does not start."""
        with ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="harness-gate-"))
            stack.push(self._clear)
            self.listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            self.listening.bind(str(self.folder / "turns"))
            self.listening.listen(64)
            log = self.folder / "forkserver.log"
            self.process = start_session(
                [sys.executable, "-P", str(FORKSERVER), str(self.folder / "turns")],
                Torchrun(environment=self.profile.environment).variables(
                    self.cell.axes.num_threads
                ),
                log,
            )
            stack.callback(end_process_group, self.process)
            while not select.select([self.listening], [], [], 0.2)[0]:
                if self.process.poll() is not None:
                    raise HarnessError(
                        f"the forkserver did not start: {_last_line(log)}; log: {log}"
                    )
            self.line = stack.enter_context(self.listening.accept()[0])
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def _clear(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave nothing but logs that a failure names."""
        if kind is None or not issubclass(kind, HarnessError):
            shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, Arm]]:
        """Fresh ranks for these trees, started in this order and ready to train, for as long as the block lasts; raises
        HarnessError."""
        with ExitStack() as stack:
            found = {
                key: Arm(self.trees[key].name, TrialFolder(self.folder / key).launch_log)
                for key in keys
            }
            cores = self._cores()
            asked = [rank for key in found for rank in self._ranks(key, cores)]
            self.line.sendall((json.dumps(asked) + "\n").encode())
            self._gather(found, stack)
            for side in found.values():
                for rank in side.sockets:
                    side.hear(rank, START)
            yield found

    def _cores(self) -> list[list[int]]:
        """The cores of each rank, for both sides: what disturbs one core leaves another alone, and would be taken for
        a difference of the sides. Chance says which ones, as another gate may run here."""
        axes, usable = self.cell.axes, sorted(os.sched_getaffinity(0))
        wanted = (
            axes.num_threads + axes.num_workers + (axes.strategy != "single")
        )  # one for what gloo does meanwhile
        share = min(len(usable) // axes.world_size, wanted)
        if not share or self.profile.device != "cpu":
            return [usable] * axes.world_size
        start = random.randrange(len(usable))
        turned = usable[start:] + usable[:start]
        return [turned[rank * share :][:share] for rank in range(axes.world_size)]

    def _ranks(self, key: str, cores: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """What the forkserver has to know of each rank of a tree."""
        tree, place, size = (
            self.trees[key],
            TrialFolder(self.folder / key),
            self.cell.axes.world_size,
        )
        # All of it is warm-up, so that no telemetry lengthens the turns.
        endless = replace(self.cell, length=ENDLESS, evaluate=ENDLESS, warmup=STEPS)
        trial = Trial(cell=endless, seed=self.seed)
        told = Assignment(
            trial=trial, base_folder=str(tree.counterpart(self.base)), device=self.profile.device
        )
        write_atomically(place.assignment_path, json.dumps(asdict(told)) + "\n", durable=False)
        place.log_folder.mkdir(exist_ok=True)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        common = {
            "side": key,
            "world_size": size,
            "module": "harness.gate.turn_worker",
            "arguments": [str(place.path), str(self.folder / "turns"), key],
            "folder": str(tree.path),
            "log": str(place.launch_log),
            "variables": {"PYTHONPATH": tree.python_path, **meeting},
        }
        return [{"rank": rank, "cores": cores[rank], **common} for rank in range(size)]

    def _gather(self, found: Mapping[str, Arm], stack: ExitStack) -> None:
        """Wait until every rank has called."""
        deadline = time.monotonic() + START
        while any(len(side.sockets) < self.cell.axes.world_size for side in found.values()):
            if time.monotonic() > deadline:
                raise HarnessError(
                    f"its ranks did not start within {START:g} s; logs: {next(iter(found.values())).log}"
                )
            if self.process.poll() is not None:
                raise HarnessError("the forkserver of its ranks ended")
            if select.select([self.listening], [], [], 0.2)[0]:
                _join(stack.enter_context(self.listening.accept()[0]), found, stack)


def _join(connection: socket.socket, found: Mapping[str, Arm], stack: ExitStack) -> None:
    """A rank that calls; raises HarnessError if it is the forkserver, which has lost one."""
    lines = stack.enter_context(connection.makefile("r", encoding="utf-8"))
    hello = json.loads(lines.readline())
    side = found[hello["side"]]
    if hello.get("lost") in side.sockets:
        return  # it had called, and what it said last tells why it ended
    if "lost" in hello:
        raise HarnessError(
            f"{side.name}: rank {hello['lost']} did not start: {_last_line(side.log)}; log: {side.log}"
        )
    if hello["protocol"] != PROTOCOL:
        raise HarnessError(f"{side.name}: speaks protocol {hello['protocol']}; allowed: {PROTOCOL}")
    side.join(connection, lines, hello["rank"])


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    wrong = [line for line in lines if "Error" in line or "No module named" in line]
    return one_line((wrong or lines or ["no word"])[0])
