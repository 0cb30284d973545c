"""The rules of a race: which cells of a sweep are worth another trial, decided after every block.

`race:` of a sweep file, or `harness run --race` with the defaults:

    race: {metric: throughput, reach: 0.95, keep: 1, error_rate: 5%}

The decisions are made by `harness.launch.race`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from workloads.options import Between, Count

# By what cells race: samples/s, the seconds of a whole trial, or the target metric at the end.
RaceMetric = Literal["throughput", "time", "target"]


@dataclass(frozen=True, kw_only=True)
class RaceRules:
    """What a race asks: which cells of each workload are the best by a metric."""

    metric: RaceMetric = "throughput"
    reach: float | None = None  # a value of the target metric, without which a cell can't win
    keep: Count = 1  # cells of each workload that the race is over with
    # The probability that any cell leaves that is one of the `keep` best, over all cells and looks.
    error_rate: Annotated[float, Between(1e-6, 0.5)] = 0.05

    @property
    def needs_seeds(self) -> bool:
        """Whether a repeat of a seed says nothing: what was learned depends on the seed alone."""
        return self.metric == "target" or self.reach is not None
