"""Timing one call by itself: repeats of many calls, long enough that the clock and the odd interruption are small."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from harness.hardware.machine import Timing

FEWEST = 3  # repeats
PATIENCE = 1.0  # seconds

Run = Callable[[int], float]  # makes so many calls and gives their seconds


def repeat(run: Run, *, repeats: int, least: float) -> Timing:
    """Warm up, then time as many calls as take `least` seconds, `repeats` times.

    An interruption makes few calls look long: a repeat that is shorter than `least` shows it, and all begin again with
    more calls. Once the repeats have taken PATIENCE, FEWEST are enough.
    """
    run(1)
    calls, spans = 1, list[float]()
    while len(spans) < repeats and (len(spans) < FEWEST or sum(spans) < PATIENCE):
        spans.append(run(calls))
        if spans[-1] < least:
            calls = max(
                2 * calls, min(100 * calls, math.ceil(1.1 * calls * least / max(spans[-1], 1e-9)))
            )
            spans.clear()
    return Timing(calls=calls, seconds=[span / calls for span in spans])


def runner(call: Callable[[], object], device: torch.device) -> Run:
    """By events on a GPU, by the monotonic clock elsewhere."""

    def on_host(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - began

    def on_gpu(calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return on_gpu if device.type == "cuda" else on_host
