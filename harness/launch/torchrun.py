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

from harness.core.errors import BadFile
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
from harness.launch.launcher import HASH_SEED, RENDEZVOUS, assign, exit_failure, signal_failure
from harness.launch.stack import ReadyStack, bound_command
from harness.records.record import Failure
from harness.records.running import FailedRank, read_failed_ranks
from harness.spec.cluster import Profile
from harness.spec.environment import Variables
from harness.training.interruption import SIGNAL


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """Starts ranks in this process's environment, with `environment` on top.

    Forked ranks compute the same bits as those that torchrun starts, without loading torch again.
    Only ranks on CPUs are forked.
    """

    environment: Mapping[str, str]  # variables of the cluster profile
    fork: bool = False  # whether ranks are forked instead, which `forked` describes
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

    @property
    def python(self) -> str:
        """Return the interpreter of the ranks."""
        return sys.executable if self.stack is None else self.stack.python

    def command(
        self, module: str, folder: TrialFolder, ranks: int, more: Sequence[str] = ()
    ) -> list[str]:
        """Return the command that runs `module` with `folder` and `more` at every rank."""
        failures = str(folder.failures_path)
        rank_arguments = [str(folder.attempt_path), *more]
        if self.fork:
            forked = module_command(self.python, "harness.launch.forked")
            return [*forked, failures, str(ranks), module, *rank_arguments]
        agent = module_command(self.python, "harness.launch.agent")
        if self.stack is not None and self.stack.prefix:
            agent = bound_command(self.stack.module_command("harness.launch.agent"))
        # torchrun's own way to run a module would import from the working directory first. Without
        # a folder for logs it makes a temporary one, which stays behind where ranks are killed.
        options = [f"--rdzv-backend={RENDEZVOUS}", f"--rdzv-endpoint={LOOPBACK}:0"]
        options += [f"--nproc-per-node={ranks}", "--no-python"]
        options.append(f"--log-dir={os.devnull}")
        rank_command = [*module_command(self.python, module), *rank_arguments]
        return [*agent, failures, *options, *rank_command]

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
        arguments: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        *,
        preload: Sequence[str] = (),
    ) -> Process:
        """Start the command, with its output added to `log`.

        A forkserver loads the modules `preload`, once for all trials with the same ones. Where none
        starts, torchrun starts the same ranks.
        """
        if self.fork:
            process = forkserver.start_worker(
                arguments, variables, log, preload=preload, stack=self.stack
            )
            if process is not None:
                return process
            # What `forked` would have got.
            _, _, ranks, module, folder, *more = arguments[arguments.index("-m") + 1 :]
            launcher = replace(self, fork=False)
            arguments = launcher.command(
                module, TrialFolder.of_attempt(Path(folder)), int(ranks), more
            )
        return start_session(
            arguments, {**variables, **parent_variables(), **mark_variables(log)}, log
        )

    def interrupt(self, process: Process) -> None:
        """Send the signal to the ranks, which are the children of the process in either case.

        They inherit a mask that blocks it, so it can't end one that has only just been started. In a
        container they are further down, and those that they have started inherit the mask as well.
        """
        is_contained = self.stack is not None and bool(self.stack.prefix)
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=is_contained):
                with suppress(psutil.NoSuchProcess):
                    if not is_contained or _is_rank(child.cmdline()):
                        child.send_signal(SIGNAL)

    def observed_failures(self, folder: TrialFolder, output: str) -> list[Failure]:
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
        """End the command and all ranks, which are in its process group or end with it.

        What ranks have started elsewhere, the command ends, unless it was killed.
        """
        end_process_group(process)
        exit_code = process.poll()
        if exit_code is None or exit_code < 0:
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
