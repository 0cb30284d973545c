"""The `slurm` section of a cluster profile: what a job asks Slurm for.

The values end up in `#SBATCH` lines of a job script that submitit writes. A line break in one would
begin a line of shell, and a backslash means something to sbatch, so texts are checked character by
character before they get there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

from workloads.options import Between, Count

# `D-` and up to three numbers. What the numbers count depends on how many there are, and on whether
# days are there: see `time_limit`.
TIME = re.compile(
    r"(?:(?P<days>\d+)-)?(?P<leading>\d+)(?::(?P<middle>\d{1,2}))?(?::(?P<trailing>\d{1,2}))?"
)
MEMORY = re.compile(r"\d+[KMGT]?")
OPTION = re.compile(r"[a-z][a-z0-9-]*")  # of sbatch, a long one without its --
# Options of sbatch that `options` may not set -> the profile's key for them, "" where the harness
# decides.
RESERVED_OPTIONS = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "nodes": "nodes",
    "ntasks-per-node": "ranks_per_node", "gpus-per-task": "gpus_per_rank", "gpus-per-node": "gpus_per_rank",
    "cpus-per-task": "cpus_per_rank", "mem": "memory", "time": "time", "exclusive": "exclusive",
    "array": "array_parallelism", "signal": "warning", "requeue": "requeues", "no-requeue": "requeues",
    "export": "environment", "ntasks": "ranks_per_node", "gpus": "gpus_per_rank",
    "clusters": "", "wait": "", "quiet": "", "test-only": "",
    "job-name": "", "output": "", "error": "", "open-mode": "", "wrap": "", "chdir": "", "parsable": "",
}  # fmt: skip
# Keys whose text goes to sbatch as it is.
TEXT_OPTIONS = ("partition", "account", "qos", "constraint", "gpu_type")


def reject_control_characters(key: str, text: str) -> None:
    """Raise ValueError, which begins with `key`, for a line break or another control character.

    No line of a job script may hold one. Unicode's own line breaks count too: editors that show a
    script treat them as ends of lines.
    """
    if not text.isprintable():
        raise ValueError(f"{key}: found {text!r}; allowed: one line of text that can be seen")


def _reject_backslash(key: str, text: str) -> None:
    """Raise ValueError for a backslash, with which sbatch begins its replacement symbols."""
    if "\\" in text:
        raise ValueError(
            f"{key}: found {text!r}; allowed: text without backslashes, which sbatch takes for itself"
        )


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The keys of the section and their defaults; null leaves a choice to the cluster.

    Values are text to Slurm, never to a shell, except `setup`, which is shell.
    """

    partition: str | None = None  # or several, of which Slurm takes one, as in gpu,long
    account: str | None = None  # that the time is charged to
    qos: str | None = None  # quality of service
    constraint: str | None = None  # features that nodes must have, as in a100|h100
    nodes: Count = 1  # the most that one job takes
    ranks_per_node: Count = 1  # one Slurm task each
    gpus_per_rank: Annotated[int, Between(0, 1)] = 0  # a rank computes on one device
    gpu_type: str | None = None  # as in --gres=gpu:TYPE
    cpus_per_rank: Count = 1  # loader workers included
    memory: str | None = None  # of a node, as in 64G
    time: str = "01:00:00"  # a job's limit: minutes, H:MM:SS or D-HH:MM:SS
    exclusive: bool = True  # nobody else on the nodes: a shared node is a noisy one
    array_parallelism: Count = 16  # jobs of one call of sbatch that run at a time
    warning: Count = 90  # seconds before the limit at which running trials save and stop
    # How often an interrupted job goes back into the queue without a trial having ended in it.
    requeues: Annotated[int, Between(0, 100)] = 5
    setup: tuple[str, ...] = ()  # lines of shell, run on the first node before anything else
    python: str | None = None  # the ranks'; null: the one that submits
    # What stands before every rank's Python, as in [apptainer, exec, --nv, image.sif].
    prefix: tuple[str, ...] = ()
    # Every node sees it under this name, and results must be in it. null: not checked.
    shared_folder: Path | None = None
    interface: str | None = None  # network interface of gloo and NCCL, as in ib0
    # Further options of sbatch, without their --; null: an option that takes no value.
    options: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError, which begins with the key, for what the types of the keys allow."""
        # Text that would end a line of the script, or change in sbatch.
        for key in fields(self):
            value = getattr(self, key.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str | Path):
                    reject_control_characters(key.name, str(text))
        for name in TEXT_OPTIONS:
            _reject_backslash(name, getattr(self, name) or "")
        self._check_values()
        for name, value in self.options.items():
            _check_option(name, value)

    def _check_values(self) -> None:
        """Raise ValueError for values that make no sense, alone or together."""
        if self.gpu_type is not None and not self.gpus_per_rank:
            raise ValueError("gpu_type: found without GPUs; allowed: with gpus_per_rank 1")
        if self.memory is not None and not MEMORY.fullmatch(self.memory):
            raise ValueError(
                f"memory: found {self.memory!r}; allowed: a whole number with K, M, G or T, as in 64G"
            )
        if self.time_limit_seconds <= self.warning:
            # The signal would come before the job has begun.
            raise ValueError(
                f"warning: found {self.warning} s; allowed: less than `time`, {self.time_limit_seconds} s"
            )
        if self.shared_folder is not None and not self.shared_folder.is_absolute():
            raise ValueError(
                f"shared_folder: found {str(self.shared_folder)!r}; allowed: a path that begins with /"
            )

    @property
    def max_ranks(self) -> int:
        """Return the most ranks of one job, and so the largest world size."""
        return self.nodes * self.ranks_per_node

    @property
    def time_limit_seconds(self) -> int:
        """Return the time limit of a job in seconds; raises ValueError for text that is none."""
        return time_limit(self.time)


def _check_option(name: str, value: str | None) -> None:
    """Raise ValueError for a further option of sbatch that a profile may not set.

    That is one that has a key in the profile, or that the harness itself needs, such as the output.
    """
    key = f"options.{name}"
    if not OPTION.fullmatch(name):
        raise ValueError(
            f"options: found the name {name!r}; allowed: a long option of sbatch without its --"
        )
    if name in RESERVED_OPTIONS:
        profile_key = RESERVED_OPTIONS[name]
        instead = "nothing, the harness decides it"
        if profile_key:
            instead = f"the profile's key `{profile_key}`"
        raise ValueError(f"{key}: found {value!r}; allowed: {instead}")
    for reserved in RESERVED_OPTIONS:
        if reserved.startswith(name):  # sbatch accepts shortened names too
            raise ValueError(f"{key}: found a part of the name {reserved!r}; allowed: whole names")
    reject_control_characters(key, value or "")
    _reject_backslash(key, value or "")


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
            f"time: found {text!r}; allowed: a limit such as 90 (minutes), 1:30:00 or 2-00:00:00"
        )
    return total
