"""What attempts at a trial leave, what the next one makes of it, and whether there is one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.launch.attempts import begin_attempt, end_attempt, failures_before, runs_again
from harness.records.assignment import Assignment, write_assignment
from harness.records.files import write_record
from harness.records.record import Failure, RunSettings, Status
from tests.factories import make_record

SETTINGS = RunSettings(
    sweep_file="sweep.yaml", base_folder=".", checkpoint="none", saves_at_intervals=False, timeout=60.0,
    launcher="torchrun", device="cpu", forkserver=True, environment={}, slurm={},
)  # fmt: skip


def leave_attempt(folder: TrialFolder, status: Status | None) -> TrialFolder:
    """Leave what an attempt leaves: a record, or none where what ran it was killed."""
    folder = begin_attempt(folder, fresh=False)
    record = make_record(status="done", attempt=folder.attempt)
    violations = ("contention",) if status == "invalid" else ()
    write_assignment(folder.assignment_path, Assignment(trial=record.trial, base_folder="."))
    if status is not None:
        write_record(folder.record_path, replace(record, status=status, violations=violations))
    return folder


@pytest.mark.parametrize(
    ("statuses", "stays"),
    [(["invalid"], False), (["done"], False), (["invalid", None], True), (["interrupted"], True)],
)
def test_a_checkpoint_stays_for_what_has_not_got_to_its_end(
    tmp_path: Path, statuses: list[Status | None], stays: bool
) -> None:
    folder = TrialFolder(tmp_path)
    for status in statuses:
        folder = leave_attempt(folder, status)
    (folder.best_checkpoints / "step-000000004").mkdir(parents=True)
    (folder.resume_checkpoints / "step-000000004").mkdir(parents=True)
    begin_attempt(folder, fresh=False)
    assert folder.best_checkpoints.exists() is folder.resume_checkpoints.exists() is stays


def test_the_attempts_before_are_left_as_they_are(tmp_path: Path) -> None:
    first = leave_attempt(TrialFolder(tmp_path), "invalid")
    content = first.record_path.read_bytes()
    second = leave_attempt(first, None)
    assert TrialFolder.newest(tmp_path) == second == TrialFolder(tmp_path, 2)
    assert first.record_path.read_bytes() == content
    assert not second.record_path.exists()


def test_a_fresh_attempt_has_no_others_before_it(tmp_path: Path) -> None:
    begun = begin_attempt(leave_attempt(TrialFolder(tmp_path), "done"), fresh=True)
    assert begun.attempt == 2
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-2"]


def test_a_compilers_cache_goes_with_the_attempt_that_has_died(tmp_path: Path) -> None:
    killed = leave_attempt(TrialFolder(tmp_path), None)
    cache = killed.compiler_cache(0)
    cache.mkdir()
    begin_attempt(killed, fresh=False)
    assert not cache.exists()


def test_a_result_that_a_killed_rank_was_writing_goes_with_the_attempt(tmp_path: Path) -> None:
    folder = begin_attempt(TrialFolder(tmp_path), fresh=False)
    (folder.attempt_path / ".rank0.json.x7b_k2q1").touch()
    end_attempt(folder, make_record())
    assert not list(folder.attempt_path.iterdir())


def test_two_jobs_never_begin_the_same_attempt(tmp_path: Path) -> None:
    begin_attempt(TrialFolder(tmp_path), fresh=False)
    with pytest.raises(HarnessError, match="attempt-1: another job has just begun it"):
        begin_attempt(TrialFolder(tmp_path), fresh=False)


def test_an_attempt_without_a_record_was_interrupted_at_its_last_sign_of_life(
    tmp_path: Path,
) -> None:
    """The job may be pending for hours before it goes on, which is no work done twice."""
    folder = leave_attempt(TrialFolder(tmp_path), None)
    os.utime(folder.assignment_path, (1000.0, 1000.0))
    folder.heartbeat_folder.mkdir()  # each heartbeat is written in place of the last
    os.utime(folder.heartbeat_folder, (1034.0, 1034.0))
    (failure,) = failures_before(begin_attempt(folder, fresh=False))
    assert (failure.kind, failure.attempt) == ("Interrupted", 1)
    assert (failure.began_at, failure.at) == (1000.0, 1034.0)


def answers(kind: str, attempts: int, since: float = 0.0, saves: bool = False) -> list[bool]:
    """Return whether a trial runs again after each attempt of which it has failed so, at 10 s, 20 s, ..."""
    failures: list[Failure] = []
    found = []
    for number in range(1, attempts + 1):
        failure = Failure(kind=kind, message="")
        record = make_record(status="failed", started=10.0 * number, attempt=number)
        record = replace(
            record,
            failure=failure,
            previous_failures=tuple(failures),
            settings=replace(SETTINGS, saves_at_intervals=saves),
        )
        found.append(runs_again(record, TrialFolder(Path("nowhere")), since, 1))
        failures.append(replace(failure, began_at=10.0 * number, attempt=number))
    return found


@pytest.mark.parametrize(
    ("kind", "times"),
    [("Lost", 2), ("NodeFailure", 2), ("Hang", 1), ("Unresponsive", 1), ("ValueError", 0)],
)
def test_a_failure_allows_so_many_more_attempts(kind: str, times: int) -> None:
    assert answers(kind, 4) == [True] * times + [False] * (4 - times)


def test_failures_before_a_submission_do_not_count() -> None:
    assert answers("NodeFailure", 3) == [True, True, False]
    assert answers("NodeFailure", 3, since=20.0) == [True, True, True]


def test_what_may_be_the_trials_own_is_retried_where_it_saves() -> None:
    assert answers("Killed", 3) == [False] * 3
    assert answers("Killed", 3, saves=True) == [True, True, False]
    assert answers("ValueError", 1, saves=True) == [False]
