"""What ranks have left, put into the sentence that says why their trial makes no progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.launch.hang import RankEvidence, explain_collective, name_hang
from harness.records.running import CollectiveCall, FlightRecord, Heartbeat, ProcessView

WAITING = "torch.autograd.graph._engine_run_backward:825"
BEAT = Heartbeat(
    rank=0, host="n1", pid=7, created=1.0, step=5, in_step=True, position=WAITING, at=100.0
)
STACK = '  File "/home/me/train.py", line 99, in loss\n  File "/usr/lib/python3.11/re.py", line 5, in match'
LOADER_STACK = '  File "/v/site-packages/torch/utils/data/dataloader.py", line 1, in _try_get_data'
RUNNING = ProcessView(pid=7, state="running", stack=STACK)


def call(number: int, operation: str = "all_reduce", **fields: Any) -> CollectiveCall:
    """Return a call of a collective, which is not finished unless `fields` say so."""
    known = {"group": "", "sizes": "4 Float", "site": "ddp", "finished": False, **fields}
    return CollectiveCall(number=number, operation=operation, **known)


def evidence(
    rank: int, *calls: CollectiveCall, process: ProcessView = RUNNING, **fields: Any
) -> RankEvidence:
    """Return what a rank has left that has answered, after two collectives that are finished."""
    done = [call(1203, "broadcast", finished=True), *calls]
    flight = FlightRecord(rank=rank, process=process, calls=done, **fields)
    return RankEvidence(heartbeat=replace(BEAT, rank=rank), flight=flight)


def sentence(ranks: Sequence[RankEvidence], world_size: int = 4) -> str:
    return str(name_hang(ranks, world_size))


def culprit(ranks: Sequence[RankEvidence], world_size: int = 4) -> int | None:
    hang = name_hang(ranks, world_size)
    assert hang is not None
    return None if hang.culprit is None else hang.culprit.rank


def others(*calls: CollectiveCall) -> list[RankEvidence]:
    """Return what all ranks but rank 1 have left."""
    return [evidence(rank, *(calls or (call(1204),))) for rank in (0, 2, 3)]


class TestDifferentCollectives:
    def test_are_named_with_their_lines_and_where_ranks_diverged(self) -> None:
        ranks = [*others(), evidence(1, call(1204, "broadcast", site="train.py:88"))]
        assert sentence(ranks) == (
            "rank 1 is in broadcast 1,204 (train.py:88), ranks 0, 2-3 are in all_reduce 1,204 (ddp):"
            " they diverged after 1,203"
        )
        assert culprit(ranks) == 1

    def test_have_no_culprit_among_two_ranks(self) -> None:
        ranks = [evidence(0, call(1204)), evidence(1, call(1204, "broadcast"))]
        assert "they diverged after 1,203" in sentence(ranks, 2)
        assert culprit(ranks, 2) is None

    def test_of_different_sizes_are_named_with_them(self) -> None:
        ranks = [*others(), evidence(1, call(1204, sizes="8 Float", site="train.py:88"))]
        assert sentence(ranks) == (
            "rank 1 is in all_reduce 1,204 of 8 Float (train.py:88), ranks 0, 2-3 are in all_reduce"
            " 1,204 of 4 Float (ddp): their sizes differ"
        )

    def test_may_be_finished_at_some_ranks(self) -> None:
        """The sender of a broadcast does not wait for those who never take part in it."""
        early = [call(1204, "broadcast", finished=True, site="train.py:8"), call(1205)]
        ranks = [evidence(0, call(1204)), evidence(1, *early)]
        assert "rank 1 called broadcast 1,204 (train.py:8)" in sentence(ranks, 2)

    def test_of_a_gather_may_have_other_sizes(self) -> None:
        """Rank 0 receives what the others give."""
        ranks = [evidence(0, call(1204, "gather", sizes="")), evidence(1, call(1204, "gather"))]
        assert "differ" not in sentence(ranks, 2)

    def test_that_all_ranks_have_finished_may_have_had_other_sizes(self) -> None:
        """NCCL gathers tensors of unequal sizes."""
        gathered = [call(1204, "all_gather", finished=True, sizes=size) for size in ("4", "8")]
        ranks = [evidence(0, gathered[0], call(1205)), evidence(1, gathered[1])]
        assert culprit(ranks, 2) == 1
        assert "never came to all_reduce 1,205" in sentence(ranks, 2)

    def test_are_looked_for_in_each_group(self) -> None:
        """Ranks number the collectives of each group by themselves."""
        own = {0: call(7, group="1 row"), 1: call(7, "broadcast", group="1 row")}
        ranks = [*(evidence(rank, own[rank]) for rank in own), evidence(2, call(1204))]
        assert "broadcast 7 of group 1 row (ddp)" in sentence(ranks, 3)


class TestARankThatDoesNotCome:
    def test_is_named_with_its_line(self) -> None:
        ranks = [*others(), evidence(1)]
        assert sentence(ranks) == (
            "rank 1 on n1 is in train.py:99 after step 5, and never came to all_reduce 1,204 (ddp),"
            " in which ranks 0, 2-3 wait"
        )
        assert culprit(ranks) == 1

    def test_is_named_with_what_the_kernel_waits_for(self) -> None:
        asleep = replace(RUNNING, state="sleeping", waits_in="pipe_write")
        ranks = [*others(), evidence(1, process=asleep)]
        assert "is in train.py:99 (asleep in pipe_write) after step 5" in sentence(ranks)

    @pytest.mark.parametrize(
        ("process", "what"),
        [
            (replace(RUNNING, state="stopped"), "is stopped (SIGSTOP) in train.py:99 after step 5"),
            (replace(RUNNING, state="zombie"), "has ended after step 5"),
            (RUNNING, "is in train.py:99 after step 5, in native code that keeps Python's lock"),
            (None, f"is in {WAITING} after step 5"),
        ],
    )
    def test_may_be_one_that_does_not_answer(self, process: ProcessView | None, what: str) -> None:
        silent = RankEvidence(heartbeat=replace(BEAT, rank=1), process=process)
        ranks = [*others(), silent]
        end = ", and ranks 0, 2-3 wait for it in all_reduce 1,204 (ddp)"
        assert sentence(ranks) == f"rank 1 on n1 {what}{end}"

    def test_is_the_one_that_waits_for_nobody_itself(self) -> None:
        """Rank 0 waits for rank 1, which waits for rank 2 in another group."""
        ranks = [
            evidence(0, call(1204)),
            evidence(1, call(1, group="3 column", site="mesh.py:5")),
            evidence(2, call(0, group="3 column", finished=True)),
        ]
        assert culprit(ranks, 3) == 2

    @pytest.mark.parametrize(
        ("worker", "what"),
        [
            (ProcessView(pid=9, state="stopped"), "is stopped (SIGSTOP)"),
            (ProcessView(pid=9, state="zombie"), "is dead"),
            (ProcessView(pid=9, state="sleeping", stack=STACK), "is in train.py:99"),
        ],
    )
    def test_may_wait_for_its_loader(self, worker: ProcessView, what: str) -> None:
        idle_stack = '  File "/v/torch/utils/data/_utils/worker.py", line 3, in _worker_loop'
        idle = ProcessView(pid=8, state="sleeping", stack=idle_stack)
        waiting = replace(RUNNING, stack=LOADER_STACK)
        ranks = [*others(), evidence(1, process=waiting, children=[idle, worker])]
        text = f"waits after step 5 for its loader, whose worker (process 9) {what}, and never"
        assert text in sentence(ranks)


class TestHeartbeats:
    """Which are all that `harness status` looks at, and all that is left of a node that is gone."""

    @pytest.mark.parametrize(
        ("rank1", "end"),
        [
            (None, "rank 1 has not started"),
            (replace(BEAT, rank=1, at=60.0), "no sign of life for 40 s longer than the others"),
            (replace(BEAT, rank=1, step=4), "after step 4, and others are after step 5"),
            (replace(BEAT, rank=1, position="line.loss:31"), "step 5, and the others wait for it"),
        ],
    )
    def test_name_the_rank_that_differs(self, rank1: Heartbeat | None, end: str) -> None:
        beats = [BEAT, replace(BEAT, rank=2)]
        if rank1 is not None:
            beats.insert(1, rank1)
        text = sentence([RankEvidence(heartbeat=beat) for beat in beats], 3)
        assert text.startswith("rank 1 ")
        assert text.endswith(end)

    def test_name_nobody_where_all_do_the_same(self) -> None:
        beats = [BEAT, replace(BEAT, rank=1)]
        ranks = [RankEvidence(heartbeat=beat) for beat in beats]
        assert sentence(ranks, 2) == f"{BEAT}, like the others"
        assert name_hang([], 2) is None


def test_a_rank_that_gloo_ends_for_another_size_is_explained() -> None:
    log = (
        "what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes."
        " 1600 vs 16. Received data size doesn't match\nFatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 3 in wait\n'
        'Thread 0x2 (most recent call first):\n  File "/v/site-packages/torch/c.py", line 3 in f\n'
        '  File "/home/me/train.py", line 12 in loss\n  File "/home/me/train.py", line 40 in main\n'
    )
    left = [evidence(0, call(1204, sizes="400 Float", site="train.py:88"))]
    assert explain_collective(1, log, left) == (
        "rank 1 in train.py:12 got 1,600 bytes where it expected 16, as rank 0 is in all_reduce 1,204"
        " of 400 Float (train.py:88): their sizes differ"
    )
    assert explain_collective(1, "Killed", left) is None
