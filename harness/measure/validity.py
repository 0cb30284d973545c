"""Decides whether a trial's measurement can be believed, by rules with limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.records.record import THROTTLED_SHARE, RankResult
from harness.sweep.cluster import ValidityRules

# Seconds of a trial below which the kernel's clock ticks are too coarse to tell who had the cores.
MIN_TELEMETRY = 1.0
# A GPU that is kept busy runs at its power limit, which is its normal speed: an H200 reported the reason
# in 75% to 100% of the samples of DistilBERT, with its clock within 9% of the highest.
POWER_LIMIT = "sw_power_cap"


def violations(
    ranks: Sequence[RankResult], numbers: Mapping[str, float], rules: ValidityRules
) -> list[str]:
    """Return the rules that a trial violates: for each a line with rank, value and limit.

    What could not be read violates no rule.
    """
    lines: list[str] = []
    for result in ranks:
        telemetry = result.telemetry
        if telemetry is None:
            continue
        rank = f"rank {result.rank} on {result.host}"
        for name, share in telemetry.shares.items():
            reason = name.removeprefix(THROTTLED_SHARE)
            if reason not in (name, POWER_LIMIT):
                lines += _share_above(share, rules.throttled, f"throttled: {rank}: {reason}")
        processes = telemetry.foreign_processes or ()
        limit = rules.foreign_processes
        if limit is not None and len(processes) > limit:
            names = ", ".join(processes)
            lines.append(f"foreign_processes: {rank}: found {names} on its GPU; allowed: {limit}")
        stolen = telemetry.shares.get("cpu_steal")
        lines += _share_above(
            stolen, rules.steal, f"steal: {rank}: CPU time taken by other machines"
        )
        waited = f"contention: {rank}: waited for a core of others"
        lines += _share_above(contention(result, ranks), rules.contention, waited)
    starved = "data_wait: the loader starved"
    return lines + _share_above(numbers.get("data_wait_share"), rules.data_wait, starved)


def contention(result: RankResult, ranks: Sequence[RankResult]) -> float | None:
    """Return the share of the time for which a rank waited for a core that another program had.

    That is how long its main thread was ready and had no core, but no more than the cores that others
    used: ranks may have to share cores among themselves. None if it is unknown, or if the trial was too
    short for the kernel's clock ticks.
    """
    neighbors = [rank.telemetry for rank in ranks if rank.host == result.host]
    telemetry = result.telemetry
    if telemetry is None or telemetry.seconds < MIN_TELEMETRY or "cpu_wait" not in telemetry.shares:
        return None
    cores_of_others = telemetry.shares["host_cpu"]
    for neighbor in neighbors:
        if neighbor is None:
            return None
        cores_of_others -= neighbor.shares.get("process_cpu", 0.0)
    return min(telemetry.shares["cpu_wait"], max(0.0, cores_of_others))


def _share_above(share: float | None, limit: float | None, subject: str) -> list[str]:
    """Return a line about a share that is above its limit, no line otherwise."""
    if share is None or limit is None or share <= limit:
        return []
    return [f"{subject}: found {share:.1%}; allowed: at most {limit:.1%}"]


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
