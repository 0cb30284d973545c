"""The loops that the harness's cost is measured against: they train the same, in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.programs.perf import results, turns
from tests.programs.perf.bench import describe
from tests.programs.perf.comparison import compare, read_rows
from tests.programs.perf.loops import Loop
from tests.programs.perf.overhead import (
    BARE,
    FLOOR,
    HARNESS,
    TEXTBOOK,
    check_same_losses,
    loop_makers,
    make_assignments,
)
from tests.programs.perf.race import estimate_ratio
from tests.programs.perf.turns import PausedLoop, block_order, take_turns
from tests.support.training import SINGLE_RANK


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("workload", "steps"), [(0, 25), (1, 2)], ids=["mlp", "cnn with a schedule"]
)
def test_harness_and_bare_loop_compute_the_same_bits_in_turn(
    tmp_path: Path, workload: int, steps: int
) -> None:
    assignment = make_assignments(tmp_path, None, SINGLE_RANK)[workload]
    makers = loop_makers(assignment, tmp_path, SINGLE_RANK)
    loops = {name: PausedLoop(makers[name]) for name in (HARNESS, BARE, TEXTBOOK)}
    for turn in (2, 1, steps):  # an epoch has 23
        for loop in loops.values():
            loop.train(turn)
    check_same_losses(loops)
    losses = {name: paused.loop.losses for name, paused in loops.items()}
    assert len(losses[BARE]) >= 3 + steps
    assert len(losses[TEXTBOOK]) == 3 + steps
    assert losses[TEXTBOOK] != losses[BARE][: 3 + steps]  # it has an order of its own
    with pytest.raises(RuntimeError, match=r"^harness and bare loop computed other losses$"):
        check_same_losses({HARNESS: loops[TEXTBOOK], BARE: loops[BARE]})
    for loop in loops.values():
        loop.end()


@pytest.mark.nightly
def test_turns_give_every_loop_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "BLOCK_SECONDS", 0.001)
    assignment = make_assignments(tmp_path, None, SINGLE_RANK)[0]

    def make_loops(block: int) -> dict[str, Callable[[], Loop]]:
        makers = loop_makers(assignment, tmp_path / str(block), SINGLE_RANK)
        return {name: makers[name] for name in (HARNESS, BARE, FLOOR)}

    checked: list[int] = []

    def check(loops: object) -> None:
        assert isinstance(loops, dict)
        checked.append(len(loops[BARE].loop.losses))
        check_same_losses(loops)

    times = take_turns(make_loops, 2, check)
    assert list(times.wall) == list(times.cpu) == [HARNESS, BARE, FLOOR]
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in times.wall.values())
    assert checked == [turns.WARMUP_STEPS + times.steps] * 2
    assert min(times.wall[BARE]) > min(times.wall[FLOOR])


def test_every_loop_is_at_every_position_equally_often() -> None:
    names = [HARNESS, BARE, TEXTBOOK]
    orders = [block_order(names, block) for block in range(1, 7)]
    assert orders[0] == names
    for position in range(3):
        assert sorted(order[position] for order in orders) == sorted(names * 2)
    # And each follows each other one equally often.
    pairs = [pair for order in orders for pair in pairwise(order)]
    assert {pairs.count(pair) for pair in pairs} == {2}
    assert len(set(pairs)) == 6


def test_the_ratio_of_known_times() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 40)
    drift = np.linspace(1, 2, 40)  # of the machine, common to both
    ratio = estimate_ratio(list(2 * drift * np.exp(noise)), list(drift))
    assert ratio.low < 0.5 < ratio.high
    assert ratio.high - ratio.low < 0.005
    assert ratio.low <= ratio.mean <= ratio.high


@pytest.mark.parametrize(
    ("seconds", "goal", "goal_low", "is_met"),
    [
        ([1.0, 1.0], 2.0, None, True),
        ([1.0, 1.1], 2.0, None, False),  # 1.9 times as fast
        ([0.8, 1.2], 1.9, 1.9, False),  # the mean reaches it, the interval does not
        ([1.0, 1.0], None, None, None),
    ],
)
def test_a_goal_is_met_by_the_mean_and_by_the_lower_bound(
    seconds: list[float], goal: float | None, goal_low: float | None, is_met: bool | None
) -> None:
    row = compare("it", "that", seconds, [2.0, 2.0], goal=goal, goal_low=goal_low)
    assert row.is_met is is_met
    assert (row.ours, row.theirs, row.count) == (sum(seconds) / 2, 2.0, 2)
    assert compare("it", "that", [2.0], [4.0], work=8, unit="samples/s").cells()[1:4] == [
        "4.00 samples/s",
        "2.00 samples/s",
        "that",
    ]


def test_results_are_left_with_what_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PROBE_SECONDS", 0.01)
    rows = [compare("it", "that", [1.0, 1.1], [2.0, 2.1], goal=1.0)]
    with results.Watch() as watch:
        watch.probe()
    conditions = watch.conditions({"accelerate": "1.0"})
    content = {"rows": [asdict(row) for row in rows]}
    path = results.write_results("demo", content, conditions, folder=tmp_path)
    written = json.loads(path.read_text())
    assert read_rows(written["rows"]) == rows
    assert written["conditions"]["packages"]["accelerate"] == "1.0"
    assert len(written["conditions"]["other_programs"]) == 3
    text = describe(rows, conditions)
    assert "| it | 1.05 s | 2.05 s | that | 1.954 [" in text
    assert text.endswith("in 3 moments between parts.\n")
