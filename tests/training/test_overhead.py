"""The loops that the harness's cost is measured against: they train the same, in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.perf.overhead import make_assignments, make_race
from tests.perf.race import estimate_ratio
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
    race = make_race(assignment, tmp_path, SINGLE_RANK)
    for window in (2, 1, steps):  # an epoch has 23
        for name in ("harness", "bare", "textbook"):
            race.train(name, window)
    losses = {name: loop.losses for name, loop in race.loops.items()}
    assert len(losses["harness"]) == 3 + steps
    assert losses["harness"] == losses["bare"]
    assert len(losses["textbook"]) == len(losses["bare"])
    assert losses["textbook"] != losses["bare"]  # it has an order of its own


def test_the_ratio_of_known_times() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 40)
    drift = np.linspace(1, 2, 40)  # of the machine, common to both
    ratio = estimate_ratio(list(2 * drift * np.exp(noise)), list(drift))
    assert ratio.low < 0.5 < ratio.high
    assert ratio.high - ratio.low < 0.005
    assert ratio.low <= ratio.mean <= ratio.high
