"""Decides whether a trial's measurement can be believed, by rules with limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.measure.numbers import telemetry_numbers
from harness.records.record import RankResult

if TYPE_CHECKING:
    from harness.sweep.cluster import ValidityRules

PERCENT, COUNT = "{:.1%}", "{:.0f}"


def violations(
    ranks: Sequence[RankResult], numbers: Mapping[str, float], rules: ValidityRules
) -> list[str]:
    """Return the rules that a trial violates: for each a line with rank, value and limit.

    What could not be read violates no rule.
    """
    lines = []
    for result in ranks:
        rank = f"rank {result.rank} on {result.host}"
        found = telemetry_numbers(result.telemetry)
        throttled, foreign = found.get("gpu_throttled"), found.get("gpu_foreign_processes")
        lines += _above(throttled, rules.throttled, f"throttled: {rank}: by heat or its board")
        subject = f"foreign_processes: {rank}: of others on its GPU"
        lines += _above(foreign, rules.foreign_processes, subject, COUNT)
        subject = f"steal: {rank}: CPU time taken by other machines"
        lines += _above(found.get("cpu_steal"), rules.steal, subject)
        subject = f"contention: {rank}: waited for a core of others"
        lines += _above(contention(result, ranks), rules.contention, subject)
    starved = "data_wait: the loader starved"
    return lines + _above(numbers.get("data_wait_share"), rules.data_wait, starved)


def contention(result: RankResult, ranks: Sequence[RankResult]) -> float | None:
    """Return the share of the time for which a rank waited for a core that another program had.

    That is how long its main thread was ready and had no core, but no more than the cores that others
    used: ranks may have to share cores among themselves. None if it is unknown.
    """
    shares = result.telemetry.shares
    if "cpu_wait" not in shares:
        return None
    cores_of_others = shares["host_cpu"]
    for rank in ranks:
        if rank.host == result.host:
            # If what a rank used is unknown, as of one that failed, it may have been all.
            cores_of_others -= rank.telemetry.shares.get("process_cpu", math.inf)
    return min(shares["cpu_wait"], max(0.0, cores_of_others))


def _above(
    value: float | None, limit: float | None, subject: str, shown: str = PERCENT
) -> list[str]:
    """Return a line about a value that is above its limit, no line otherwise."""
    if value is None or limit is None or value <= limit:
        return []
    return [f"{subject}: found {shown.format(value)}; allowed: at most {shown.format(limit)}"]


def load_of_others() -> float | None:
    """Return how many threads of other programs want a core, None where the kernel does not say.

    That is the load of the last minute, or how many want one right now if those are fewer: what has
    just ended no longer disturbs.
    """
    try:
        minute, _, _, tasks, *_ = Path("/proc/loadavg").read_text(encoding="ascii").split()
        now = int(tasks.partition("/")[0]) - 1  # without this one
        return min(float(minute), float(now))
    except (OSError, ValueError):
        return None
