"""What the numbers of a trial come to, by hand on small rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.measure.summary import find_window, summarize
from harness.records.record import Interruption, RankResult, SlowestRank, Summary
from tests.factories import make_cell, make_record

RECORD = make_record(make_cell(strategy="ddp", world_size=2, steps=40))


def rank(
    number: int, phases: dict[str, list[float]], resumed_at: tuple[int, ...] = ()
) -> RankResult:
    rows = {name: np.asarray(seconds, dtype=np.float64) for name, seconds in phases.items()}
    return replace(
        RECORD.ranks[number],
        host=f"node{number}",
        loss=np.zeros(len(rows["forward"]), dtype=np.float32),
        step_seconds=np.sum(list(rows.values()), axis=0),
        step_phases=rows,
        interruptions=[
            Interruption(step=step, at=0.0, signal="SIGUSR2", lost_seconds=1.0)
            for step in resumed_at
        ],
    )


def summary(*ranks: RankResult, warmup: int = 0) -> Summary:
    assert RECORD.rank0 is not None
    cell = RECORD.trial.cell
    cell = replace(cell, axes=replace(cell.axes, batch_size=64), warmup=warmup)
    return summarize(ranks, RECORD.rank0, cell)


def test_ranks_share_a_batch_and_the_slowest_decides() -> None:
    figures = summary(
        rank(0, {"forward": [1.0] * 40, "communication": [3.0] * 40}),
        rank(1, {"forward": [3.0] * 40, "communication": [1.0] * 40}),
    )
    assert figures.throughput == pytest.approx(64 / 4)
    assert figures.step_p50 == pytest.approx(4)
    assert figures.shares == pytest.approx({"forward": 0.5, "communication": 0.5})
    assert figures.slowest == SlowestRank(rank=1, host="node1", skew=0.5)
    assert figures.node_seconds == pytest.approx({"node1": 3.0, "node0": 1.0})
    assert (figures.window_start, figures.window_steps, figures.settled) == (0, 40, True)


def test_steps_that_a_loader_has_fetched_for_in_a_pause_are_not_measured() -> None:
    """Every tenth step is evaluated after, and the next two steps find their batches ready."""
    seconds = [0.5 if step % 10 < 2 else 1.0 for step in range(40)]
    refilled = [step for step in range(40) if step % 10 < 2]
    figures = summary(replace(rank(0, {"forward": seconds}), refilled_steps=refilled))
    assert figures.throughput == pytest.approx(64)
    assert figures.window_steps == 32


def test_where_phases_are_sampled_throughput_is_of_the_other_steps() -> None:
    """To time phases makes a step slower, here by half."""
    seconds = np.where(np.arange(40) % 10 == 0, 1.5, 1.0)
    phases = np.where(seconds > 1, 1.5, np.nan).tolist()
    figures = summary(replace(rank(0, {"forward": phases}), step_seconds=seconds), warmup=5)
    assert figures.throughput == pytest.approx(64)
    assert figures.window_steps == 36 - 5
    assert (figures.shares, figures.phase_steps) == ({"forward": 1.0}, 3)
    mostly = [1.0] * 36 + [np.nan] * 4
    figures = summary(replace(rank(0, {"forward": mostly}), step_seconds=np.ones(40)))
    assert (figures.window_steps, figures.phase_steps) == (40, 36)


def test_who_is_slowest_is_unknown_where_communication_is() -> None:
    assert (
        summary(rank(0, {"forward": [1.0] * 40}), rank(1, {"forward": [3.0] * 40})).slowest is None
    )
    assert summary(rank(0, {"forward": [1.0] * 40, "communication": [3.0] * 40})).slowest is None
    unknown = summary(rank(0, {"forward": [1.0] * 40}), rank(1, {"forward": [3.0] * 40}))
    assert unknown.node_seconds == {}


def test_warm_up_is_in_no_number() -> None:
    figures = summary(
        rank(0, {"forward": [5.0] * 10 + [1.0] * 30, "optimizer": [0.0] * 10 + [1.0] * 30})
    )
    assert (figures.window_start, figures.window_steps) == (10, 30)
    assert figures.throughput == pytest.approx(32)
    assert figures.shares == pytest.approx({"forward": 0.5, "optimizer": 0.5})


def test_every_attempt_warms_up_again() -> None:
    seconds = np.concatenate([[5.0] * 15, [1.0] * 30, [5.0] * 15, [1.0] * 30])
    window = find_window(seconds, 2, [45])
    assert np.flatnonzero(window.mask).tolist() == [*range(15, 45), *range(60, 90)]
    assert window.settled is True


def test_an_attempt_that_may_be_warm_up_all_through_is_left_out() -> None:
    seconds = np.concatenate([[5.0] * 15, [1.0] * 45, [5.0] * 12, [5.0] * 15, [1.0] * 45])
    window = find_window(seconds, 2, [60, 72])
    assert np.flatnonzero(window.mask).tolist() == [*range(15, 60), *range(87, 132)]
    short = find_window(np.ones(24), 2, [12])
    assert np.flatnonzero(~short.mask).tolist() == [0, 1, 12, 13], "there is nothing better"


@pytest.mark.parametrize("at", [[], [70], [40, 47, 120]], ids=str)
def test_interruptions_do_not_bias_throughput(at: list[int]) -> None:
    rng = np.random.default_rng(0)
    seconds = np.exp(rng.normal(0, 0.03, 200))
    for start in [0, *at]:
        seconds[start : start + 15] *= 3  # compiling, and caches that are cold
    assert seconds.mean() > 1.1
    result = rank(0, {"forward": seconds.tolist()}, tuple(at))
    assert summary(result, warmup=5).throughput == pytest.approx(64, rel=0.02)


def test_too_few_steps_are_measured_and_not_called_steady() -> None:
    window = find_window(np.ones(12), 5, [])
    assert window.mask.tolist() == [False] * 5 + [True] * 7
    assert window.settled is None
    assert not find_window(np.ones(3), 5, []).mask.any()


def test_one_attempt_that_never_settled_is_enough() -> None:
    rising = np.linspace(1, 3, 400)
    assert find_window(np.concatenate([np.ones(100), rising]), 0, [100]).settled is False


@pytest.mark.parametrize("slower", [0.0, 0.3])
def test_all_steps_of_a_script_after_its_warmup_are_measured(slower: float) -> None:
    """Whether the step in which it evaluates is among them does not depend on noise."""
    assert RECORD.rank0 is not None
    cell = RECORD.trial.cell
    script = replace(cell.workload, uses="train.py", arguments=[])
    seconds = [1.0 + slower] * 60 + [50.0] + [1.0] * 59
    part = rank(0, {"forward": seconds})
    found = summarize([part], RECORD.rank0, replace(cell, workload=script, warmup=10))
    assert (found.window_start, found.window_steps) == (10, 110)
    assert found.settled is not bool(slower)
    assert found.throughput == pytest.approx(110 / sum(seconds[10:]))
    assert found.throughput_unit == "steps/s"
