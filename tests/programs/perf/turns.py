"""Loops that take turns of some hundredths of a second in one process.

The speed of a machine drifts within seconds, by more than loops differ. So each loop runs in a
greenlet, which pauses before a batch: it goes on there in its next turn, whatever it was about to do,
and keeps its own generators of random numbers. Loops are built anew for each block, since where their
memory lies can make one faster than another of the same code.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from greenlet import getcurrent, greenlet

from harness.training import train
from harness.training.ranks import broadcast_from_rank_0
from tests.programs.perf.loops import Harness, Loop, isolated_random
from tests.programs.perf.race import PLANNED_STEPS

TURN_SECONDS = 0.03
MIN_TURN_STEPS = 3  # after the first, which finds the caches as another loop has left them
BLOCK_SECONDS = 0.5  # of training of each loop
WARMUP_STEPS = 5
PROBED_STEPS = 10  # in which the length of a turn is estimated
CALIBRATION = 0  # the number of the block that does not count


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long turns are, the same for all loops and at all ranks."""

    turn_steps: int
    turns: int  # of each loop in a block, an even number
    segment_steps: int  # of the harness's loop, which has something to do after each segment

    @property
    def steps(self) -> int:
        """Return the steps of each loop in a block."""
        return self.turn_steps * self.turns


@dataclass(frozen=True, kw_only=True)
class Times:
    """The seconds of each block by the name of the loop."""

    steps: int  # of each loop in a block
    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)  # of all threads of the process


class PausedLoop:
    """A loop in a greenlet of its own, which trains while it is its turn."""

    def __init__(self, make: Callable[[], Loop]) -> None:
        self._random: list[torch.Tensor] = []
        with isolated_random(self._random):
            self.loop = make()
        self._steps_left = 0
        self._race = getcurrent()
        _pause_before_batches(self.loop, self._pause)
        self._training = greenlet(partial(self.loop.train, PLANNED_STEPS))

    def _pause(self) -> None:
        """Let others take their turn once this one has had its steps."""
        if not self._steps_left:
            self._race.switch()
        self._steps_left -= 1

    def train(self, steps: int) -> tuple[float, float]:
        """Train so many more steps; return the seconds and the CPU seconds."""
        self._steps_left = steps
        with isolated_random(self._random):
            if dist.is_initialized():
                dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            self._training.switch()
            return time.perf_counter() - wall, time.process_time() - cpu

    def end(self) -> None:
        """Leave the loop where it is."""
        self._training.throw()


class _PausingBatches:
    """Batches before each of which `pause` is called."""

    def __init__(self, batches: Iterable[Any], pause: Callable[[], None]) -> None:
        self._batches = batches
        self._pause = pause

    def __iter__(self) -> Iterator[Any]:
        return _PausingIterator(iter(self._batches), self._pause)


class _PausingIterator(Iterator[Any]):
    def __init__(self, batches: Iterator[Any], pause: Callable[[], None]) -> None:
        self._batches = batches
        self._pause = pause

    def __next__(self) -> Any:
        self._pause()
        return next(self._batches)


def _pause_before_batches(loop: Any, pause: Callable[[], None]) -> None:
    """Have `pause` called before each batch that a loop takes."""
    if isinstance(loop, Harness):
        parts = loop.trainer.parts
        parts.loader = _PausingBatches(parts.loader, pause)
    else:
        loop.batches = iter(_PausingBatches(loop.batches, pause))


def take_turns(
    make_loops: Callable[[int], Mapping[str, Callable[[], Loop]]],
    blocks: int,
    check: Callable[[Mapping[str, PausedLoop]], None],
) -> Times:
    """Return what each loop needs in so many blocks.

    `make_loops` returns what makes the loops of a block, by name, given its number; `check` looks
    at the loops of each block once they are done.
    """
    plan = _calibrate(make_loops(CALIBRATION))
    times = Times(steps=plan.steps)
    for number in range(1, blocks + 1):
        made = make_loops(number)
        makers = {name: made[name] for name in block_order(list(made), number)}
        # Segments end at other steps in each block, so that blocks have as many ends as trainings.
        share = (number - 0.5) / blocks
        segment_steps = max(1, round(share * plan.segment_steps))
        for name, (wall, cpu) in _run_block(makers, plan, segment_steps, check).items():
            times.wall.setdefault(name, []).append(wall)
            times.cpu.setdefault(name, []).append(cpu)
    return times


def block_order(names: Sequence[str], block: int) -> list[str]:
    """Return the order in which the loops of a block are built and take turns.

    A loop is up to 2% slower for being built first, or for following another one. So each is at each
    position equally often in twice as many blocks as there are loops. Blocks are counted from 1.
    """
    rounds, shift = divmod(block - 1, len(names))
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if rounds % 2 else order


def _calibrate(makers: Mapping[str, Callable[[], Loop]]) -> Plan:
    """Return how many steps fill a turn and a segment, and how many turns a block."""
    step_seconds: dict[str, float] = {}
    for name, make in makers.items():
        loop = PausedLoop(make)
        loop.train(WARMUP_STEPS)
        step_seconds[name] = loop.train(PROBED_STEPS)[0] / PROBED_STEPS
        loop.end()
    slowest, of_harness = max(step_seconds.values()), step_seconds["harness"]
    turn_steps = max(MIN_TURN_STEPS, round(TURN_SECONDS / slowest))
    turns = 2 * math.ceil(BLOCK_SECONDS / (turn_steps * slowest) / 2)
    segment_steps = math.ceil(train.SEGMENT_SECONDS / of_harness)
    turn_steps, turns, segment_steps = broadcast_from_rank_0([turn_steps, turns, segment_steps])
    return Plan(turn_steps=turn_steps, turns=turns, segment_steps=segment_steps)


def _run_block(
    makers: Mapping[str, Callable[[], Loop]],
    plan: Plan,
    segment_steps: int,
    check: Callable[[Mapping[str, PausedLoop]], None],
) -> dict[str, tuple[float, float]]:
    """Return the seconds and CPU seconds of each loop in one block."""
    loops = {name: PausedLoop(make) for name, make in makers.items()}
    spent = dict.fromkeys(loops, (0.0, 0.0))
    # The clock of a segment runs on while others take their turn.
    segment_seconds = len(loops) * train.SEGMENT_SECONDS
    with patch.object(train, "SEGMENT_SECONDS", segment_seconds), _frozen_heap():
        for paused in loops.values():
            if isinstance(paused.loop, Harness):
                paused.loop.trainer.segment_steps = segment_steps
            paused.train(WARMUP_STEPS)
        names = list(loops)
        for _ in range(plan.turns):
            for name in names:
                wall, cpu = loops[name].train(plan.turn_steps)
                spent[name] = (spent[name][0] + wall, spent[name][1] + cpu)
            names.reverse()
    check(loops)
    for paused in loops.values():
        paused.end()
    return spent


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Keep what is there from Python's garbage collection, whose turn it would be at random."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
