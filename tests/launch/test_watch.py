"""Trials that are to be ended although nobody has said so, and ranks that others wait for."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import StorageError
from harness.core.paths import TrialFolder, write_atomically
from harness.launch import watch
from harness.launch.watch import Watchdog, name_hang
from harness.measure.stacks import last_stack
from harness.records.assignment import Heartbeat, read_heartbeats
from harness.records.files import write_rank_result
from harness.records.record import Failure, RankResult
from harness.training import progress
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from tests.support.running import wait_until

WAITING = "torch.autograd.graph._engine_run_backward:825"
# No process has this number.
BEAT = Heartbeat(
    rank=0, host="n1", pid=2**22, created=1.0, step=5, in_step=False, position=WAITING, at=100.0
)
HANGING = replace(BEAT, in_step=True)
STACK = '  File "/home/me/train.py", line 99, in loss\n  File "/usr/lib/python3.11/re.py", line 5, in match'


class Watched:
    """A trial of two ranks, with a clock of its own."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = TrialFolder(path)
        self.now = 1000.0
        monkeypatch.setattr(watch, "monotonic", lambda: self.now)
        self.watchdog = Watchdog(self.folder, 2, 1e5)

    def end_rank(self, rank: int, failure: Failure | None = None) -> None:
        """Leave the result of a rank."""
        result = RankResult(rank=rank, host="n1", entered_at=1.0, failure=failure)
        write_rank_result(self.folder.result_path(rank), result)

    def beat(self, rank: int, *, in_step: bool = False) -> None:
        """Leave a heartbeat of a rank."""
        beat = replace(BEAT, rank=rank, host=f"n{rank + 1}", at=self.now, in_step=in_step)
        write_atomically(self.folder.heartbeat_path(rank), json.dumps(asdict(beat)), durable=False)

    def progress(self, step: int, slowest: float) -> None:
        """Report that training has come to a step."""
        content = {"phase": "train", "step": step, "steps": 100, "at": self.now, "slowest": slowest}
        write_atomically(self.folder.progress_path, json.dumps(content), durable=False)

    def wait(self, seconds: float, *beating: int, in_step: bool = False) -> Failure | None:
        """Look every few seconds while these ranks have heartbeats; returns the first failure."""
        end = self.now + seconds
        while self.now < end:
            self.now += 2 * watch.LOOK_SECONDS
            for rank in beating:
                self.beat(rank, in_step=in_step)
            failure = self.watchdog.look()
            if failure is not None:
                return failure
        return None


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(watch, "STACK_SECONDS", 0.0)
    return Watched(tmp_path / "trial", monkeypatch)


def test_a_launcher_hangs_that_has_not_ended_a_while_after_all_ranks(watched: Watched) -> None:
    watched.end_rank(0)
    watched.wait(2 * watch.LAUNCHER_SECONDS, 1)
    assert not watched.watchdog.launcher_hangs, "rank 1 still works"
    watched.progress(100, slowest=0.1)
    watched.end_rank(1)
    watched.wait(watch.LAUNCHER_SECONDS - 4)
    assert not watched.watchdog.launcher_hangs
    watched.wait(10)
    assert watched.watchdog.launcher_hangs


class TestARankThatIsSilent:
    def test_is_named(self, watched: Watched) -> None:
        write_atomically(watched.folder.rank_log(1), "begun\n")
        assert watched.wait(1000, 0, 1) is None, "no step in a long time is no silence"
        failure = watched.wait(watch.SILENCE_SECONDS + 100, 0)
        assert failure is not None
        assert (failure.kind, failure.log) == ("Unresponsive", "logs/rank1.log")
        assert "rank 1 has given no sign of life for 30" in failure.message

    def test_is_named_if_it_never_gave_one(self, watched: Watched) -> None:
        """It is given as long as the others need to start, and as long again."""
        assert watched.wait(watch.SILENCE_SECONDS - 10) is None
        assert watched.wait(watch.SILENCE_SECONDS - 10, 0) is None
        failure = watched.wait(watch.SILENCE_SECONDS, 0)
        assert failure is not None
        assert (failure.kind, failure.rank) == ("Unresponsive", 1)
        assert failure.log == "logs/launch.log", "a rank that has not started has none"
        assert failure.message.startswith("rank 1 has not started; ")

    def test_is_not_assumed_of_one_that_has_ended_or_while_this_process_was_stopped(
        self, watched: Watched
    ) -> None:
        watched.wait(100, 0, 1)
        watched.now += 5000
        assert watched.wait(watch.SILENCE_SECONDS, 0, 1) is None
        watched.end_rank(1)
        assert watched.wait(1000, 0) is None


class TestATrialThatStandsStill:
    @pytest.mark.parametrize(("slowest", "limit"), [(20.0, 200.0), (0.1, 60.0)])
    def test_is_ended_after_ten_times_its_longest_segment_and_a_minute_at_least(
        self, watched: Watched, slowest: float, limit: float
    ) -> None:
        watched.progress(8, slowest=slowest)
        assert watched.wait(limit, 0, 1, in_step=True) is None
        failure = watched.wait(30, 0, 1, in_step=True)
        assert failure is not None
        assert failure.kind == "Hang"
        assert failure.message.startswith("rank 0 on n1 is in ")
        assert f"s, and {slowest} s at most before" in failure.message

    def test_is_left_alone_while_a_rank_does_something_else(self, watched: Watched) -> None:
        """It compiles, evaluates or saves."""
        watched.progress(8, slowest=0.1)
        for _ in range(50):
            watched.beat(1)
            assert watched.wait(2 * watch.LOOK_SECONDS, 0, in_step=True) is None

    def test_is_ended_soon_if_a_rank_was_stopped_between_two_steps(self, watched: Watched) -> None:
        """Its last heartbeat is from the evaluation before, and the others train."""
        watched.progress(8, slowest=0.1)
        watched.beat(1)
        assert watched.wait(watch.MIN_STANDSTILL_SECONDS, 0, in_step=True) is None
        failure = watched.wait(2 * watch.MIN_STANDSTILL_SECONDS, 0, in_step=True)
        assert failure is not None
        assert failure.kind == "Unresponsive"
        assert failure.rank == 1

    def test_ends_at_its_time_out_at_the_latest(self, watched: Watched) -> None:
        watched.watchdog = Watchdog(watched.folder, 2, 500.0)
        watched.progress(8, slowest=0.1)
        assert watched.wait(500, 0, 1) is None
        failure = watched.wait(30, 0, 1)
        assert failure is not None
        assert failure.kind == "Timeout"
        assert failure.message.endswith(" after step 5; took longer than its time-out")


@contextmanager
def beating(trial: TrialFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainingState]:
    """Have rank 3 of four write heartbeats all the time; give the state of its training."""
    monkeypatch.setattr(progress, "heartbeat_seconds", lambda world_size: 0.01)
    state = TrainingState(step=12, in_step=True)
    with progress.heartbeats(trial, Ranks(rank=3, local_rank=0, world_size=4), state):
        yield state


def test_a_rank_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends with the block, and leaves nothing half-written."""
    trial = TrialFolder(tmp_path)
    folder = trial.heartbeat_folder
    with beating(trial, monkeypatch):
        wait_until(lambda: any("tests." in beat.position for beat in read_heartbeats(folder)), 10)
    (beat,) = read_heartbeats(folder)
    assert (beat.rank, beat.step, beat.in_step) == (3, 12, True)
    assert [entry.name for entry in folder.iterdir()] == ["rank3.json"]


def test_a_rank_that_makes_no_step_for_long_writes_its_stacks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others look for them in its log, also from another node, whatever a script makes of sys.stderr."""
    begun: list[float] = []  # after how many seconds: once for each step
    start = faulthandler.dump_traceback_later

    def begin(timeout: float, **options: Any) -> None:
        start(timeout, **options)
        begun.append(timeout)

    monkeypatch.setattr(faulthandler, "dump_traceback_later", begin)
    monkeypatch.setattr(sys, "stderr", StringIO())
    with beating(TrialFolder(tmp_path), monkeypatch) as state:
        wait_until(lambda: len(begun) == 1, 10)
        state.step = 13
        wait_until(lambda: len(begun) == 2, 10)
    assert begun == [progress.STACK_SECONDS] * 2


def test_a_process_that_a_rank_forks_can_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = TrialFolder(tmp_path)
    with beating(trial, monkeypatch):
        wait_until(lambda: bool(read_heartbeats(trial.heartbeat_folder)), 10)
        pid = os.fork()
        if not pid:
            faulthandler.cancel_dump_traceback_later()  # as the end of Python does
            os._exit(0)
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            wait_until(lambda: os.waitid(os.P_PID, pid, look), 10)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0) == (pid, 0), "it hung, and was killed"


def test_a_disk_that_refuses_reports_ends_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its progress nor its heartbeats, which go on once the disk takes them."""
    refusals = iter(range(2))

    def refuse_twice(path: Path, content: str, *, durable: bool) -> None:
        if next(refusals, None) is not None:
            raise StorageError(f"{path}: No space left on device")
        write_atomically(path, content, durable=durable)

    monkeypatch.setattr(progress, "write_atomically", refuse_twice)
    trial = TrialFolder(tmp_path)
    progress.ProgressFile(trial, 0, {"steps": 20}).report("train", 1)
    assert not trial.progress_path.exists()
    with beating(trial, monkeypatch):
        wait_until(lambda: bool(list(read_heartbeats(trial.heartbeat_folder))), 10)
    assert next(refusals, None) is None


# What ranks have left, put into the message that says why their trial makes no progress


def sentence(rank1: dict[str, Any] | None, stack: str = "") -> str:
    """Return the sentence on three ranks, of which rank 1 differs from the others."""
    beats = [replace(HANGING, rank=rank) for rank in (0, 2)]
    if rank1 is not None:
        beats.insert(1, replace(HANGING, rank=1, **rank1))
    return name_hang(beats, {0: "", 1: stack, 2: ""}, 3).message


@pytest.mark.parametrize(
    ("rank1", "end"),
    [
        (None, "rank 1 has not started"),
        ({"at": 60.0}, "no sign of life for 40 s longer than the others"),
        ({"step": 4}, "after step 4, and others are after step 5"),
        ({"position": "line.loss:31"}, "step 5, and the others wait for it"),
    ],
)
def test_the_rank_that_differs_is_named(rank1: dict[str, Any] | None, end: str) -> None:
    first, *others = sentence(rank1).split("; ")
    assert first.startswith("rank 1 ")
    assert first.endswith(end)
    assert others == ([] if rank1 is None else [f"rank 0 on n1 is in {WAITING} after step 5"])


def test_a_rank_is_named_with_the_users_own_line() -> None:
    line = {"position": "train.loss:98"}
    assert sentence(line, stack=STACK).startswith("rank 1 on n1 is in train.py:99 after step 5, ")


def test_ranks_that_all_wait_are_named_with_their_lines() -> None:
    beats = [replace(HANGING, rank=rank) for rank in (0, 1)]
    hang = name_hang(beats, {0: STACK, 1: STACK}, 2)
    assert hang.rank is None
    assert hang.message == (
        "rank 0 on n1 is in train.py:99 after step 5; rank 1 on n1 is in train.py:99 after step 5"
    )
    assert name_hang([], {}, 2).message == "rank 0-1 has not started"


def test_the_main_thread_is_the_last_that_a_process_has_written(tmp_path: Path) -> None:
    written = (
        'Thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 3 in wait\n'
        'Current thread 0x2 (most recent call first):\n  File "/home/me/train.py", line 12 in loss\n'
        '  File "/home/me/train.py", line 40 in main\n'
    )
    log = tmp_path / "rank0.log"
    log.write_text(written, encoding="utf-8")
    assert last_stack(log) == (
        '  File "/home/me/train.py", line 40 in main\n  File "/home/me/train.py", line 12 in loss'
    )
