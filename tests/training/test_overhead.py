"""The loops that the harness's own cost is measured against: they train the same, and a ratio says who is faster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.training.ranks import Ranks
from tests.perf.overhead import assignments, ratio, run_paired

ALONE = Ranks(rank=0, local_rank=0, world_size=1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("at", "steps"), [(0, 25), (1, 2)], ids=["mlp", "cnn with a schedule"])
def test_harness_and_bare_loop_compute_the_same_bits_in_turn(
    tmp_path: Path, at: int, steps: int
) -> None:
    race = run_paired(assignments(tmp_path, None, ALONE)[at], tmp_path, ALONE)
    for block in (2, 1, steps):  # an epoch has 23
        for name in ("harness", "bare", "textbook"):
            race.train(name, block)
    losses = {name: loop.losses for name, loop in race.loops.items()}
    assert len(losses["harness"]) == 3 + steps
    assert losses["harness"] == losses["bare"]
    assert len(losses["textbook"]) == len(losses["bare"])
    assert losses["textbook"] != losses["bare"]  # it has an order of its own


def test_the_ratio_of_known_times() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 40)
    drift = np.linspace(1, 2, 40)  # of the machine, common to both
    found = ratio(list(2 * drift * np.exp(noise)), list(drift))
    assert found.low < 0.5 < found.high
    assert found.high - found.low < 0.005
    assert found.low <= found.mean <= found.high
