"""Times a single call, in repeats of many calls, so long that interruptions matter little."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from harness.hardware.machine import Timing

MIN_REPEATS = 3
ENOUGH_SECONDS = 1.0  # once the repeats have taken that long, MIN_REPEATS are enough
MAX_GROWTH = 100  # by which the number of calls grows at once

# Makes so many calls and returns the seconds that they took.
Run = Callable[[int], float]


def repeat(run: Run, *, repeats: int, min_seconds: float) -> Timing:
    """Warm up, then time `repeats` repeats of as many calls as take at least `min_seconds`.

    If an interruption made a few calls look long, a later repeat is shorter than `min_seconds`.
    Then all repeats begin again with more calls.
    """
    run(1)  # a first call may load libraries or allocate memory
    calls = 1
    spans: list[float] = []  # seconds of each repeat
    while not _is_enough(spans, repeats):
        seconds = run(calls)
        if seconds >= min_seconds:
            spans.append(seconds)
        else:
            calls = _more_calls(calls, seconds, min_seconds)
            spans = []
    return Timing(calls=calls, seconds=[span / calls for span in spans])


def _is_enough(spans: list[float], repeats: int) -> bool:
    """Return whether no further repeat is needed."""
    if len(spans) >= repeats:
        return True
    return len(spans) >= MIN_REPEATS and sum(spans) >= ENOUGH_SECONDS


def _more_calls(calls: int, seconds: float, min_seconds: float) -> int:
    """Return how many calls should take a tenth more than `min_seconds`, if `calls` took `seconds`.

    The number at least doubles, so that the search ends, and grows at most by MAX_GROWTH, as the
    clock cannot resolve very short times.
    """
    proportional = math.ceil(1.1 * calls * min_seconds / max(seconds, 1e-9))
    return max(2 * calls, min(MAX_GROWTH * calls, proportional))


def runner(call: Callable[[], object], device: torch.device) -> Run:
    """Return what times repeated calls: by events on a GPU, by the monotonic clock elsewhere."""

    def run_on_host(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - began

    def run_on_gpu(calls: int) -> float:
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3  # it returns milliseconds

    return run_on_gpu if device.type == "cuda" else run_on_host
