"""When trials save checkpoints to resume from: the key `checkpoint` of sweeps."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated

from harness.core.errors import BadInput
from harness.core.text import parse_duration
from harness.core.validation import shown
from workloads.settings import Between

NEVER = "never"
DEFAULT_OF_JOBS = "10m"  # a job may end at any moment
STEPS = re.compile(r"([1-9][0-9]{0,8}) *steps?")


@dataclass(frozen=True, kw_only=True)
class CheckpointRules:
    """The key `checkpoint` of a sweep file: which checkpoints are saved, and how many are kept."""

    # `10m`, `500 steps` or `never`; null: 10m under Slurm, otherwise never.
    every: str | None = None
    keep: Annotated[int, Between(1, 1000)] = 2  # the newest of these checkpoints
    best: bool = False  # whether the parameters of the best evaluation are kept

    def __post_init__(self) -> None:
        """Raise ValueError for an interval that is none."""
        try:
            _ = self.seconds
        except BadInput:
            allowed = f"a time such as 10m, steps such as 500 steps, or {NEVER}"
            raise ValueError(f"every: found {shown(self.every)}; allowed: {allowed}") from None

    @property
    def steps(self) -> int | None:
        """Return the interval in steps, None if it is one of time."""
        match = STEPS.fullmatch(self.every or "")
        return None if match is None else int(match[1])

    @property
    def seconds(self) -> float | None:
        """Return the interval in seconds, None if it is no time; raises BadInput for no interval."""
        if self.every in (None, NEVER) or self.steps is not None:
            return None
        return parse_duration(str(self.every), "", at_least=1.0)

    def of(self, launcher: str, *, is_script: bool) -> CheckpointRules | None:
        """Return the interval of a trial, None for never; a script saves what it saves."""
        every = self.every or (DEFAULT_OF_JOBS if launcher == "slurm" else NEVER)
        return None if is_script or every == NEVER else replace(self, every=every)
