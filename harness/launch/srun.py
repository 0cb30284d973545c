"""The launcher inside a job: the ranks of each trial are the tasks of one Slurm step, a task a
rank.

Slurm itself starts, binds, signals and ends them on every node, so that no torchrun stands between.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import one_line
from harness.core.paths import TrialFolder
from harness.core.processes import Process, start_session
from harness.launch.launcher import rank_variables
from harness.records.record import Failure

# How srun and slurmstepd tell that a task has ended, or the whole step.
TASK_ENDED = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)\S*: (?P<how>.+)")
STEP_ENDED = re.compile(
    r"\*\*\* (?:STEP|JOB) .*CANCELLED AT \S+(?: DUE TO (?P<why>[^*]+?))? *\*\*\*"
)
NOT_STARTED = re.compile(
    r"srun: (?:error|fatal): (?P<why>(?:Unable to|Task launch for|Invalid|Requested|No ).*)"
)
NODE_FAILURE = re.compile(r"(?:node failure on |node (?=\S+ failure))(?P<host>\S+)", re.IGNORECASE)
OUT_OF_MEMORY = re.compile(
    r"oom[-_ ]kill|out of memory|exceeded (?:job |step )?memory limit", re.IGNORECASE
)
EXITED = "Exited with "
BY_SLURM = "Slurm ended the step: "
BY_SIGNAL = "User defined signal 2"  # it came before the rank held it back


@dataclass(frozen=True, kw_only=True)
class Srun:
    """Steps in an allocation that holds at least as many ranks as any trial has."""

    environment: Mapping[str, str]
    ranks_per_node: int
    cpus_per_rank: int
    python: str
    prefix: Sequence[str]
    address: str  # of rank 0's node, as the others resolve it
    free_port: Callable[[], int]  # there; asked once a trial

    def command(
        self, module: str, folder: TrialFolder, ranks: int, more: Sequence[str] = ()
    ) -> list[str]:
        """Nodes are filled one after the other, from the job's first on, which is the one that
        `address` names.
        """
        here = min(ranks, self.ranks_per_node)
        return [
            "srun", f"--nodes={-(-ranks // self.ranks_per_node)}", f"--ntasks={ranks}", f"--ntasks-per-node={here}",
            f"--cpus-per-task={self.cpus_per_rank}", "--relative=0", "--distribution=block:block", "--mpi=none",
            "--export=ALL", "--kill-on-bad-exit=1", "--unbuffered", "--input=none", f"--job-name={folder.path.name}",
            *self.prefix, self.python, "-m", module, str(folder.path), *more,
        ]  # fmt: skip

    def variables(self, threads: int) -> dict[str, str]:
        meeting = {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.free_port())}
        ours = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        inherited = {
            name: value for name, value in os.environ.items() if name not in rank_variables(0, 1)
        }
        return {**inherited, **self.environment, **meeting, **ours}

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
        return start_session(arguments, variables, log)

    def observed_failures(self, folder: TrialFolder, words: str) -> list[Failure]:
        return parse_failures(words, time.time())


def parse_failures(words: str, at: float) -> list[Failure]:
    """Why a step ended, as far as what srun wrote tells; of ranks that exited by themselves, each
    one.
    """
    task, step = TASK_ENDED.search(words), STEP_ENDED.search(words)
    where: dict[str, Any] = {"rank": int(task["rank"]), "host": task["host"]} if task else {}
    if found := NODE_FAILURE.search(words):
        return [Failure(kind="NodeFailure", message=_line(words, found), host=found["host"], at=at)]
    if found := OUT_OF_MEMORY.search(words):
        told = (
            where if task and "Memory" in task["how"] else {}
        )  # else the others, ended with it, may come first
        return [Failure(kind="OutOfMemory", message=_line(words, found), **told, at=at)]
    if step and (step["why"] or not task or task.start() > step.start()):
        why = (step["why"] or "cancelled").strip()
        return [Failure(kind="Interrupted", message=f"{BY_SLURM}{why}", at=at)]
    if task and BY_SIGNAL in task["how"]:
        return [
            Failure(kind="Interrupted", message="SIGUSR2 before the first step", **where, at=at)
        ]
    if task and not task["how"].startswith(
        EXITED
    ):  # the first to end: `--kill-on-bad-exit` ended the others
        return [
            Failure(
                kind="Killed", message=f"ended by Slurm: {one_line(task['how'])}", **where, at=at
            )
        ]
    if not task and (found := NOT_STARTED.search(words)):
        return [Failure(kind="NotStarted", message=one_line(found["why"]), at=at)]
    return [
        Failure(
            kind="Exited",
            message=found["how"].replace("Exited with exit", "with"),
            rank=int(found["rank"]),
            host=found["host"],
            at=at,
        )
        for found in TASK_ENDED.finditer(words)
        if found["how"].startswith(EXITED)
    ]


def cancelled_by_user(message: str) -> bool:
    """Whether an interruption that `parse_failures` has told of was somebody's wish: Slurm gives no
    reason then.
    """
    return message.endswith(f"{BY_SLURM}cancelled")


def _line(words: str, found: re.Match[str]) -> str:
    """The line that something was found in."""
    end = words.find("\n", found.end())
    return one_line(words[words.rfind("\n", 0, found.start()) + 1 : end if end >= 0 else None])
