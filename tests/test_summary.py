"""What the numbers of a trial come to, by hand on small rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.record import RankResult, Slowest, Summary
from harness.series import Series
from harness.summary import find_window, summarize
from tests.factories import make_cell, make_record

RECORD = make_record(make_cell(strategy="ddp", world_size=2, steps=40))


def rank(number: int, phases: dict[str, list[float]], resumed_at: tuple[int, ...] = ()) -> RankResult:
    rows = {name: np.asarray(seconds, dtype=np.float64) for name, seconds in phases.items()}
    return replace(
        RECORD.ranks[number],
        host=f"node{number}",
        loss=Series.pack(np.zeros(len(rows["forward"]), dtype=np.float32)),
        step_seconds=Series.pack(np.sum(list(rows.values()), axis=0)),
        step_phases={name: Series.pack(row) for name, row in rows.items()},
        resumed_at=resumed_at,
    )


def summary(*ranks: RankResult, warmup: int = 0) -> Summary:
    assert RECORD.learned is not None
    return summarize(ranks, RECORD.learned, 64, warmup)


def test_ranks_share_a_batch_and_the_slowest_decides() -> None:
    found = summary(
        rank(0, {"forward": [1.0] * 40, "communication": [3.0] * 40}),
        rank(1, {"forward": [3.0] * 40, "communication": [1.0] * 40}),
    )
    assert found.throughput == pytest.approx(64 / 4)
    assert found.step_p50 == pytest.approx(4)
    assert found.shares == pytest.approx({"forward": 0.5, "communication": 0.5})
    assert found.slowest == Slowest(rank=1, host="node1", skew=0.5)
    assert (found.window_start, found.window_steps, found.settled) == (0, 40, True)


def test_who_is_slowest_is_unknown_where_communication_is() -> None:
    assert summary(rank(0, {"forward": [1.0] * 40}), rank(1, {"forward": [3.0] * 40})).slowest is None
    assert summary(rank(0, {"forward": [1.0] * 40, "communication": [3.0] * 40})).slowest is None


def test_warm_up_is_in_no_number() -> None:
    found = summary(rank(0, {"forward": [5.0] * 10 + [1.0] * 30, "optimizer": [0.0] * 10 + [1.0] * 30}))
    assert (found.window_start, found.window_steps) == (10, 30)
    assert found.throughput == pytest.approx(32)
    assert found.shares == pytest.approx({"forward": 0.5, "optimizer": 0.5})


def test_every_attempt_warms_up_again() -> None:
    seconds = np.concatenate([[5.0] * 15, [1.0] * 30, [5.0] * 15, [1.0] * 30])
    window = find_window(seconds, 2, [45])
    assert np.flatnonzero(window.inside).tolist() == [*range(15, 45), *range(60, 90)]
    assert window.settled is True


def test_too_few_steps_are_measured_and_not_called_steady() -> None:
    window = find_window(np.ones(12), 5, [])
    assert window.inside.tolist() == [False] * 5 + [True] * 7
    assert window.settled is None
    assert not find_window(np.ones(3), 5, []).inside.any()


def test_one_attempt_that_never_settled_is_enough() -> None:
    rising = np.linspace(1, 3, 400)
    assert find_window(np.concatenate([np.ones(100), rising]), 0, [100]).settled is False
