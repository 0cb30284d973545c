"""Two sides that train in turn, here as threads of one process instead of ranks of two trees."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.core.progress import progress_shown_by
from harness.gate import paired
from harness.gate.arms import TrainingArm
from harness.gate.paired import Budget
from harness.gate.pairs import ENDLESS, connect_rank, refuse_different_units
from harness.gate.turn_worker import TurnSocket, train_in_turns
from harness.records.assignment import Assignment, write_assignment
from harness.sweep.cell import Cell, Trial
from harness.sweep.sweep import load_sweep
from tests.gate.test_paired import STEP, Machine, Simulated
from tests.support.repository import Repository
from tests.support.running import line_sweep
from tests.support.training import SINGLE_RANK


@contextmanager
def line_sides(folder: Path, **options: object) -> Iterator[tuple[Cell, dict[str, TrainingArm]]]:
    """Sides `a` and `b` of the test workload; `options` are those of b."""
    cells = [
        load_sweep(line_sweep(folder, {"line": {"options": kinds}})).cells[0]
        for kinds in ({}, options)
    ]
    with threads(folder, cells, [folder, folder]) as arms:
        yield cells[0], arms


def connect(arm: TrainingArm, connection: socket.socket, stack: ExitStack) -> None:
    """Give an arm the connection of its only rank."""
    arm.sockets[0] = connection
    arm.lines[0] = stack.enter_context(connection.makefile("r", encoding="utf-8"))


@contextmanager
def threads(
    folder: Path, cells: Sequence[Cell], bases: Sequence[Path]
) -> Iterator[dict[str, TrainingArm]]:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(folder / "turns"))
        listening.listen()
        arms = {}
        for key, cell, base in zip("ab", cells, bases, strict=True):
            trial_folder = TrialFolder(folder / key)
            endless = replace(cell.with_any_code(), length=ENDLESS, evaluate=ENDLESS)
            trial = Trial(cell=endless, seed=0)
            assignment = Assignment(trial=trial, base_folder=str(base), device="cpu")
            write_assignment(trial_folder.assignment_path, assignment)
            arguments = trial_folder, str(folder / "turns")
            turn_worker = threading.Thread(target=_train, args=arguments)
            turn_worker.start()
            stack.callback(turn_worker.join)
            connection = stack.enter_context(listening.accept()[0])
            arms[key] = TrainingArm(key, trial_folder.launch_log)
            connect(arms[key], connection, stack)
            stack.callback(connection.shutdown, socket.SHUT_RDWR)
            arms[key].wait_until_ready()
        yield arms


def _train(trial_folder: TrialFolder, path: str) -> None:
    with closing(TurnSocket(path)) as turns, suppress(EOFError, BrokenPipeError):
        try:
            train_in_turns(trial_folder, SINGLE_RANK, turns)
        except ValueError as error:
            turns.send(failure=f"rank 0: {error}")


def test_a_turn_is_so_many_steps_wherever_epochs_end(tmp_path: Path) -> None:
    with line_sides(tmp_path) as (_, arms):
        first, second, third = (arms["a"].train(steps) for steps in (5, 1, 21))  # an epoch has 8
        assert [len(turn.seconds) for turn in (first, second, third)] == [5, 1, 21]
        assert min(third.seconds) > 0
        again = [arms["b"].train(steps).losses for steps in (5, 1, 21)]
        assert again == [turn.losses for turn in (first, second, third)]


def test_sides_warm_up_by_the_same_steps_and_blocks_are_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with line_sides(tmp_path, step_seconds=0.004) as (_, arms):
        monkeypatch.setattr(paired, "WINDOW_SECONDS", 0.2)
        counted = paired.warm_up(arms)
        turns = [arms[key].train(1 + counted) for key in "ab"]
        assert turns[0].losses == turns[1].losses
        assert counted > paired.MIN_WINDOW_STEPS
        # The machine may be faster by now than it was while they warmed up.
        assert sum(turns[1].seconds[1:]) > paired.WINDOW_SECONDS / 4


def test_a_look_is_taken_after_every_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "WARM_UP_SECONDS", 0.02)
    heard: list[str] = []
    budget = Budget(min_effect=0.2, seconds=0.5, alpha=0.05)
    tree = Repository(tmp_path / "tree")
    (cell,) = load_sweep(tree.sweep).cells
    with (
        threads(tmp_path, [cell, cell], [tree.path, tree.path]) as arms,
        progress_shown_by(heard.append),
    ):
        result = paired.run_paired(
            cell, lambda keys: nullcontext(arms), budget, np.random.default_rng(0)
        )
    assert len(heard) == result.pairs >= 1


@pytest.mark.parametrize(
    ("options", "batch_size", "same"),
    [({}, 64, False), ({"lr": 0.003}, 64, True), ({"lr": 0.003}, 16, False)],
)
def test_each_side_takes_from_its_own_code_what_the_sweep_does_not_set(
    tmp_path: Path, options: dict[str, float], batch_size: int, *, same: bool
) -> None:
    settings = {"dropout": 0.0, **options}
    entry = {"uses": "own.py:Slowed", "data": {"source": "digits"}, "options": settings}
    before = Repository(tmp_path / "before", workloads={"own": entry})
    now = Repository(tmp_path / "now", workloads={"own": entry})
    before.write_defaults(lr=0.003, batch_size=64)
    now.write_defaults(lr=0.001, batch_size=batch_size)
    (cell,) = load_sweep(now.sweep).cells
    with threads(tmp_path, [cell, cell], [before.path, now.path]) as arms:
        losses = [arms[key].train(4).losses for key in "ab"]
        assert [arms[key].batch_size for key in "ab"] == [64, batch_size]
        sample = paired.sample_pair(arms, 1, 2, 0.1)
    assert (losses[0] == losses[1]) == same
    rate_a, rate_b = 1 / sample.a_fast_seconds, 1 / sample.b_fast_seconds
    assert sample.log_ratio == pytest.approx(np.log(rate_b / rate_a))


def test_pairs_compare_seconds_a_sample_where_batch_sizes_differ() -> None:
    machine = Machine(rng=np.random.default_rng(0), noise=0.0)
    arms: dict[str, TrainingArm] = {}
    for key, batch_size, step_seconds in (("a", 64, 0.064), ("b", 16, 0.032)):
        arms[key] = Simulated(machine, key, step_seconds / STEP)
        arms[key].batch_size = batch_size
    sample = paired.sample_pair(arms, 1, 2, 0.1)
    assert (sample.a_fast_seconds, sample.b_fast_seconds) == pytest.approx((0.001, 0.002))
    assert sample.log_ratio == pytest.approx(np.log(1 / 2))
    assert sample.whole_log_ratio == pytest.approx(np.log(1 / 2))


def test_other_losses_are_seen(tmp_path: Path) -> None:
    budget = Budget(min_effect=0.9, seconds=0.05, alpha=0.05)
    with line_sides(tmp_path, momentum=0.5) as (cell, arms):
        result = paired.run_paired(
            cell, lambda keys: nullcontext(arms), budget, np.random.default_rng(0)
        )
    assert result.same_bits is False


def test_a_rank_that_fails_in_its_turn_is_heard(tmp_path: Path) -> None:
    with line_sides(tmp_path, raise_at=3) as (_, arms):
        arms["b"].train(2)
        with pytest.raises(HarnessError, match="b: rank 0: the dog ate batch 17; log: "):
            arms["b"].train(2)


def rank_that_sent(stack: ExitStack, **message: object) -> socket.socket:
    """Return the connection of a rank that has sent a message and then ended."""
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    with theirs:
        theirs.sendall((json.dumps(message) + "\n").encode())
    return ours


def test_a_rank_that_connected_before_it_ended_is_reported_with_its_own_message(
    tmp_path: Path,
) -> None:
    arm = TrainingArm("HEAD", tmp_path / "log")
    with ExitStack() as stack:
        said = "rank 0 on n1: ValueError: the dog\x1b ate\nit"
        connect(arm, rank_that_sent(stack, failure=said), stack)
        with pytest.raises(HarnessError, match="HEAD: rank 0 on n1: ValueError: the dog ate it; l"):
            arm.receive(0, 5)


def test_an_arm_of_another_protocol_is_refused(tmp_path: Path) -> None:
    arm = TrainingArm("v1.0", tmp_path / "log")
    with ExitStack() as stack:
        rank = rank_that_sent(stack, protocol=1, side="a", rank=0)
        with pytest.raises(HarnessError, match=r"^v1\.0: its turn worker speaks protocol 1; "):
            connect_rank(rank, {"a": arm}, stack)


def test_arms_are_compared_in_one_unit(tmp_path: Path) -> None:
    """Samples are counted where a worker says nothing else, as one of an older revision."""
    arms = []
    with ExitStack() as stack:
        for name, unit in (("main", {"unit": "steps/s"}), ("HEAD", {})):
            arm = TrainingArm(name, tmp_path / "log")
            connect(arm, rank_that_sent(stack, ready=True, batch_size=1, **unit), stack)
            arm.wait_until_ready()
            arms.append(arm)
    refuse_different_units([arms[0], arms[0]])
    message = "^throughput is in steps/s in main and samples/s in HEAD, which can't be compared$"
    with pytest.raises(HarnessError, match=message):
        refuse_different_units(arms)


STOPS_ITSELF = """
import json, os, signal, socket, sys
turns = socket.socket(fileno=int(sys.argv[1]))
turns.recv(1000)
os.kill(os.getpid(), signal.SIGSTOP)
turns.sendall(json.dumps({"seconds": [1e-9, 1e-9], "losses": "same"}).encode() + b"\\n")
turns.recv(1000)
"""


def test_a_process_that_missed_its_continuation_is_continued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that was forked between the signals that stop and continue its group."""
    monkeypatch.setattr("harness.gate.arms.WAKE_SECONDS", 0.05)
    monkeypatch.setattr("harness.gate.arms.TURN_TIMEOUT", 60.0)
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", STOPS_ITSELF, str(theirs.fileno())]
    with ExitStack() as stack:
        stack.enter_context(ours)
        process = subprocess.Popen(command, start_new_session=True, pass_fds=[theirs.fileno()])
        theirs.close()
        try:
            arm = TrainingArm("main", tmp_path / "log")
            connect(arm, ours, stack)
            arm.process_groups = [process.pid]
            assert arm.train(2).losses == "same"
        finally:
            process.kill()
            process.wait()
