"""The local launcher: each trial's ranks are fresh processes of this machine, started by torchrun
or forked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psutil

from harness.core.errors import HarnessError
from harness.core.import_path import module_command
from harness.core.paths import TrialFolder
from harness.core.processes import Process, end_process_group, parent_variables, start_session
from harness.launch import forkserver
from harness.launch.hold import kill_abandoned, mark_variables
from harness.launch.launcher import RankProgram, StartedRanks, rank_environment, rank_failures
from harness.launch.stack import BOUND
from harness.records.assignment import read_failed_ranks
from harness.records.record import Failure
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

    @classmethod
    def of(cls, profile: Profile) -> Self:
        """Return the launcher of a profile's trials, which forks their ranks where that is possible."""
        # A forkserver needs prctl, /proc and CPU affinities.
        can_fork = profile.forkserver and sys.platform == "linux" and not profile.gpus
        return cls(environment=profile.environment, fork=can_fork)

    def start(self, program: RankProgram) -> StartedRanks:
        """Start the ranks; torchrun starts those of a stack, and all where no forkserver starts."""
        variables = rank_environment(os.environ, self.environment, program)
        log = program.folder.launch_log
        log.parent.mkdir(parents=True, exist_ok=True)
        if self.fork and program.stack is None:
            try:
                return forkserver.start_ranks(program, variables)
            except HarnessError as error:
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"harness: torchrun starts the ranks: {error}\n")
        command = torchrun_command(program, variables)
        variables |= parent_variables()
        variables |= mark_variables(log)
        return TorchrunRanks(process=start_session(command, variables, log), folder=program.folder)


def torchrun_command(program: RankProgram, variables: Mapping[str, str]) -> list[str]:
    """Return the command with which torchrun starts ranks, in a stack's container if it has one."""
    stack = program.stack
    folder = program.folder
    python = sys.executable if stack is None else stack.python
    command = module_command(python, "harness.launch.agent")
    command += [str(folder.failures_path), str(program.world_size)]
    command += module_command(python, program.module)
    command += [str(folder.attempt_path), *program.arguments]
    if stack is None or not stack.prefix:
        return command
    return [*BOUND, *stack.boxed(command, variables)]


@dataclass(frozen=True, kw_only=True)
class TorchrunRanks:
    """Ranks that torchrun has started."""

    process: Process
    folder: TrialFolder

    def wait(self, timeout: float) -> int:
        """Return torchrun's exit code, as `StartedRanks` says."""
        return self.process.wait(timeout)

    def interrupt(self) -> None:
        """Send the signal to all that was started, where only ranks look for it.

        All of it inherits a mask that blocks the signal, or ignores it: it can't end what has only just begun.
        """
        with suppress(psutil.NoSuchProcess):  # one has just ended; the signal is sent again
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.send_signal(SIGNAL)

    def observed_failures(self) -> list[Failure]:
        """Return a failure of each rank that torchrun has written down."""
        return rank_failures(read_failed_ranks(self.folder.failures_path), self.folder)

    def end(self) -> None:
        """End torchrun, and the ranks with it; also what they have started, if torchrun was killed."""
        end_process_group(self.process)
        exit_code = self.process.poll()
        if exit_code is None or exit_code < 0:
            kill_abandoned(self.folder.launch_log)
