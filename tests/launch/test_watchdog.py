"""Trials that are to be ended although nobody has said so, and ranks that others wait for."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness.core.errors import StorageError
from harness.core.paths import TrialFolder, write_atomically
from harness.launch import watchdog
from harness.launch.hang import MISSED_BEATS
from harness.launch.watchdog import Verdict, Watchdog
from harness.records.files import write_rank_result
from harness.records.record import Failure, RankResult
from harness.records.running import (
    Heartbeat,
    heartbeat_seconds,
    read_heartbeats,
)
from harness.training import progress
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from tests.support.running import wait_until

WAITING = "torch.autograd.graph._engine_run_backward:825"
# No process has this number.
BEAT = Heartbeat(
    rank=0, host="n1", pid=2**22, created=1.0, step=5, in_step=False, position=WAITING, at=100.0
)


class Watched:
    """A trial of two ranks, with a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.folder = TrialFolder(path)
        self.now = 1000.0
        self.watchdog = Watchdog(self.folder, 2, 1e5, clock=lambda: self.now)

    def end_rank(self, rank: int, failure: Failure | None = None) -> None:
        """Leave the result of a rank."""
        result = RankResult(rank=rank, host="n1", pid=7, entered_at=1.0, failure=failure)
        write_rank_result(self.folder.result_path(rank), result)

    def beat(self, rank: int, *, in_step: bool = False) -> None:
        """Leave a heartbeat of a rank."""
        beat = replace(BEAT, rank=rank, host=f"n{rank + 1}", at=self.now, in_step=in_step)
        write_atomically(self.folder.heartbeat_path(rank), json.dumps(asdict(beat)), durable=False)

    def progress(self, step: int, slowest: float) -> None:
        """Report that training has come to a step."""
        content = {"phase": "train", "step": step, "steps": 100, "at": self.now, "slowest": slowest}
        write_atomically(self.folder.progress_path, json.dumps(content), durable=False)

    def wait(self, seconds: float, *beating: int, in_step: bool = False) -> Verdict | None:
        """Look every few seconds while these ranks have heartbeats; returns the first verdict."""
        end = self.now + seconds
        while self.now < end:
            self.now += 2 * watchdog.LOOK_SECONDS
            for rank in beating:
                self.beat(rank, in_step=in_step)
            verdict = self.watchdog.look()
            if verdict is not None:
                return verdict
        return None


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "trial")


class TestALauncherThatHangs:
    def test_is_ended_a_while_after_a_rank_has_failed(self, watched: Watched) -> None:
        """The rank's own failure is kept: the verdict has none."""
        watched.end_rank(0, Failure(kind="ValueError", message="no", rank=0))
        assert watched.wait(watchdog.LAUNCHER_SECONDS - 4, 1) is None
        verdict = watched.wait(10, 1)
        reason = "a rank has failed, and the launcher has not ended rank 1"
        assert verdict == Verdict(reason=reason, failure=None)

    def test_is_ended_a_while_after_all_ranks(self, watched: Watched) -> None:
        watched.end_rank(0)
        assert watched.wait(2 * watchdog.LAUNCHER_SECONDS, 1) is None, "rank 1 still works"
        watched.end_rank(1)
        verdict = watched.wait(10)
        assert verdict == Verdict(reason="all ranks have ended, and the launcher has not")

    def test_is_not_assumed_while_an_interrupted_rank_saves(self, watched: Watched) -> None:
        watched.end_rank(0, Failure(kind="Interrupted", message="SIGUSR2", rank=0))
        assert watched.wait(5 * watchdog.LAUNCHER_SECONDS, 0, 1) is None


class TestARankThatIsSilent:
    def test_is_named(self, watched: Watched) -> None:
        assert watched.wait(1000, 0, 1) is None, "no step in a long time is no silence"
        verdict = watched.wait(watchdog.SILENCE_SECONDS + 100, 0)
        assert verdict is not None
        assert verdict.failure is not None
        assert verdict.failure.kind == "Unresponsive"
        assert "rank 1 has given no sign of life for 30" in verdict.failure.message
        assert verdict.failure.log == "logs/rank1.log"

    def test_is_named_if_it_never_gave_one(self, watched: Watched) -> None:
        verdict = watched.wait(watchdog.SILENCE_SECONDS + 100, 0)
        assert verdict is not None
        assert verdict.failure is not None
        assert (verdict.failure.kind, verdict.failure.rank) == ("Unresponsive", 1)
        assert verdict.failure.message.startswith("rank 1 has not started; ")

    def test_is_given_longer_while_nobody_has_started(self, watched: Watched) -> None:
        """A node may fetch a container first, and another one take longer for it."""
        assert watched.wait(watchdog.START_SECONDS - 10) is None
        assert watched.wait(watchdog.SILENCE_SECONDS - 10, 0) is None
        assert watched.wait(watchdog.SILENCE_SECONDS, 0) is not None

    def test_is_not_what_a_rank_left_that_was_killed_while_it_wrote(self, watched: Watched) -> None:
        watched.beat(0)
        watched.beat(1)
        (watched.folder.heartbeat_folder / ".rank0.json.x1").write_text(json.dumps(asdict(BEAT)))
        assert watched.wait(1000, 0, 1) is None

    def test_is_not_assumed_between_two_heartbeats(self) -> None:
        """However many ranks there are."""
        periods = [heartbeat_seconds(ranks) for ranks in (1, 64, 1024, 100_000)]
        assert periods == [2.0, 4.0, 60.0, 60.0]
        assert MISSED_BEATS * max(periods) < watchdog.SILENCE_SECONDS

    def test_is_not_assumed_of_one_that_has_ended(self, watched: Watched) -> None:
        watched.wait(100, 0, 1)
        watched.end_rank(1)
        assert watched.wait(1000, 0) is None

    def test_is_not_assumed_after_this_process_was_stopped_itself(self, watched: Watched) -> None:
        watched.wait(100, 0, 1)
        watched.now += 5000
        assert watched.wait(watchdog.SILENCE_SECONDS, 0, 1) is None


class TestATrialThatStandsStill:
    def test_is_ended_after_ten_times_its_longest_segment(self, watched: Watched) -> None:
        watched.progress(8, slowest=20.0)
        assert watched.wait(200, 0, 1, in_step=True) is None
        verdict = watched.wait(30, 0, 1, in_step=True)
        assert verdict is not None
        assert verdict.failure is not None
        assert verdict.failure.kind == "Hang"
        assert verdict.failure.message.startswith("rank 0 on n1 is in ")
        assert "s, and 20.0 s at most before" in verdict.failure.message

    def test_is_given_a_minute_however_fast_it_is(self, watched: Watched) -> None:
        watched.progress(8, slowest=0.1)
        assert watched.wait(watchdog.MIN_STANDSTILL_SECONDS, 0, 1, in_step=True) is None
        assert watched.wait(30, 0, 1, in_step=True) is not None

    def test_is_left_alone_before_its_first_steps(self, watched: Watched) -> None:
        assert watched.wait(400, 0, 1, in_step=True) is None

    def test_is_left_alone_while_a_rank_does_something_else(self, watched: Watched) -> None:
        """It compiles, evaluates or saves."""
        watched.progress(8, slowest=0.1)
        for _ in range(50):
            watched.beat(1)
            assert watched.wait(2 * watchdog.LOOK_SECONDS, 0, in_step=True) is None

    def test_is_ended_soon_if_a_rank_was_stopped_between_two_steps(self, watched: Watched) -> None:
        """Its last heartbeat is from the evaluation before, and the others train."""
        watched.progress(8, slowest=0.1)
        watched.beat(1)
        assert watched.wait(watchdog.MIN_STANDSTILL_SECONDS, 0, in_step=True) is None
        verdict = watched.wait(2 * watchdog.MIN_STANDSTILL_SECONDS, 0, in_step=True)
        assert verdict is not None
        assert verdict.failure is not None
        assert verdict.failure.kind == "Unresponsive"
        assert verdict.failure.rank == 1

    def test_is_left_alone_while_nobody_is_known_to_train(self, watched: Watched) -> None:
        watched.progress(8, slowest=0.1)
        watched.beat(0)
        watched.beat(1)
        assert watched.wait(2 * watchdog.MIN_STANDSTILL_SECONDS) is None

    def test_is_left_alone_once_it_gets_on(self, watched: Watched) -> None:
        """Nobody is asked any more."""
        watched.progress(8, slowest=0.1)
        for _ in range(40):
            watched.wait(2 * watchdog.LOOK_SECONDS, 0, in_step=True)
            watched.beat(1, in_step=True)
            if watched.folder.stacks_request.exists():
                break
        watched.progress(9, slowest=0.1)
        assert watched.wait(50, 0, 1, in_step=True) is None
        assert not watched.folder.stacks_request.exists()

    def test_ends_at_its_time_out_at_the_latest(self, tmp_path: Path) -> None:
        watched = Watched(tmp_path / "trial")
        watched.watchdog = Watchdog(watched.folder, 2, 500.0, clock=lambda: watched.now)
        watched.progress(8, slowest=0.1)
        assert watched.wait(500, 0, 1) is None
        verdict = watched.wait(30, 0, 1)
        assert verdict is not None
        assert verdict.failure is not None
        assert verdict.failure.kind == "Timeout"
        end = "took longer than its time-out; it had reached step 8 of 100"
        assert verdict.failure.message.endswith(end)

    def test_of_a_script_says_how_far_it_came(self, tmp_path: Path) -> None:
        """A script may not say how long it will train."""
        watched = Watched(tmp_path / "trial")
        watched.watchdog = Watchdog(watched.folder, 1, 50.0, clock=lambda: watched.now)
        content = {"phase": "train", "step": 8, "steps": None, "at": watched.now}
        write_atomically(watched.folder.progress_path, json.dumps(content), durable=False)
        verdict = watched.wait(80, 0)
        assert verdict is not None
        assert verdict.failure is not None
        assert verdict.failure.message.endswith("it had reached step 8")


def test_a_rank_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends with the block, and leaves nothing half-written."""
    monkeypatch.setattr(progress, "heartbeat_seconds", lambda world_size: 0.01)
    ranks = Ranks(rank=3, local_rank=0, world_size=4)
    trial = TrialFolder(tmp_path)
    folder = trial.heartbeat_folder
    with progress.heartbeats(trial, ranks, TrainingState(step=12, in_step=True)):
        wait_until(lambda: any("tests." in beat.position for beat in read_heartbeats(folder)), 10)
    (beat,) = read_heartbeats(folder)
    assert (beat.rank, beat.step, beat.in_step) == (3, 12, True)
    assert [entry.name for entry in folder.iterdir()] == ["rank3.json"]


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
    monkeypatch.setattr(progress, "heartbeat_seconds", lambda world_size: 0.01)
    trial = TrialFolder(tmp_path)
    progress.ProgressFile(trial.progress_path, 20, is_writer=True).report("train", 1)
    assert not trial.progress_path.exists()
    with progress.heartbeats(trial, Ranks(rank=0, local_rank=0, world_size=1), TrainingState()):
        wait_until(lambda: bool(list(read_heartbeats(trial.heartbeat_folder))), 10)
    assert next(refusals, None) is None
