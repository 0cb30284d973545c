"""What a launcher is: it starts the ranks of a trial."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from harness.core import files
from harness.core.errors import StorageError
from harness.core.paths import TrialFolder, write_atomically
from harness.core.processes import Process
from harness.records.assignment import FailedRank
from harness.records.record import Failure
from harness.sweep.axes import Variables
from harness.training.progress import SIGNAL

if TYPE_CHECKING:  # it reads sweep files, which a rank does not
    from harness.launch.stack import ReadyStack

# What ranks begin with unless the user sets it. Python draws a seed for the hashes of texts in each process: a workload
# that iterates over a set would train on another order in every command, and in every rank of its own.
HASH_SEED = {"PYTHONHASHSEED": "0"}


RENDEZVOUS = "loopback"  # the name of the agent's rendezvous


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


def write_failed_ranks(path: Path, failed: Mapping[int, FailedRank]) -> None:
    """Write how the ranks ended that failed, for `read_failed_ranks`."""
    content = {str(rank): asdict(ended) for rank, ended in failed.items()}
    write_atomically(path, json.dumps(content), durable=False)


def assign(variables: Mapping[str, str], assigned: Variables) -> dict[str, str]:
    """Return an environment with what a cell assigns: None removes a variable."""
    environment = {**variables, **assigned}
    return {name: value for name, value in environment.items() if value is not None}


def exit_failure(code: int, rank: int, folder: TrialFolder) -> Failure:
    """Return the failure of a rank that exited with a code other than 0."""
    if code == files.EXIT_CODE:
        result = folder.result_path(rank)
        message = f"{result}: could not be written; {files.free_space(result)}"
        return Failure(kind=StorageError.__name__, message=message, rank=rank)
    return Failure(kind="Exited", message=f"with code {code}", rank=rank)


def signal_failure(number: int, rank: int) -> Failure:
    """Return the failure of a rank that a signal with this number has ended."""
    if number == SIGNAL:  # it came before the rank had blocked it
        return Failure(kind="Interrupted", message="stopped before the first step", rank=rank)
    name = signal.strsignal(number) or f"signal {number}"
    if number in set(signal.Signals):
        name = signal.Signals(number).name
    return Failure(kind="Killed", message=f"ended by {name}", rank=rank)


def describe_end(exit_code: int | None, is_out_of_memory: bool) -> str:
    """Return how a launcher ended, and whether the kernel killed a process for memory."""
    end = "its launcher still ran"
    if exit_code is not None:
        end = f"its launcher exited with code {exit_code}"
    if exit_code is not None and exit_code < 0:
        end = f"its launcher was {signal_failure(-exit_code, 0).message}"
    if is_out_of_memory:
        end = f"{end}; the kernel killed a process for want of memory"
    return end


# In which the other ranks may report their own errors once one has failed. They need a moment on a busy
# machine: what they leave says in which collective they were.
GRACE_SECONDS = 3.0


class Launcher(Protocol):
    """Starts ranks and ends them."""

    def in_stack(self, stack: ReadyStack) -> Self:
        """Return the same launcher for ranks under a stack."""

    def variables(self, threads: int, assigned: Variables) -> dict[str, str]:
        """Return the environment of ranks, for ranks of `threads` threads each.

        `assigned` are the variables that a cell sets or unsets, over all others.
        """

    def start(
        self,
        module: str,
        folder: TrialFolder,
        ranks: int,
        variables: Mapping[str, str],
        more: Sequence[str] = (),
        *,
        preload: Sequence[str] = (),
    ) -> Process:
        """Start ranks that run `module` with `folder` and `more`, and add their output to its launch log.

        `preload` are modules that every rank imports, which a launcher may load once for all trials.
        """

    def interrupt(self, process: Process) -> None:
        """Ask the ranks of a command that was started to save their state and stop.

        A process that has only just been started may miss it.
        """

    def observed_failures(self, folder: TrialFolder) -> list[Failure]:
        """Return why ranks ended, as far as the launcher alone knows, the first cause first."""

    def end(self, process: Process, folder: TrialFolder) -> None:
        """End a command that was started, and what it has left: all ranks are gone then.

        `folder` is that of the trial.
        """
