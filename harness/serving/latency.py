"""Times calls of a model in several ways, in turn, so that all meet the same conditions.

In each round, every arm is called once with the same inputs, in an order that is drawn anew. What
slows the machine down for a while so strikes all arms, and no arm always follows the same other.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.serving.calls import Inputs
from harness.serving.record import ArmTimes, LatencyGroup

# Runtimes keep their threads spinning for a while after a call, so that the next one starts sooner.
# They would take the cores from another runtime's call. This many seconds let them go to sleep.
PAUSE = 0.003
SEED = 0  # of the order of arms

Call = Callable[..., Any]


@dataclass(frozen=True)
class LatencyArm:
    """One way to run a model."""

    name: str
    call: Call
    load_seconds: float


@torch.inference_mode()
def measure(
    arms: Sequence[LatencyArm],
    batches: Sequence[Inputs],
    *,
    batch_size: int,
    threads: int,
    calls: int,
    seconds: float,
    device: torch.device,
) -> LatencyGroup:
    """Call all arms in turn, round by round; return how long each call took.

    The first call of each is timed by itself. Rounds go through `batches` over
    and over, until there are `calls` of them or `seconds` are over.
    """
    synchronize = torch.cuda.synchronize if device.type == "cuda" else _do_nothing
    pause = PAUSE if threads > 1 else 0.0
    first_seconds = {}
    for arm in arms:
        first_seconds[arm.name] = _time_call(arm.call, batches[0], synchronize) / 1e9
    times: dict[str, list[int]] = {arm.name: [] for arm in arms}
    order = list(arms)
    draw = random.Random(SEED)
    deadline = time.monotonic() + seconds
    gc.collect()
    gc.disable()  # as `timeit` does
    try:
        for number in range(calls):
            if time.monotonic() > deadline:
                break
            draw.shuffle(order)
            for arm in order:
                time.sleep(pause)
                inputs = batches[number % len(batches)]
                times[arm.name].append(_time_call(arm.call, inputs, synchronize))
    finally:
        gc.enable()
    return LatencyGroup(
        batch_size=batch_size,
        threads=threads,
        arms=[
            ArmTimes(
                arm=arm.name,
                load_seconds=arm.load_seconds,
                first_call_seconds=first_seconds[arm.name],
                nanoseconds=times[arm.name],
            )
            for arm in arms
        ],
    )


def _time_call(call: Call, inputs: Inputs, synchronize: Callable[[], object]) -> int:
    """Return how many nanoseconds a call takes, until the device has its result."""
    started = time.perf_counter_ns()
    call(*inputs)
    synchronize()
    return time.perf_counter_ns() - started


def _do_nothing() -> None:
    """Wait for nothing: a call on the CPU has its result when it returns."""
