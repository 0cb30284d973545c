"""Trials that are to be ended although nobody has said so, and ranks that others wait for."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness.core.paths import TrialFolder, write_atomically
from harness.launch import watchdog
from harness.launch.watchdog import Verdict, Watchdog, describe_stall, find_straggler
from harness.records.files import write_record
from harness.records.record import Failure, RankResult
from harness.records.running import Heartbeat, heartbeat_seconds, read_heartbeats
from harness.training import progress
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from tests.support.running import wait_until

WAITING = "torch.autograd.graph._engine_run_backward:825"
BEAT = Heartbeat(rank=0, host="n1", pid=7, step=5, position=WAITING, at=100.0)


class Watched:
    """A trial of two ranks, with a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.folder = TrialFolder(path)
        self.now = 1000.0
        self.watchdog = Watchdog(self.folder, 2, clock=lambda: self.now)

    def end_rank(self, rank: int, failure: Failure | None = None) -> None:
        """Leave the result of a rank."""
        result = RankResult(rank=rank, host="n1", pid=7, entered_at=1.0, failure=failure)
        write_record(self.folder.result_path(rank), result)

    def beat(self, rank: int) -> None:
        """Leave a heartbeat of a rank."""
        beat = replace(BEAT, rank=rank, host=f"n{rank + 1}", at=self.now)
        write_atomically(self.folder.heartbeat_path(rank), json.dumps(asdict(beat)), durable=False)

    def wait(self, seconds: float, *beating: int) -> Verdict | None:
        """Look every few seconds while these ranks have heartbeats; returns the first verdict."""
        end = self.now + seconds
        while self.now < end:
            self.now += 2 * watchdog.LOOK_SECONDS
            for rank in beating:
                self.beat(rank)
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
        assert str(verdict.failure).startswith("rank 1 on n2: Unresponsive: no sign of life for 30")
        assert verdict.failure.log == "logs/rank1.log"

    def test_is_not_what_a_rank_left_that_was_killed_while_it_wrote(self, watched: Watched) -> None:
        watched.beat(0)
        (watched.folder.heartbeat_folder / ".rank0.json.x1").write_text(json.dumps(asdict(BEAT)))
        assert watched.wait(1000, 0, 1) is None

    def test_is_not_assumed_between_two_heartbeats(self) -> None:
        """However many ranks there are."""
        periods = [heartbeat_seconds(ranks) for ranks in (1, 64, 1024, 100_000)]
        assert periods == [2.0, 4.0, 60.0, 60.0]
        assert watchdog.MISSED_BEATS * max(periods) < watchdog.SILENCE_SECONDS

    def test_is_not_assumed_of_one_that_has_ended(self, watched: Watched) -> None:
        watched.wait(100, 0, 1)
        watched.end_rank(1)
        assert watched.wait(1000, 0) is None

    def test_is_not_assumed_after_this_process_was_stopped_itself(self, watched: Watched) -> None:
        watched.wait(100, 0, 1)
        watched.now += 5000
        assert watched.wait(watchdog.SILENCE_SECONDS, 0, 1) is None


class TestTheRankThatOthersWaitFor:
    @pytest.mark.parametrize(
        ("rank1", "end"),
        [
            (None, "rank 1 has not started"),
            (replace(BEAT, rank=1, at=60.0), "no sign of life for 40 s longer than the others"),
            (replace(BEAT, rank=1, step=4), "after step 4, and others are after step 5"),
            (replace(BEAT, rank=1, position="line.loss:31"), "step 5, and the others wait for it"),
        ],
    )
    def test_is_the_one_that_differs(self, rank1: Heartbeat | None, end: str) -> None:
        beats = [BEAT, replace(BEAT, rank=2)]
        if rank1 is not None:
            beats.insert(1, rank1)
        straggler = find_straggler(beats, 3)
        assert straggler is not None
        assert straggler.rank == 1
        assert str(straggler).endswith(end)

    def test_is_unknown_where_all_do_the_same(self) -> None:
        beats = [BEAT, replace(BEAT, rank=1)]
        assert find_straggler(beats, 2) is None
        assert describe_stall(beats, 2) == f"{BEAT}, like the others"
        assert describe_stall([], 2) is None


def test_a_rank_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends with the block, and leaves nothing half-written."""
    monkeypatch.setattr(progress, "heartbeat_seconds", lambda world_size: 0.01)
    ranks = Ranks(rank=3, local_rank=0, world_size=4)
    folder = tmp_path / "heartbeats"
    with progress.heartbeats(folder / "rank3.json", ranks, TrainingState(step=12)):
        wait_until(lambda: any("tests." in beat.position for beat in read_heartbeats(folder)), 10)
    (beat,) = read_heartbeats(folder)
    assert (beat.rank, beat.step) == (3, 12)
    assert [entry.name for entry in folder.iterdir()] == ["rank3.json"]
