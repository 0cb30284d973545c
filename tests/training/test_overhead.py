"""The loops that the harness's cost is measured against: they train the same, in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.programs.perf import results
from tests.programs.perf.comparison import compare, ratio_of
from tests.programs.perf.overhead import (
    BARE,
    HARNESS,
    TEXTBOOK,
    bench_assignments,
    check_same_losses,
    loop_makers,
)
from tests.programs.perf.race import Race
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
    assignment = bench_assignments(tmp_path, SINGLE_RANK)[workload]
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


def test_the_ratio_of_known_times() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 40)
    drift = np.linspace(1, 2, 40)  # of the machine, common to both
    ratio = ratio_of((2 * drift * np.exp(noise)).tolist(), drift.tolist())
    assert ratio.bounds is not None
    low, high = ratio.bounds
    assert low < 0.5 < high < low + 0.005


@pytest.mark.parametrize(
    ("seconds", "goal", "goal_low", "reached"),
    [
        ([1.0, 1.0], 2.0, 0.0, "met"),
        ([1.0, 1.1], 2.0, 0.0, "not met"),  # 1.9 times as fast
        ([0.8, 1.2], 1.9, 1.9, "not met"),  # the mean reaches it, the interval does not
        ([1.0, 1.0], None, 0.0, ""),
    ],
)
def test_a_goal_is_met_by_the_mean_and_by_the_lower_bound(
    seconds: list[float], goal: float | None, goal_low: float, reached: str
) -> None:
    row = compare("it", "that", seconds, [2.0, 2.0], goal=goal, goal_low=goal_low)
    assert (row["reached"], row["takes"], row["n"]) == (reached, "2.00 s", "2")
    rates = results.markdown([compare("it", "that", [2.0], [4.0], work=8)])
    assert "| it | 4.00 samples/s | that | 2.00 samples/s | 2.0 | 1 |  |  |\n" in rates
