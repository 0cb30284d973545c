"""The `slurm` section of a cluster profile: what a job asks Slurm for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from workloads.options import Between, Count, Strict

TIME = re.compile(
    r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?"
)
MEMORY = re.compile(r"(?P<number>\d+)(?P<unit>[KMGT]?)")
MEBIBYTES = {
    "K": 1 / 1024,
    "": 1,
    "M": 1,
    "G": 1024,
    "T": 1024**2,
}  # Slurm counts in MiB where no unit is given
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OPTION = re.compile(r"[a-z][a-z0-9-]*")
OURS = {  # what sbatch calls that for which there is a key, or which the harness decides
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "nodes": "nodes",
    "ntasks-per-node": "ranks_per_node", "gpus-per-task": "gpus_per_rank", "gpus-per-node": "gpus_per_rank",
    "cpus-per-task": "cpus_per_rank", "mem": "memory", "time": "time", "exclusive": "exclusive",
    "array": "array_parallelism", "signal": "warning", "requeue": "requeues", "no-requeue": "requeues",
    "export": "environment", "ntasks": "ranks_per_node", "gpus": "gpus_per_rank",
    "clusters": "", "wait": "", "quiet": "", "test-only": "",
    "job-name": "", "output": "", "error": "", "open-mode": "", "wrap": "", "chdir": "", "parsable": "",
}  # fmt: skip


def reject_control_characters(what: str, text: str) -> None:
    """Raises ValueError for a line break or another control character: no shell or script line may hold one."""
    found = next((sign for sign in text if unicodedata.category(sign) in ("Cc", "Zl", "Zp")), None)
    if found is not None:
        raise ValueError(
            f"{what}: found {text!r}, with the character {found!r}; allowed: one line of text"
        )


def reject_invalid_names(what: str, names: Mapping[str, Any]) -> None:
    """Raises ValueError for a name that no environment variable can have."""
    wrong = next((name for name in names if not VARIABLE.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(
            f"{what}: found the name {wrong!r}; allowed: letters, digits and _, no digit first"
        )


def _refuse_backslash(what: str, text: str) -> None:
    if "\\" in text:
        raise ValueError(
            f"{what}: found {text!r}; allowed: text without backslashes, which sbatch takes for itself"
        )


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(Strict):
    """Keys and their defaults; null leaves a choice to the cluster. Values are text to Slurm, never to a shell,
    except `setup`, which is shell."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None  # features that nodes must have, as in a100|h100
    nodes: Count = 1  # the most that one job takes
    ranks_per_node: Count = 1  # one Slurm task each
    gpus_per_rank: Annotated[int, Between(0, 1)] = 0
    gpu_type: str | None = None  # as in --gres=gpu:TYPE
    cpus_per_rank: Count = 1  # loader workers included
    memory: str | None = None  # of a node, as in 64G
    time: str = "01:00:00"  # a job's limit: minutes, H:MM:SS or D-HH:MM:SS
    exclusive: bool = True  # nobody else on the nodes: a shared node is a noisy one
    array_parallelism: Count = 16  # jobs of one call of sbatch that run at a time
    warning: Count = 90  # seconds before the limit at which running trials save and stop
    requeues: Annotated[int, Between(0, 100)] = (
        5  # how often an interrupted job goes back into the queue
    )
    setup: tuple[str, ...] = ()  # lines of shell, run on the first node before anything else
    python: str | None = None  # the ranks'; null: the one that submits
    prefix: tuple[
        str, ...
    ] = ()  # before every rank's Python, as in [apptainer, exec, --nv, image.sif]
    shared_folder: Path | None = (
        None  # every node sees it under this name; results must lie in it. null: not checked
    )
    interface: str | None = None  # network interface of gloo and NCCL, as in ib0
    options: dict[str, str | None] = field(
        default_factory=dict
    )  # further ones of sbatch; null: one without a value

    def __post_init__(self) -> None:
        for key in fields(self):
            value = getattr(self, key.name)
            for text in (
                value
                if isinstance(value, tuple)
                else [value]
                if isinstance(value, str | Path)
                else []
            ):
                reject_control_characters(key.name, str(text))
        for name in ("partition", "account", "qos", "constraint", "gpu_type"):
            _refuse_backslash(name, getattr(self, name) or "")
        if self.gpu_type is not None and not self.gpus_per_rank:
            raise ValueError("gpu_type: found without GPUs; allowed: with gpus_per_rank 1")
        if self.memory is not None and not MEMORY.fullmatch(self.memory):
            raise ValueError(
                f"memory: found {self.memory!r}; allowed: a whole number with K, M, G or T, as in 64G"
            )
        if self.time_limit_seconds <= self.warning:
            raise ValueError(
                f"warning: found {self.warning} s; allowed: less than `time`, {self.time_limit_seconds} s"
            )
        if self.shared_folder is not None and not self.shared_folder.is_absolute():
            raise ValueError(
                f"shared_folder: found {str(self.shared_folder)!r}; allowed: a path that begins with /"
            )
        for name, value in self.options.items():
            self._check_option(name, value)

    @staticmethod
    def _check_option(name: str, value: str | None) -> None:
        if not OPTION.fullmatch(name):
            raise ValueError(
                f"options: found the name {name!r}; allowed: a long option of sbatch without its --"
            )
        whole = next(
            (full for full in OURS if full.startswith(name)), None
        )  # sbatch takes shortened names too
        if whole is not None and name not in OURS:
            raise ValueError(
                f"options.{name}: found a part of the name {whole!r}; allowed: whole names"
            )
        if name in OURS:
            instead = (
                f"the profile's key `{OURS[name]}`"
                if OURS[name]
                else "nothing, the harness decides it"
            )
            raise ValueError(f"options.{name}: found {value!r}; allowed: {instead}")
        reject_control_characters(f"options.{name}", value or "")
        _refuse_backslash(f"options.{name}", value or "")

    @property
    def max_ranks(self) -> int:
        """The most ranks of one job."""
        return self.nodes * self.ranks_per_node

    @property
    def time_limit_seconds(self) -> int:
        """The time limit; raises ValueError for what is none."""
        return time_limit(self.time)

    @property
    def memory_mib(self) -> int | None:
        """Memory of a node; None where the cluster decides."""
        found = MEMORY.fullmatch(self.memory or "")
        return int(int(found["number"]) * MEBIBYTES[found["unit"]]) if found else None


def time_limit(text: str) -> int:
    """Seconds, of `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` or
    `days-hours:minutes:seconds`, as sbatch reads them (man sbatch, --time). Raises ValueError."""
    found = TIME.fullmatch(text)
    parts = (
        [int(part) for part in found.group("first", "second", "third") if part is not None]
        if found
        else []
    )
    if found and found["days"] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        total = ((int(found["days"]) * 24 + hours) * 60 + minutes) * 60 + seconds
    elif len(parts) == 3:
        total = (parts[0] * 60 + parts[1]) * 60 + parts[2]
    else:
        total = sum(part * factor for part, factor in zip(parts, (60, 1), strict=False))
    if total <= 0:
        raise ValueError(
            f'time: found {text!r}; allowed: a limit such as "90" (minutes), 1:30:00 or 2-00:00:00'
        )
    return total
