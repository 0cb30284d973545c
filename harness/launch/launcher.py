"""What a launcher is: it starts the ranks of a trial, and says how they ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from harness.core import files
from harness.core.errors import Interrupted, StorageError
from harness.core.import_path import import_variables
from harness.core.paths import TrialFolder
from harness.launch.stack import ReadyStack
from harness.records.assignment import FailedRank
from harness.records.record import Failure
from harness.sweep.axes import Variables
from harness.sweep.cell import Cell
from harness.training.progress import SIGNAL
from workloads.catalog import heavy_modules

# What ranks begin with unless the user sets it. Python draws a seed for the hashes of texts in each process: a workload
# that iterates over a set would train on another order in every command, and in every rank of its own.
HASH_SEED = {"PYTHONHASHSEED": "0"}
SIGNAL_NAMES = {int(number): number.name for number in signal.Signals}


@dataclass(frozen=True, kw_only=True)
class RankProgram:
    """What all ranks of a trial run, from which a launcher starts them."""

    module: str = "harness.training.worker"
    arguments: Sequence[str] = ()  # after the folder of the attempt
    folder: TrialFolder
    world_size: int
    num_threads: int  # of each rank
    variables: Variables = field(default_factory=dict)  # set, or unset by None, over all others
    stack: ReadyStack | None = None  # None: the launcher's own interpreter
    preload: Sequence[str] = ()  # modules that ranks import, which a launcher may load once for all

    @classmethod
    def of(cls, cell: Cell, folder: TrialFolder, stack: ReadyStack | None, *task: str) -> Self:
        """Return the worker of a cell's trials, with the arguments that choose another task of it."""
        return cls(
            arguments=[*task, "--write-logs"],
            folder=folder,
            world_size=cell.axes.world_size,
            num_threads=cell.axes.num_threads,
            variables=cell.environment,
            stack=stack,
            preload=heavy_modules(cell.workload.uses),
        )


class StartedRanks(Protocol):
    """The ranks of a trial, from their start on; whoever has them calls `end`."""

    def wait(self, timeout: float) -> int:
        """Return the launcher's exit code, negative for a signal, once all ranks have ended.

        Raises subprocess.TimeoutExpired after `timeout` seconds.
        """

    def interrupt(self) -> None:
        """Ask the ranks to save their state and stop; those that have only just begun may miss it."""

    def observed_failures(self) -> list[Failure]:
        """Return why ranks ended, as far as the launcher alone knows, the first cause first."""

    def end(self) -> None:
        """End all ranks, and what they have started: they are gone then."""


# Starts the ranks of a program, and adds their output to the launch log of its folder.
Launcher = Callable[[RankProgram], StartedRanks]


def rank_environment(
    inherited: Mapping[str, str], profile: Mapping[str, str], program: RankProgram
) -> dict[str, str]:
    """Return the environment of ranks: what they inherit, with a profile's variables on top."""
    variables = {
        **HASH_SEED,
        **inherited,
        **import_variables(),
        **profile,
        "OMP_NUM_THREADS": str(program.num_threads),
        "PYTHONUNBUFFERED": "1",
    }
    if program.stack is not None:
        variables = program.stack.variables(variables)
    environment = {**variables, **program.variables}
    return {name: value for name, value in environment.items() if value is not None}


def rank_variables(rank: int, world_size: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank of a job that has this node alone.

    All that it documents, but for the address and port of rank 0: libraries tell by them who has started
    a rank, as `torch.distributed.is_torchelastic_launched` does.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "ROLE_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def rank_failures(ended_ranks: Mapping[int, FailedRank], folder: TrialFolder) -> list[Failure]:
    """Return the failures of ranks that were killed or exited.

    Ranks that SIGTERM ended are left out: the other ranks of a failed one are ended with it.
    """
    failures = []
    for rank, ended in ended_ranks.items():
        if ended.exitcode != -signal.SIGTERM:
            failure = rank_failure(rank, ended.exitcode, folder)
            failures.append(replace(failure, at=ended.at))
    return failures


def rank_failure(rank: int, exit_code: int, folder: TrialFolder) -> Failure:
    """Return the failure of a rank that ended with a code other than 0; a negative one is a signal."""
    kind, message = "Exited", f"with code {exit_code}"
    if exit_code == files.EXIT_CODE:
        result = folder.result_path(rank)
        kind = StorageError.__name__
        message = f"{result}: could not be written; {files.free_space(result)}"
    elif exit_code == -SIGNAL:  # it came before the rank had blocked it
        kind, message = Interrupted.__name__, "stopped before the first step"
    elif exit_code < 0:
        name = SIGNAL_NAMES.get(-exit_code, f"signal {-exit_code}")
        kind, message = "Killed", f"ended by {name}"
    if exit_code == -signal.SIGKILL:
        message += ", sent by the out-of-memory killer or another process"
    return Failure(kind=kind, message=message, rank=rank)
