"""The limits that make a trial invalid, as a cluster profile sets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workloads.options import Between, Strict

Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True, kw_only=True)
class ValidityRules(Strict):
    """The most that a trial may see, null for no limit, and how often a trial that saw more runs again."""

    throttled: Share | None = 0.05  # of the samples of a GPU in which it was throttled
    foreign_processes: Annotated[int, Between(0)] | None = 0  # on a GPU
    steal: Share | None = 0.05  # of the host's CPU time, taken by others on the same machine
    clock_drift: Share | None = 0.01  # between the clocks of two ranks
    data_wait: Share | None = 0.9  # of a rank's time: a loader that starved
    reruns: Annotated[int, Between(0, 100)] = 2
