"""What ranks have left, put into the sentence that says why their trial makes no progress."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.launch.hang import RankEvidence, name_hang
from harness.measure.stacks import last_stack
from harness.records.running import Heartbeat

WAITING = "torch.autograd.graph._engine_run_backward:825"
BEAT = Heartbeat(
    rank=0, host="n1", pid=7, created=1.0, step=5, in_step=True, position=WAITING, at=100.0
)
STACK = '  File "/home/me/train.py", line 99, in loss\n  File "/usr/lib/python3.11/re.py", line 5, in match'


def sentence(rank1: dict[str, Any] | None, **seen: Any) -> str:
    """Return the sentence on three ranks, of which rank 1 differs from the others."""
    evidence = [RankEvidence(heartbeat=replace(BEAT, rank=rank)) for rank in (0, 2)]
    if rank1 is not None:
        beat = replace(BEAT, rank=1, **rank1)
        evidence.insert(1, RankEvidence(heartbeat=beat, **seen))
    return str(name_hang(evidence, 3))


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
    text = sentence(rank1)
    assert text.startswith("rank 1 ")
    assert text.endswith(end)


def test_a_rank_is_named_with_the_users_own_line_and_what_happened_to_its_process() -> None:
    line = {"position": "train.loss:98"}
    assert sentence(line, stack=STACK).startswith("rank 1 on n1 is in train.py:99 after step 5, ")
    stopped = "rank 1 on n1 is stopped (SIGSTOP); 310 s ago it was in train.loss:98 after"
    assert sentence(line, state="stopped", stack=STACK, age=310.0).startswith(stopped)
    assert sentence(line, state="zombie").startswith("rank 1 on n1 has ended after step 5, ")


def test_ranks_that_all_wait_are_named_with_their_lines() -> None:
    ranks = [RankEvidence(heartbeat=replace(BEAT, rank=rank), stack=STACK) for rank in (0, 1)]
    hang = name_hang(ranks, 2)
    assert hang is not None
    assert hang.culprit is None
    assert str(hang) == (
        "rank 0 on n1 is in train.py:99 after step 5, rank 1 on n1 is in train.py:99 after step 5"
    )
    assert name_hang([], 2) is None


def test_the_main_thread_is_the_last_that_a_process_has_written(tmp_path: Path) -> None:
    written = (
        'Thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 3 in wait\n'
        'Current thread 0x2 (most recent call first):\n  File "/home/me/train.py", line 12 in loss\n'
        '  File "/home/me/train.py", line 40 in main\n'
    )
    log = tmp_path / "rank0.log"
    log.write_text(written, encoding="utf-8")
    assert last_stack(log) == (
        '  File "/home/me/train.py", line 40, in main\n  File "/home/me/train.py", line 12, in loss'
    )
