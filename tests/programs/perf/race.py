"""Loops that train in turn, in windows of about a second, and how they differ."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from harness.training.ranks import broadcast_from_rank_0
from tests.programs.perf.loops import Loop, isolated_random

WINDOW_SECONDS = 1.0  # that the fastest loop should train at a time
PLANNED_STEPS = 200_000  # for which learning-rate schedules are made; more than are ever trained
WARMUP_STEPS = 5
PROBED_STEPS = 20  # in which the length of a window is estimated

Makers = Mapping[str, Callable[[], Loop]]  # what makes each loop, by its name


class Race:
    """Loops that train in turn, each with random numbers of its own."""

    def __init__(self, makers: Makers) -> None:
        self.loops: dict[str, Loop] = {}
        self.seconds: dict[str, list[float]] = {}  # of each window, by the name of the loop
        self.random: dict[str, list[torch.Tensor]] = {}
        for name, make in makers.items():
            self.seconds[name] = []
            self.random[name] = []
            with isolated_random(self.random[name]):
                self.loops[name] = make()

    def run(self, windows: int, steps: int | None = None) -> int:
        """Train so many windows of each loop, forth and back, and return the steps of a window."""
        for name in self.loops:
            self.train(name, WARMUP_STEPS)
        if steps is None:
            fastest = min(self.train(name, PROBED_STEPS) for name in self.loops)
            steps = broadcast_from_rank_0(math.ceil(WINDOW_SECONDS * PROBED_STEPS / fastest))
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


def block_order(names: Sequence[str], block: int) -> list[str]:
    """Return the order in which the loops of a block are built and take turns.

    A loop is up to 2% slower for being built first, or for following another one. So each is at each
    position equally often in twice as many blocks as there are loops.
    """
    rounds, shift = divmod(block, len(names))
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if rounds % 2 else order


def run_blocks(
    make_loops: Callable[[int], Makers],
    blocks: int,
    check: Callable[[Mapping[str, Loop]], None],
) -> tuple[int, dict[str, list[float]]]:
    """Return the steps of a block, and the seconds of each block by the name of the loop.

    Loops are built anew for each block, since where their memory lies can make one faster than another
    of the same code. `check` looks at the loops of each block once they are done.
    """
    steps = None
    totals: dict[str, list[float]] = {}
    for block in range(blocks):
        makers = make_loops(block)
        race = Race({name: makers[name] for name in block_order(list(makers), block)})
        steps = race.run(2, steps)
        check(race.loops)
        for name in makers:
            totals.setdefault(name, []).append(sum(race.seconds[name]))
    return 2 * (steps or 0), totals


def _wait_for_all_ranks() -> None:
    """Wait until the GPU, if there is work on one, and all ranks are done."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
