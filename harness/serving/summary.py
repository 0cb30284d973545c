"""Summarizes latencies: quantiles with intervals, over the calls after the warm-up.

Bounds are order statistics (`harness.statistics.quantile`), so that no shape is assumed for the
distribution of latencies, which has a long tail. They hold for calls that are independent of each
other; where `settled` is not true, calls were still changing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.measure.steady import Steady, find_steady
from harness.records.series import Numbers
from harness.serving.record import EAGER, ArmTimes, LatencyGroup
from harness.statistics.quantile import Quantile, quantile

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class ArmLatency:
    """The latency of one way to run the model, in seconds."""

    arm: str
    batch_size: int
    threads: int
    quantiles: dict[str, Quantile]  # by the names of QUANTILES
    # The median over rounds of eager mode's time over this; None for eager.
    speedup: Quantile | None
    calls: int  # that count
    warmup: int  # rounds before them
    settled: bool | None  # whether calls became steady; None: too few to tell
    load_seconds: float
    first_call_seconds: float


def summarize_group(group: LatencyGroup) -> list[ArmLatency]:
    """Return the latency of each arm of a group.

    All arms are measured in the same rounds, starting when the last of them is steady. An arm that
    never becomes steady does not delay the others.
    """
    seconds = {arm.arm: np.asarray(arm.nanoseconds, dtype=np.float64) / 1e9 for arm in group.arms}
    steady = {name: find_steady(values) for name, values in seconds.items()}
    steady_from = max(part.first_step for part in steady.values())
    return [_summarize(group, arm, seconds, steady[arm.arm], steady_from) for arm in group.arms]


def summarize_groups(groups: Sequence[LatencyGroup]) -> list[ArmLatency]:
    """Return the latencies of all groups, in their order."""
    return [row for group in groups for row in summarize_group(group)]


def _summarize(
    group: LatencyGroup,
    arm: ArmTimes,
    seconds: dict[str, Numbers],
    steady: Steady,
    steady_from: int,
) -> ArmLatency:
    """Return the latency of one arm from round `steady_from` on."""
    measured = seconds[arm.arm][steady_from:]
    speedup = None
    if arm.arm != EAGER:
        speedup = quantile(seconds[EAGER][steady_from:] / measured, 0.5)
    return ArmLatency(
        arm=arm.arm,
        batch_size=group.batch_size,
        threads=group.threads,
        quantiles={name: quantile(measured, share) for name, share in QUANTILES.items()},
        speedup=speedup,
        calls=len(measured),
        warmup=steady_from,
        settled=steady.settled,
        load_seconds=arm.load_seconds,
        first_call_seconds=arm.first_call_seconds,
    )
