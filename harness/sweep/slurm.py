"""The `slurm` section of a cluster profile: what a job asks Slurm for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from harness.core.validation import Line
from workloads.settings import Between, Count

# `D-` and up to three numbers. What the numbers count depends on how many there are, and on whether
# days are there: see `time_limit`.
TIME = re.compile(
    r"(?:(?P<days>\d+)-)?(?P<leading>\d+)(?::(?P<middle>\d{1,2}))?(?::(?P<trailing>\d{1,2}))?"
)
# What sbatch gets unless the profile says otherwise. A shared node is a noisy one.
SBATCH_DEFAULTS = {"time": "01:00:00", "exclusive": True}
# Options of sbatch that follow from other keys, or that the harness needs itself.
DECIDED_OPTIONS = re.compile(
    r"nodes|ntasks(_per_node)?|cpus_per_task|gpus_per_task|array|signal|(no_)?requeue|export|job_name"
    r"|output|error|open_mode|wrap|wait|chdir|parsable|quiet|clusters"
)


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The keys of the section and their defaults."""

    nodes: Count = 1  # the most that one job takes
    ranks_per_node: Count = 1  # one Slurm task each
    gpus_per_rank: Annotated[int, Between(0, 1)] = 0  # a rank computes on one device
    cpus_per_rank: Count = 1  # loader workers included
    array_parallelism: Count = 16  # jobs of one call of sbatch that run at a time
    warning: Count = 90  # seconds before the limit at which running trials save and stop
    # How often an interrupted job goes back into the queue without a trial having ended in it.
    requeues: Annotated[int, Between(0, 100)] = 5
    setup: tuple[Line, ...] = ()  # lines of shell, run on the first node before anything else
    python: Line | None = None  # the ranks'; null: the one that submits
    # What stands before every rank's Python, as in [apptainer, exec, --nv, image.sif].
    prefix: tuple[Line, ...] = ()
    # Options of sbatch by their long names, over SBATCH_DEFAULTS: true is an option without a value,
    # false or null one that is left out.
    sbatch: dict[Line, Line | int | bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError, which begins with the key, for what the types of the keys allow."""
        for name, value in self.sbatch.items():
            if DECIDED_OPTIONS.fullmatch(name.replace("-", "_")):
                problem = f"found {value!r}; allowed: options that the harness does not decide"
                raise ValueError(f"sbatch.{name}: {problem}")
        if self.time_limit_seconds <= self.warning:
            limit = f"the time limit, {self.time_limit_seconds} s"
            raise ValueError(f"warning: found {self.warning} s; allowed: less than {limit}")

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of sbatch that are set, by their names with underscores."""
        options: dict[str, Any] = dict(SBATCH_DEFAULTS)
        for name, value in self.sbatch.items():
            options[name.replace("-", "_")] = value
        return {
            name: value
            for name, value in options.items()
            if value is not None and value is not False
        }

    @property
    def max_ranks(self) -> int:
        """Return the most ranks of one job, and so the largest world size."""
        return self.nodes * self.ranks_per_node

    @property
    def time_limit_seconds(self) -> int:
        """Return the time limit of a job in seconds; raises ValueError for text that is none."""
        return time_limit(str(self.options.get("time", "")))


def time_limit(text: str) -> int:
    """Return the seconds of a time limit as sbatch reads it.

    Raises ValueError for text that is none. The forms are `minutes`, `minutes:seconds`,
    `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` and `days-hours:minutes:seconds`
    (man sbatch, --time).
    """
    match = TIME.fullmatch(text)
    total = 0
    if match is not None:
        parts = [int(part) for part in match.group("leading", "middle", "trailing") if part]
        if match["days"] is None and len(parts) < 3:  # they begin with minutes
            parts.insert(0, 0)
        hours, minutes, seconds = [*parts, 0, 0][:3]
        total = ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if total <= 0:
        raise ValueError(
            f"sbatch.time: found {text!r}; allowed: a limit such as 90 (minutes), 1:30:00 or 2-00:00:00"
        )
    return total
