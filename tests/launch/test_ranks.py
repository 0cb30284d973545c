"""How ranks ended, from what they and their launcher left, and what they leave behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.core import files
from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.core.processes import start_session
from harness.launch.hold import mark_variables
from harness.launch.launcher import RankProgram, StartedRanks, rank_failures
from harness.launch.ranks import how_ended
from harness.launch.tasks import finish
from harness.launch.torchrun import TorchrunRanks
from harness.records.assignment import FailedRank
from harness.records.files import write_rank_result
from harness.records.record import Failure, RankResult
from tests.support.running import wait_until

CRASH = """\
terminate called after throwing an instance of 'gloo::EnforceNotMet'
Fatal Python error: Aborted

Current thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 3 in wait
Thread 0x2 (most recent call first):
  File "/home/me/train.py", line 88 in loss
"""
# Starts something in a session of its own, and is killed before it could end that.
KILLED = """
import os, signal, subprocess
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_crashes_is_named_with_its_line(tmp_path: Path) -> None:
    """As one that gloo aborts, because another rank has left out a collective."""
    folder = TrialFolder(tmp_path)
    folder.log_folder.mkdir()
    folder.rank_log(1).write_text(CRASH, encoding="utf-8")
    killed = Failure(kind="Killed", message="ended by SIGABRT", rank=1)
    failure = how_ended(folder, 2, 0.0, observed_failures=[killed]).failure
    assert failure is not None
    assert str(failure).endswith("/train.py:88: rank 1: Killed: ended by SIGABRT")
    assert failure.log == "logs/rank1.log"
    exited = Failure(kind="Exited", message="with code 3", rank=1)
    failure = how_ended(folder, 2, 0.0, observed_failures=[exited]).failure
    assert failure is not None
    last_line = 'File "/home/me/train.py", line 88 in loss'
    assert failure.message == f"with code 3; the last words of its log: {last_line}"


@pytest.mark.parametrize(
    ("logs", "named"),
    [
        ({"launch": "", "rank0": "Connection reset by peer\n", "rank1": ""}, "rank0"),
        ({"launch": "srun: Killed\n", "rank0": "begun\n", "rank1": ""}, "launch"),
        ({"launch": "srun: Killed\n", "rank0": "begun\n", "rank1": "begun\n"}, "rank1"),
        ({"launch": "", "rank0": "", "rank1": ""}, "rank1"),
    ],
)
def test_of_a_killed_rank_a_log_is_named_that_says_something(
    tmp_path: Path, logs: dict[str, str], named: str
) -> None:
    folder = TrialFolder(tmp_path)
    folder.log_folder.mkdir()
    for name, text in logs.items():
        (folder.log_folder / f"{name}.log").write_text(text, encoding="utf-8")
    killed = {1: FailedRank(exitcode=-signal.SIGKILL, at=1.0)}
    failure = how_ended(folder, 2, 0.0, observed_failures=rank_failures(killed, folder)).failure
    assert failure is not None
    message = "ended by SIGKILL, sent by the out-of-memory killer or another process"
    if not logs["rank1"]:
        message += "; its log is empty"
    assert (failure.message, failure.log) == (message, f"logs/{named}.log")


STOPPED = Failure(kind="Interrupted", message="stopped after step 3 of 9", rank=1, at=5.0)
LOST = Failure(kind="ConnectionLost", message="connection closed by peer", rank=0, at=4.0)
# Of a node whose clock is late.
FULL = Failure(kind="StorageError", message="/x: No space left on device", rank=1, at=9.0)


@pytest.mark.parametrize(
    ("left", "exit_codes", "expected"),
    [
        ([replace(STOPPED, rank=0), STOPPED], {0: 75, 1: 75}, ("Interrupted", 0)),
        ([STOPPED], {0: -signal.SIGKILL, 1: 75}, ("Interrupted", 1)),
        ([LOST, STOPPED], {0: 1, 1: 75}, ("Interrupted", 1)),
        ([LOST, FULL], {0: 1, 1: 1}, ("StorageError", 1)),
        ([LOST], {0: 1, 1: files.EXIT_CODE}, ("StorageError", 1)),
        ([LOST], {0: 1, 1: -signal.SIGUSR2}, ("Interrupted", 1)),  # before it could block it
        ([LOST], {0: 1, 1: -signal.SIGKILL}, ("Killed", 1)),
    ],
)
def test_what_ended_the_other_ranks_is_the_cause(
    tmp_path: Path, left: list[Failure], exit_codes: dict[int, int], expected: tuple[str, int]
) -> None:
    folder = TrialFolder(tmp_path)
    for failure in left:
        rank = failure.rank or 0
        result = RankResult(rank=rank, host="n", entered_at=0.0, failure=failure)
        write_rank_result(folder.result_path(rank), result)
    ended = {rank: FailedRank(exitcode=code, at=time.time()) for rank, code in exit_codes.items()}
    observed = rank_failures(ended, folder)
    cause = how_ended(folder, 2, started=0, observed_failures=observed).failure
    assert cause is not None
    assert (cause.kind, cause.rank) == expected


def run(folder: TrialFolder, code: str) -> str:
    """Run a program in place of torchrun to its end, and return what it has printed."""
    log = folder.launch_log

    def start(program: RankProgram) -> StartedRanks:
        variables = {**os.environ, **mark_variables(log)}
        process = start_session([sys.executable, "-S", "-c", code], variables, log)
        return TorchrunRanks(process=process, folder=folder)

    folder.assignment_path.touch()
    program = RankProgram(folder=folder, world_size=1, num_threads=1)
    with pytest.raises(HarnessError, match="rank 0: Lost: left no result; its launcher"):
        finish(start, program, 60)
    return log.read_text(encoding="utf-8")


def test_what_a_killed_launcher_has_left_is_ended(tmp_path: Path) -> None:
    child = int(run(TrialFolder(tmp_path), KILLED))
    wait_until(lambda: not psutil.pid_exists(child), 10)
    assert not psutil.pid_exists(child)


def test_a_log_is_kept_as_it_was_printed(tmp_path: Path) -> None:
    """A name that looks like a password is text of the user's, as is a word after `Basic`."""
    text = "Basic ResidualBlock3 next_token=the2cat KEY=layer1.weight"
    assert run(TrialFolder(tmp_path), f"print({text!r})") == f"{text}\n"
