"""When a measurement is not to be believed: rules with thresholds, broken or kept."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records.record import RankResult, Summary
from harness.spec.validity import ValidityRules

SHORTEST = 1.0  # seconds between two moments, below which their jitter hides any drift of a clock


def violations(ranks: Sequence[RankResult], summary: Summary, rules: ValidityRules) -> list[str]:
    """The rules that a trial broke, each in a line that says who, by how much and what is allowed."""
    found: list[str] = []
    for result in ranks:
        where = f"rank {result.rank} on {result.host}"
        if (seen := result.telemetry) is None:
            continue
        for reason, share in (seen.throttled or {}).items():
            found += _above(share, rules.throttled, f"throttled: {where}: {reason}")
        foreign = seen.foreign_processes or ()
        if rules.foreign_processes is not None and len(foreign) > rules.foreign_processes:
            allowed = f"allowed: {rules.foreign_processes}"
            found.append(f"foreign_processes: {where}: {', '.join(foreign)} on its GPU; {allowed}")
        found += _above(
            seen.shares.get("cpu_steal"), rules.steal, f"steal: {where}: CPU time taken by others"
        )
    found += _above(clock_drift(ranks), rules.clock_drift, "clock_drift: between ranks")
    found += _above(
        summary.shares.get("data_wait"), rules.data_wait, "data_wait: the loader starved"
    )
    return found


def clock_drift(ranks: Sequence[RankResult]) -> float | None:
    """How far the ranks' clocks disagree on the time between two moments that they share; None if not told."""
    elapsed = [
        result.elapsed
        for result in ranks
        if result.elapsed is not None and result.elapsed >= SHORTEST
    ]
    return 1 - min(elapsed) / max(elapsed) if len(elapsed) > 1 else None


def _above(share: float | None, limit: float | None, what: str) -> list[str]:
    if share is None or limit is None or share <= limit:
        return []
    return [f"{what}: found {share:.1%}; allowed: at most {limit:.1%}"]
