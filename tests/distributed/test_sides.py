"""Real ranks of two sides, as the forkserver starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.core.worktree import Tree
from harness.gate import paired, pairs
from harness.gate.paired import Budget, measure
from harness.gate.pairs import PairStarter, pair_starter
from harness.sweep import cluster
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
from tests.support.repository import Repository
from tests.support.running import line_sweep, wait_until

pytestmark = pytest.mark.distributed

SLEEPS_AND_LIES = """
import sys

rank = sys.modules["__main__"]


def lying(honest_send):
    def send(self, **message):
        if "seconds" in message:
            time.sleep(0.05)
            message["seconds"] = [1e-6 for _ in message["seconds"]]
        honest_send(self, **message)

    return send


if hasattr(rank, "TurnSocket"):  # this file is also imported to plan the sweep
    rank.TurnSocket.send = lying(rank.TurnSocket.send)
"""
# Half of its work is done by a thread, which a step waits for only if it has not been able to work
# ahead. It would work ahead for as long as it is the other side's turn.
WORKS_IN_THE_IDLE_TURN = """
import queue
import threading

honest_loss = Slowed.loss
ready = queue.Queue(maxsize=1000)


def work_ahead():
    while True:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        ready.put(None)


def loss(self, model, batch):
    if not threading.active_count() > 1:
        threading.Thread(target=work_ahead, daemon=True).start()
    ready.get()
    return honest_loss(self, model, batch)


Slowed.loss = loss
"""


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arms start to count while they still become a little faster."""
    monkeypatch.setattr(paired, "WARM_UP_SECONDS", 0.1)


@contextmanager
def line_starter(folder: Path, **axes: object) -> Iterator[PairStarter]:
    """Pairs of the test workload from one and the same tree."""
    sweep = load_sweep(line_sweep(folder, {"line": {"axes": axes}}))
    tree = Tree(name="here", top=folder, path=folder)
    trees = {"a": tree, "b": tree}
    with pair_starter(sweep, sweep.cells[0], trees, Profile(device="cpu")) as starter:
        yield starter


def stand_still(process_id: int) -> bool:
    """Whether a process and all that it has started are stopped."""
    process = psutil.Process(process_id)
    family = (process, *process.children(recursive=True))
    return {member.status() for member in family} == {psutil.STATUS_STOPPED}


@pytest.mark.parametrize(
    ("device", "gpus", "shared"), [("cpu", 1, False), ("auto", 0, False), ("auto", 1, True)]
)
def test_ranks_get_cores_of_their_own_unless_they_use_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Any, gpus: int, *, shared: bool
) -> None:
    monkeypatch.setattr(cluster, "count_gpus", lambda variables: gpus)
    monkeypatch.setattr(pairs, "usable_cores", lambda: list(range(8)))
    axes = {"strategy": "ddp", "world_size": 2}
    sweep = load_sweep(line_sweep(tmp_path, {"line": {"axes": axes}}))
    starter = PairStarter(sweep, sweep.cells[0], {}, Profile(device=device), tmp_path)
    first, second = starter._draw_cores()
    assert (first == second == list(range(8))) is shared
    assert (not {*first} & {*second}) is not shared


@pytest.mark.nightly
def test_a_side_stands_still_with_its_loader_workers_while_it_is_not_its_turn(
    tmp_path: Path,
) -> None:
    with line_starter(tmp_path, num_workers=1) as starter, starter.pair("ab") as arms:
        arms["a"].train(3)
        (rank,) = arms["a"].process_groups
        # A signal takes effect when the process is scheduled next.
        wait_until(lambda: stand_still(rank), seconds=20)
        turn = arms["a"].train(20)  # into the next epoch, which starts another worker
        assert len(turn.seconds) == 20
        wait_until(lambda: stand_still(rank), seconds=20)


PAIR = """
import sys
from pathlib import Path
from typing import Any
from tests.distributed.test_sides import line_starter

with line_starter(Path(sys.argv[1]), num_workers=1) as starter, starter.pair("ab") as arms:
    for arm in arms.values():
        arm.train(3)  # a side may stand still from before its first worker has started
    groups = [str(group) for arm in arms.values() for group in arm.process_groups]
    print(*groups, flush=True)
    sys.stdin.read()
"""


@pytest.mark.nightly
def test_nothing_that_stands_still_outlives_a_gate_that_is_killed(tmp_path: Path) -> None:
    gate = subprocess.Popen(
        [sys.executable, "-c", PAIR, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with gate:
        assert gate.stdout is not None
        groups = [int(group) for group in gate.stdout.readline().split()]
        members = [process for process in psutil.process_iter() if group_of(process) in groups]
        assert len(members) == 4  # two ranks, each with a loader worker
        gate.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(process.is_running() for process in members), seconds=20)


def group_of(process: psutil.Process) -> int:
    """The number of a process's group, 0 for one that has ended."""
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return 0


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", [SLEEPS_AND_LIES, WORKS_IN_THE_IDLE_TURN])
def test_work_can_be_hidden_neither_by_lies_nor_in_what_is_not_counted(
    mutant: str, tmp_path: Path
) -> None:
    before, now = Repository(tmp_path / "before"), Repository(tmp_path / "now")
    now.write(0.0, more=mutant)
    trees = {
        "a": Tree(name="main", top=before.path, path=before.path),
        "b": Tree(name="the working tree", top=before.path, path=now.path),
    }
    sweep = load_sweep(before.sweep)
    budget = Budget(min_effect=0.2, seconds=20.0, alpha=0.5)
    measured = measure(sweep, sweep.cells[0], trees, Profile(device="cpu"), budget)
    assert measured.verdict == "slower"
