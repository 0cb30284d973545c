"""When trials save checkpoints to resume from: the key `checkpoint` of sweeps, and intervals.

An interval is written `10m`, `500 steps`, `auto` or `never`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from harness.core.errors import BadInput
from harness.core.text import parse_duration
from harness.core.validation import shown
from harness.spec.cell import Cell
from workloads.options import Between

AUTO, NEVER = "auto", "never"
STEPS = re.compile(r"([1-9][0-9]{0,8}) *steps?")
DEFAULT_MEAN_TIME_BETWEEN_FAILURES = "24h"
SHORTEST_AUTOMATIC_INTERVAL = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class SaveRules:
    """When the trials of a sweep save checkpoints to resume from."""

    # How far apart checkpoints to resume from are; null: auto under Slurm, otherwise never.
    every: str | None = None
    keep: Annotated[int, Between(1, 1000)] = 2  # of these checkpoints, the newest

    def __post_init__(self) -> None:
        """Raise ValueError for an interval that is none."""
        if self.every is None:
            return
        try:
            parse_interval(self.every)
        except ValueError as error:
            raise ValueError(f"every: {error}") from None


@dataclass(frozen=True, kw_only=True)
class CheckpointRules(SaveRules):
    """The key `checkpoint` of a sweep file."""

    best: bool = False  # whether the parameters of the best evaluation are kept


@dataclass(frozen=True, kw_only=True)
class SavePlan:
    """How the ranks of a trial save checkpoints to resume from."""

    every: str  # an interval; not never
    keep: Annotated[int, Between(1)]
    mean_seconds_between_failures: Annotated[float, Between(1)]


@dataclass(frozen=True)
class SaveInterval:
    """A number of steps, or of seconds; neither is set where the costs of saving decide."""

    steps: int | None = None
    seconds: float | None = None


def parse_interval(text: str) -> SaveInterval | None:
    """Return the interval that a text stands for, None for never; raises ValueError."""
    if text in (AUTO, NEVER):
        return SaveInterval() if text == AUTO else None
    steps = STEPS.fullmatch(text)
    if steps is not None:
        return SaveInterval(steps=int(steps[1]))
    try:
        return SaveInterval(seconds=parse_duration(text, "", at_least=1.0))
    except BadInput:
        raise ValueError(
            f"found {shown(text)}; allowed: a time such as 10m, steps such as 500 steps,"
            f" {AUTO} or {NEVER}"
        ) from None


def parse_time_between_failures(text: str) -> float:
    """Return the seconds of a text such as `24h`; raises ValueError."""
    try:
        return parse_duration(text, "", at_least=1.0)
    except BadInput:
        raise ValueError(f"found {shown(text)}; allowed: a time such as 30m or 24h") from None


def automatic_interval(cost: float, mean_seconds_between_failures: float) -> float:
    """Return the seconds between two saves that lose the least time, if a save costs `cost` seconds.

    That is the square root of 2 C M of Young 1974 (doi:10.1145/361147.361115), which is also the
    first term of Daly 2006 (doi:10.1016/j.future.2004.11.016); but a minute at least.
    """
    interval = math.sqrt(2 * cost * mean_seconds_between_failures)
    return max(SHORTEST_AUTOMATIC_INTERVAL, interval)


def save_plan(
    rules: SaveRules,
    cell: Cell,
    launcher: str,
    mean_time_between_failures: str = DEFAULT_MEAN_TIME_BETWEEN_FAILURES,
) -> SavePlan | None:
    """Return how a trial of a cell saves, None for never; a script saves what it saves."""
    if cell.workload.is_script:
        return None
    every = rules.every or (AUTO if launcher == "slurm" else NEVER)
    if every == NEVER:
        return None
    return SavePlan(
        every=every,
        keep=rules.keep,
        mean_seconds_between_failures=parse_time_between_failures(mean_time_between_failures),
    )
