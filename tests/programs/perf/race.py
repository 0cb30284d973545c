"""Loops that train in turn, in windows of half a second, and their ratios; for loops that can't pause.

`tests.programs.perf.turns` has shorter turns for those that can, with greenlets, which a machine with a GPU may not
have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from harness.training.ranks import broadcast_from_rank_0
from tests.programs.perf.loops import Loop, isolated_random

WINDOW_SECONDS = 0.6  # that the fastest loop should train at a time
PLANNED_STEPS = 200_000  # for which learning-rate schedules are made; more than are ever trained
PROBED_STEPS = 20  # in which the length of a window is estimated


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio of samples/s, with a 95% interval by BCa bootstrap over the rounds."""

    mean: float  # geometric
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate_ratio(seconds: Sequence[float], other_seconds: Sequence[float]) -> Ratio:
    """Return how many times as fast as another loop a loop is.

    Both arguments have the seconds of each round for the same work.
    """
    from scipy import stats  # takes a second: tests import this file for other things too

    logs = np.log(other_seconds) - np.log(seconds)
    bootstrap = stats.bootstrap((logs,), np.mean, rng=np.random.default_rng(0))
    interval = bootstrap.confidence_interval
    return Ratio(
        mean=math.exp(logs.mean()), low=math.exp(interval.low), high=math.exp(interval.high)
    )


class Race:
    """Loops that train in turn, each with random numbers of its own."""

    def __init__(self, makers: Mapping[str, Callable[[], Loop]]) -> None:
        self.loops: dict[str, Loop] = {}
        self.seconds: dict[str, list[float]] = {}  # of each window, by the name of the loop
        self.random: dict[str, list[torch.Tensor]] = {}
        for name, make in makers.items():
            self.seconds[name] = []
            self.random[name] = []
            with isolated_random(self.random[name]):
                self.loops[name] = make()

    def run(self, windows: int) -> int:
        """Train so many windows of each loop, and return the steps of a window."""
        for name in self.loops:
            self.train(name, 5)  # warm-up
        fastest = min(self.train(name, PROBED_STEPS) for name in self.loops)
        steps: int = broadcast_from_rank_0(math.ceil(WINDOW_SECONDS * PROBED_STEPS / fastest))
        names = list(self.loops)
        for _ in range(windows):
            for name in names:
                self.seconds[name].append(self.train(name, steps))
            names.reverse()
        return steps

    def train(self, name: str, steps: int) -> float:
        """Train a loop, and return the seconds until all ranks were done."""
        with isolated_random(self.random[name]):
            _wait_for_all_ranks()
            start = time.perf_counter()
            self.loops[name].train(steps)
            _wait_for_all_ranks()
            return time.perf_counter() - start


def _wait_for_all_ranks() -> None:
    """Wait until the GPU, if there is work on one, and all ranks are done."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
