"""Why ranks ended, from what they and their launcher left."""

from __future__ import annotations

from pathlib import Path

from harness.core.paths import TrialFolder
from harness.launch.ranks import how_ended
from harness.records.record import Failure

CRASH = """\
terminate called after throwing an instance of 'gloo::EnforceNotMet'
Fatal Python error: Aborted

Current thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 3 in wait
Thread 0x2 (most recent call first):
  File "/home/me/train.py", line 88 in loss
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
