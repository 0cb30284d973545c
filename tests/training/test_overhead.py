"""The loops that the harness's cost is measured against: they train the same, in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.programs.perf import results
from tests.programs.perf.comparison import ROWS_PATH, compare, leave_rows, ratio_of, read_rows
from tests.programs.perf.overhead import (
    BARE,
    HARNESS,
    TEXTBOOK,
    bench_assignments,
    check_same_losses,
    loop_makers,
)
from tests.programs.perf.race import Race, block_order
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
    assignment = bench_assignments(tmp_path, None, SINGLE_RANK)[workload]
    race = Race(loop_makers(assignment, tmp_path, SINGLE_RANK))
    for turn in (2, 1, steps):  # an epoch has 23
        for name in race.loops:
            race.train(name, turn)
    check_same_losses(race.loops)
    losses = {name: loop.losses for name, loop in race.loops.items()}
    assert {len(series) for series in losses.values()} == {3 + steps}
    assert losses[TEXTBOOK] != losses[BARE]  # it has an order of its own
    with pytest.raises(RuntimeError, match=r"^harness and bare loop computed other losses$"):
        check_same_losses({HARNESS: race.loops[TEXTBOOK], BARE: race.loops[BARE]})


def test_every_loop_is_at_every_position_equally_often() -> None:
    names = [HARNESS, BARE, TEXTBOOK]
    orders = [block_order(names, block) for block in range(6)]
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
    ratio = ratio_of((2 * drift * np.exp(noise)).tolist(), drift.tolist())
    assert ratio.bounds is not None
    low, high = ratio.bounds
    assert low < 0.5 < high < low + 0.005


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
    rates = compare("it", "that", [2.0], [4.0], work=8, unit="samples/s")
    assert "| 4.00 samples/s | 2.00 samples/s | that | 2.0 | 1 |" in rates.line()


def test_results_are_left_with_what_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setenv(ROWS_PATH, str(tmp_path / "rows.json"))
    rows = [compare("it", "that", [1.0, 1.1], [2.0, 2.1], goal=1.0)]
    leave_rows(rows)
    assert read_rows(tmp_path / "rows.json") == rows
    watch = results.Watch()
    path = results.write_results("demo", {"figure": 1}, "a table\n", watch, is_quick=False)
    conditions = json.loads(path.read_text())["conditions"]
    assert conditions.endswith("cores in 2 moments between parts.")
    assert path.with_suffix(".md").read_text() == f"a table\n\n{conditions}\n"
