"""The limits that make a trial invalid, as a cluster profile sets them.

An invalid trial trained correctly, but on a disturbed machine: its times are unreliable.
`harness.measure.validity` compares a trial with the limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workloads.settings import Between

# A fraction, from 0 to 1.
Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True, kw_only=True)
class ValidityRules:
    """The limits of disturbances, null for no limit, and how often a trial beyond them runs again.

    A figure that could not be measured, such as the throttling of a CPU, breaks no rule.
    """

    # Of the samples of a GPU in which heat or the board slowed it down; not its own power limit.
    throttled: Share | None = 0.05
    foreign_processes: Annotated[int, Between(0)] | None = 0  # of others, on a rank's GPU
    steal: Share | None = 0.05  # of the host's CPU time, taken by others on the same machine
    # Of the time that a rank waited for a core while other programs used at least this much of one.
    contention: Share | None = 0.05
    data_wait: Share | None = 0.9  # of a rank's time: a loader that starved
    reruns: Annotated[int, Between(0, 100)] = 2  # attempts after an invalid first one
