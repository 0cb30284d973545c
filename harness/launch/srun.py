"""The launcher inside a Slurm job: the ranks of each trial are the tasks of one step.

Slurm itself starts, binds, signals and ends them on every node, so torchrun is not needed.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from harness.core.errors import one_line
from harness.core.import_path import import_variables, module_command
from harness.core.paths import TrialFolder
from harness.core.ports import free_port
from harness.core.processes import Process, parent_variables, start_session
from harness.core.slurm_environment import client_variables
from harness.launch import controller
from harness.launch.launcher import HASH_SEED, assign, exit_failure, rank_variables, signal_failure
from harness.launch.stack import ReadyStack, bound_command
from harness.records.record import Failure
from harness.sweep.axes import Variables
from harness.training.progress import SIGNAL

# What srun and slurmstepd print when a task has ended, or the whole step.
TASK_ENDED = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)\S*: (?P<how>.+)")
STEP_ENDED = re.compile(
    r"\*\*\* (?:STEP|JOB) .*CANCELLED AT \S+(?: DUE TO (?P<why>[^*]+?))? *\*\*\*"
)
NOT_STARTED = re.compile(
    r"srun: (?:error|fatal): (?P<why>"
    r"(?:Unable to|Task launch for|Invalid|Requested|No |Slurm job \d+ has expired).*)"
)
NODE_FAILURE = re.compile(r"(?:node failure on |node (?=\S+ failure))(?P<host>\S+)", re.IGNORECASE)
OUT_OF_MEMORY = re.compile(
    r"oom[-_ ]kill|out of memory|exceeded (?:job |step )?memory limit", re.IGNORECASE
)
EXITED = "Exited with "
BY_SLURM = "Slurm ended the step: "
SIGNALS = {signal.strsignal(number): number for number in signal.Signals}  # by what srun prints
SIGNAL_CODES = 128  # and the number of a signal: the exit code of what has waited for its end
# Runs a container whose own command ignores SIGUSR2, which Slurm sends to all processes of a step:
# bwrap or unshare would end, and the rank with it. A rank gets a signal that it blocks all the same.
IGNORING_SIGNAL = ("sh", "-c", 'trap "" USR2; exec "$@"', "sh")


@dataclass(frozen=True, kw_only=True)
class Srun:
    """Starts steps in an allocation that holds at least as many ranks as any trial has."""

    environment: Mapping[str, str]  # variables of the cluster profile
    ranks_per_node: int
    cpus_per_rank: int
    python: str  # the interpreter, on the nodes
    prefix: Sequence[str]  # a command that runs the interpreter, such as a container's
    address: str  # of rank 0's node, as the other nodes resolve it
    stack: ReadyStack | None = None  # None: ranks run under the interpreter of the profile

    def in_stack(self, stack: ReadyStack) -> Self:
        """Return the same launcher for ranks under a stack, without the profile's container."""
        return replace(self, stack=stack.with_environment(self.environment))

    def command(
        self, module: str, folder: TrialFolder, ranks: int, more: Sequence[str] = ()
    ) -> list[str]:
        """Return the command of a step whose every task runs `module` with `folder` and `more`.

        Nodes are filled one after the other, from the first node of the job on, which is the one
        that `address` names.
        """
        task = [*self.prefix, *module_command(self.python, module)]
        if self.stack is not None:
            task = self.stack.module_command(module)
        if self._container:
            task = [*IGNORING_SIGNAL, *task]
        return [
            "srun",
            f"--nodes={math.ceil(ranks / self.ranks_per_node)}",
            f"--ntasks={ranks}",
            f"--ntasks-per-node={min(ranks, self.ranks_per_node)}",
            # srun does not take it from sbatch since Slurm 22.05.
            f"--cpus-per-task={self.cpus_per_rank}",
            "--relative=0",
            # A step whose slurmstepd was killed stays in Slurm's books, and would keep the next
            # step waiting for its CPUs. Without it, steps never run at the same time.
            "--overlap",
            "--distribution=block:block",
            "--mpi=none",
            "--export=ALL",
            # Otherwise Slurm may end the other ranks, before they can report anything, as one has failed.
            "--kill-on-bad-exit=0",
            "--unbuffered",
            "--input=none",
            f"--job-name={folder.path.name}",
            *task,
            str(folder.attempt_path),
            *more,
        ]

    @property
    def _container(self) -> Sequence[str]:
        """Return the command of the container that ranks run in, an empty one without."""
        return self.prefix if self.stack is None else self.stack.prefix

    def variables(self, threads: int, assigned: Variables) -> dict[str, str]:
        """Return the environment of the command.

        The job may have been submitted by a process that torchrun had started. What torchrun told
        that one about its rank would mislead ours. Options of srun in variables would change the
        step; only those that the profile sets are kept.
        """
        of_torchrun = rank_variables(0, 1)
        variables = dict(HASH_SEED)
        for name, value in client_variables().items():
            if name not in of_torchrun:
                variables[name] = value
        variables.update(import_variables())
        variables.update(self.environment)
        variables["MASTER_ADDR"] = self.address
        variables["MASTER_PORT"] = str(free_port())
        variables["OMP_NUM_THREADS"] = str(threads)
        variables["PYTHONUNBUFFERED"] = "1"
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
        """Start srun with its output added to the launch log; every task loads its modules itself."""
        command = bound_command(self.command(module, folder, ranks, more))
        return start_session(command, {**variables, **parent_variables()}, folder.launch_log)

    def interrupt(self, process: Process) -> None:
        """Send the signal to srun, which passes it on to all tasks."""
        process.send_signal(SIGNAL)

    def observed_failures(self, folder: TrialFolder) -> list[Failure]:
        """Return why the step ended, from what srun printed."""
        output = ""
        with suppress(
            FileNotFoundError
        ):  # the folder has just been moved, which the next look finds
            output = folder.launch_log.read_text(encoding="utf-8", errors="replace")
        failures = parse_failures(output, time.time())
        in_container = bool(self._container)
        return [_explain_exit(failure, folder, in_container=in_container) for failure in failures]

    def end(self, process: Process, folder: TrialFolder) -> None:
        """End the step, and its ranks on all nodes."""
        controller.end_step(process, folder.path.name)


def parse_failures(output: str, at: float) -> list[Failure]:
    """Return why a step ended, as far as what srun printed says so.

    That is the first cause alone, or a failure of each rank that exited. `at` is the time of the
    failures, in seconds since the epoch.
    """
    cause = _first_cause(output)
    if cause is not None:
        return [replace(cause, at=at)]
    failures = []
    for task in TASK_ENDED.finditer(output):
        if task["how"].startswith(EXITED):
            message = task["how"].replace("Exited with exit", "with")
            failures.append(replace(_task_failure(task, "Exited", message), at=at))
    return failures


def cancelled_by_user(message: str) -> bool:
    """Whether the message of an interruption says that a user wanted it: Slurm then gives no
    reason.
    """
    return message.endswith(f"{BY_SLURM}cancelled")


def _first_cause(output: str) -> Failure | None:
    """Return what ended a step, the more certain cause first; None if ranks exited, or nothing ended it.

    A step is also cancelled because one of its tasks has failed: Slurm then gives no reason, and the task is
    printed first. So is the task that was killed first; others may have been ended for it.
    """
    task = TASK_ENDED.search(output)
    how = one_line(task["how"]) if task is not None else ""
    failed_node = NODE_FAILURE.search(output)
    if failed_node is not None:
        message = _line_of(failed_node)
        return Failure(kind="NodeFailure", message=message, host=failed_node["host"])
    out_of_memory = OUT_OF_MEMORY.search(output)
    if out_of_memory is not None:
        message = _line_of(out_of_memory)
        if (
            task is not None and "Memory" in how
        ):  # otherwise a task may have been ended for another one
            return _task_failure(task, "OutOfMemory", message)
        return Failure(kind="OutOfMemory", message=message)
    step = STEP_ENDED.search(output)
    if step is not None and (step["why"] or task is None or step.start() < task.start()):
        reason = (step["why"] or "cancelled").strip()
        return Failure(kind="Interrupted", message=f"{BY_SLURM}{reason}")
    if task is None:
        return _step_not_started(output)
    if how.startswith(EXITED):
        return None
    number = SIGNALS.get(how.removesuffix(" (core dumped)"))
    if number is None:
        return _task_failure(task, "Killed", f"ended by Slurm: {how}")
    return replace(signal_failure(number, int(task["rank"])), host=task["host"])


def _step_not_started(output: str) -> Failure | None:
    """Return the failure of a step of which no task has started.

    srun gives up after about ten seconds without a controller; the allocation outlives that.
    """
    reason = NOT_STARTED.search(output)
    if reason is None:
        return None
    kind = "ControllerDown" if controller.is_silent(reason["why"]) else "NotStarted"
    return Failure(kind=kind, message=one_line(reason["why"]))


def _explain_exit(failure: Failure, folder: TrialFolder, *, in_container: bool) -> Failure:
    """Return the failure of a rank that exited, with the meaning of its exit code.

    A container's command exits in place of a rank that a signal ended, with the code that shells
    have for that.
    """
    code = failure.message.removeprefix("with code ")
    if failure.kind != "Exited" or failure.rank is None or not code.isdigit():
        return failure
    number = int(code) - SIGNAL_CODES
    if in_container and number in set(signal.Signals):
        explained = signal_failure(number, failure.rank)
    else:
        explained = exit_failure(int(code), failure.rank, folder)
    return replace(explained, host=failure.host, at=failure.at)


def _task_failure(task: re.Match[str], kind: str, message: str) -> Failure:
    """Return a failure at the rank and node of a match of TASK_ENDED."""
    return Failure(kind=kind, message=message, rank=int(task["rank"]), host=task["host"])


def _line_of(match: re.Match[str]) -> str:
    """Return the whole line that a match is in."""
    before, after = match.string[: match.start()], match.string[match.start() :]
    return one_line(before.rpartition("\n")[2] + after.partition("\n")[0])
