"""The local launcher: each trial's ranks are fresh processes of this machine, started by torchrun
or forked.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import psutil

from harness.core.errors import BadFile, HarnessError
from harness.core.import_path import import_variables, module_command
from harness.core.paths import TrialFolder
from harness.core.ports import LOOPBACK
from harness.core.processes import (
    Process,
    end_process_group,
    parent_variables,
    start_session,
)
from harness.launch import forkserver
from harness.launch.abandoned import kill_abandoned, mark_variables
from harness.launch.forkserver import ForkedRanks
from harness.launch.launcher import HASH_SEED, RENDEZVOUS, assign, exit_failure, signal_failure
from harness.launch.stack import ReadyStack, bound_command
from harness.records.assignment import FailedRank, read_failed_ranks
from harness.records.record import Failure
from harness.sweep.axes import Variables
from harness.sweep.cluster import Profile
from harness.training.progress import SIGNAL


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """Starts ranks in this process's environment, with `environment` on top.

    Forked ranks compute the same bits as those that torchrun starts, without loading torch again.
    Only ranks on CPUs are forked.
    """

    environment: Mapping[str, str]  # variables of the cluster profile
    fork: bool = False  # whether ranks are forked instead, by a forkserver
    stack: ReadyStack | None = None  # None: ranks run under this process's interpreter

    @classmethod
    def of(cls, profile: Profile) -> Self:
        """Return the launcher of a profile's trials, which forks their ranks where that is possible."""
        can_fork = profile.forkserver and forkserver.AVAILABLE and not profile.gpus
        return cls(environment=profile.environment, fork=can_fork)

    def in_stack(self, stack: ReadyStack) -> Self:
        """Return the same launcher for ranks under a stack, where torchrun runs too.

        What runs in a container is not forked: between this process and a forkserver there would be
        another one, which hides the end of either from the other.
        """
        stack = stack.with_environment(self.environment)
        return replace(self, stack=stack, fork=self.fork and not stack.prefix)

    def command(
        self, module: str, folder: TrialFolder, ranks: int, more: Sequence[str] = ()
    ) -> list[str]:
        """Return torchrun's command that runs `module` with `folder` and `more` at every rank."""
        python = sys.executable if self.stack is None else self.stack.python
        agent = module_command(python, "harness.launch.agent")
        if self.stack is not None and self.stack.prefix:
            agent = bound_command(self.stack.module_command("harness.launch.agent"))
        # torchrun's own way to run a module would import from the working directory first. Without
        # a folder for logs it makes a temporary one, which stays behind where ranks are killed.
        options = [f"--rdzv-backend={RENDEZVOUS}", f"--rdzv-endpoint={LOOPBACK}:0"]
        options += [f"--nproc-per-node={ranks}", "--no-python", f"--log-dir={os.devnull}"]
        rank_command = [*module_command(python, module), str(folder.attempt_path), *more]
        return [*agent, str(folder.failures_path), *options, *rank_command]

    def variables(self, threads: int, assigned: Variables) -> dict[str, str]:
        """Return the environment of the command, for ranks of `threads` threads each."""
        variables = {
            **HASH_SEED,
            **os.environ,
            **import_variables(),
            **self.environment,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
        }
        if self.stack is not None:
            variables = self.stack.variables(variables)
        return assign(variables, assigned)

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

        A forkserver loads the modules `preload`, once for all trials with the same ones. Where none
        starts, torchrun starts the same ranks.
        """
        log = folder.launch_log
        log.parent.mkdir(parents=True, exist_ok=True)
        if self.fork:
            python = sys.executable if self.stack is None else self.stack.python
            arguments = [str(folder.attempt_path), *more]
            try:
                return forkserver.start_ranks(
                    module, arguments, ranks, variables, folder, preload=preload, python=python
                )
            except HarnessError as error:
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"harness: torchrun starts the ranks: {error}\n")
        marked = {**variables, **parent_variables(), **mark_variables(log)}
        return start_session(self.command(module, folder, ranks, more), marked, log)

    def interrupt(self, process: Process) -> None:
        """Send the signal to the ranks, which torchrun or a container's command has started.

        They inherit a mask that blocks it, as does all that they have started: it can't end one that has
        only just been started.
        """
        if isinstance(process, ForkedRanks):
            process.send_signal(SIGNAL)
            return
        with suppress(psutil.NoSuchProcess):  # one has just ended; the signal is sent again
            for child in psutil.Process(process.pid).children(recursive=True):
                if _is_rank(child.cmdline()):
                    child.send_signal(SIGNAL)

    def observed_failures(self, folder: TrialFolder) -> list[Failure]:
        """Return a failure of each rank that was killed or exited.

        Ranks that SIGTERM ended are left out: torchrun ends the other ranks of a failed one with it.
        """
        try:
            failed_ranks = read_failed_ranks(folder.failures_path)
        except BadFile as error:  # some rank has failed, or the file would not be there
            return [Failure(kind="BadFile", message=str(error), at=time.time())]
        failures = []
        for rank, ended in failed_ranks.items():
            if -ended.exitcode != signal.SIGTERM:
                failures.append(replace(_failure(ended, rank, folder), at=ended.at))
        return failures

    def end(self, process: Process, folder: TrialFolder) -> None:
        """End all ranks, which are in their own process groups or torchrun's, or end with that.

        What ranks have started elsewhere, torchrun ends, unless it was killed.
        """
        if isinstance(process, ForkedRanks):
            process.end()
        else:
            end_process_group(process)
        exit_code = process.poll()
        if isinstance(process, ForkedRanks) or exit_code is None or exit_code < 0:
            kill_abandoned(folder.launch_log)


def _is_rank(command: Sequence[str]) -> bool:
    """Return whether a command is that of a rank: not that of torchrun or of a container around it.

    Those have the rank's command among their arguments, and another module of their own before it.
    """
    if "-m" not in command:
        return False
    program, module = command[0], command[command.index("-m") + 1]
    return "python" in Path(program).name and not module.startswith("harness.launch.")


def _failure(ended: FailedRank, rank: int, folder: TrialFolder) -> Failure:
    """Return the failure of a rank that exited or was killed by a signal."""
    exit_code = ended.exitcode
    if ended.out_of_memory:
        message = "ended by SIGKILL: the kernel killed it for want of memory"
        return Failure(kind="OutOfMemory", message=message, rank=rank)
    if exit_code >= 0:
        return exit_failure(exit_code, rank, folder)
    return signal_failure(-exit_code, rank)
