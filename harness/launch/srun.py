"""Slurm's programs: the launcher inside a job, and calls that are patient while the controller is away.

The ranks of each trial are the tasks of one step. Slurm itself starts, binds, signals and ends them on
every node, so torchrun is not needed. A controller that is restarted, or overloaded, does not answer for
seconds or minutes. Jobs keep running, and a job that gave up would lose its nodes without need. So a job
repeats each call until the controller answers.
"""

from __future__ import annotations

import math
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.core.errors import HarnessError, one_line
from harness.core.import_path import module_command
from harness.core.paths import TrialFolder
from harness.core.ports import free_port
from harness.core.processes import (
    Process,
    end_process_group,
    parent_variables,
    run_command,
    start_session,
)
from harness.core.slurm_environment import client_variables, own_job_id
from harness.launch.launcher import (
    RankProgram,
    StartedRanks,
    rank_environment,
    rank_failure,
    rank_variables,
)
from harness.launch.stack import BOUND, IGNORING_SIGNAL
from harness.records.record import Failure
from harness.training.progress import SIGNAL

# What srun and slurmstepd print when a task has ended, or the whole step.
TASK_ENDED = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)\S*: (?P<how>.+)")
EXITED = "Exited with exit code "  # how a task ended that no signal has
STEP_ENDED = re.compile(
    r"\*\*\* (?:STEP|JOB) .*CANCELLED AT \S+(?: DUE TO (?P<why>[^*]+?))? *\*\*\*"
)
NOT_STARTED = re.compile(
    r"srun: (?:error|fatal): (?P<why>"
    r"(?:Unable to|Task launch for|Invalid|Requested|No |Slurm job \d+ has expired).*)"
)
NODE_FAILURE = re.compile(
    r".*(?:node failure on |node (?=\S+ failure))(?P<host>\S+).*", re.IGNORECASE
)
OUT_OF_MEMORY = re.compile(
    r".*(?:oom[-_ ]kill|out of memory|exceeded (?:job |step )?memory limit).*", re.IGNORECASE
)
BY_SLURM = "Slurm ended the step: "
SIGNALS = {signal.strsignal(number): number for number in signal.Signals}  # by what srun prints

# How clients of Slurm 20.11 to 24.05 report that no controller answers, as opposed to one that
# refuses.
SILENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connect failure|in standby mode"
    r"|connection (?:refused|timed out|reset)|zero bytes were transmitted",
    re.IGNORECASE,
)
PATIENCE_SECONDS = 900.0  # for which a silent controller is asked again
CALL_SECONDS = 60.0  # that one call may take; clients themselves give up after MessageTimeout
FIRST_PAUSE = 1.0  # seconds between the first two calls; every pause is twice as long as the last
MAX_PAUSE = 30.0
STEP_PATIENCE = 30.0  # seconds for which a silent controller is asked to end a step


@dataclass(frozen=True, kw_only=True)
class Srun:
    """Starts steps in an allocation that holds at least as many ranks as any trial has."""

    environment: Mapping[str, str]  # variables of the cluster profile
    ranks_per_node: int
    cpus_per_rank: int
    python: str  # the interpreter, on the nodes
    prefix: Sequence[str]  # a command that runs the interpreter, such as a container's
    address: str  # of rank 0's node, as the other nodes resolve it

    def start(self, program: RankProgram) -> StartedRanks:
        """Start srun with its output added to the launch log; every task loads its modules itself.

        The job may have been submitted by a process that torchrun had started. What torchrun told
        that one about its rank would mislead ours. Options of srun in variables would change the
        step; only those that the profile sets are kept.
        """
        inherited = client_variables()
        for name in rank_variables(0, 1):
            inherited.pop(name, None)
        rank0 = {"MASTER_ADDR": self.address, "MASTER_PORT": str(free_port())}
        variables = rank_environment(inherited, {**self.environment, **rank0}, program)
        command = [*BOUND, *self.command(program, variables)]
        variables |= parent_variables()
        process = start_session(command, variables, program.folder.launch_log)
        return Step(process=process, folder=program.folder)

    def command(self, program: RankProgram, variables: Mapping[str, str]) -> list[str]:
        """Return the command of a step whose every task runs a program.

        Nodes are filled one after the other, from the first node of the job on, which is the one
        that `address` names.
        """
        folder, ranks, stack = program.folder, program.world_size, program.stack
        python = self.python if stack is None else stack.python
        task = module_command(python, program.module)
        task += [str(folder.attempt_path), *program.arguments]
        if stack is not None:
            task = stack.boxed(task, variables)
        elif self.prefix:
            task = [*IGNORING_SIGNAL, *self.prefix, *task]
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
        ]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Ranks that srun has started."""

    process: Process  # of srun
    folder: TrialFolder

    def wait(self, timeout: float) -> int:
        """Return srun's exit code, as `StartedRanks` says."""
        return self.process.wait(timeout)

    def interrupt(self) -> None:
        """Send the signal to srun, which passes it on to all tasks."""
        self.process.send_signal(SIGNAL)

    def observed_failures(self) -> list[Failure]:
        """Return why the step ended, from what srun printed."""
        output = self.folder.launch_log.read_text(encoding="utf-8", errors="replace")
        return parse_failures(output, self.folder)

    def end(self) -> None:
        """End the step, and its ranks on all nodes.

        They outlive an srun that is killed. An srun that exits has ended them.
        """
        exit_code = self.process.poll()
        end_process_group(self.process)
        if exit_code is not None and exit_code >= 0:
            return
        listed = call(
            ["squeue", "--steps", f"--jobs={own_job_id()}", "--noheader", "--format=%i|%j"],
            patience=STEP_PATIENCE,
        )
        for line in listed.stdout.splitlines():
            step_id, _, step_name = line.strip().partition("|")
            if step_name == self.folder.path.name:
                call(["scancel", "--signal=KILL", step_id], patience=STEP_PATIENCE)


def parse_failures(output: str, folder: TrialFolder) -> list[Failure]:
    """Return why a step ended, as far as what srun printed says so.

    That is the first cause alone, or a failure of each rank that exited.
    """
    now = time.time()
    tasks = list(TASK_ENDED.finditer(output))
    cause = _cause_of_step(output, tasks[0] if tasks else None)
    if cause is not None:
        return [replace(cause, at=now)]
    # The task that was killed first is printed first; others may have been ended for it.
    first_exited = bool(tasks) and tasks[0]["how"].startswith(EXITED)
    failures = []
    for task in tasks if first_exited else tasks[:1]:
        if task["how"].startswith(EXITED) == first_exited:
            failure = _task_failure(task, folder)
            failures.append(replace(failure, host=task["host"], at=now))
    return failures


def _cause_of_step(output: str, task: re.Match[str] | None) -> Failure | None:
    """Return what ended a step as a whole, the more certain cause first; None if a task did, or nothing has.

    `task` is the first that has ended. A step is also cancelled because one of its tasks has failed: Slurm
    then gives no reason, and the task is printed first.
    """
    failed_node = NODE_FAILURE.search(output)
    if failed_node is not None:
        message = one_line(failed_node[0])
        return Failure(kind="NodeFailure", message=message, host=failed_node["host"])
    out_of_memory = OUT_OF_MEMORY.search(output)
    if out_of_memory is not None:
        failure = Failure(kind="OutOfMemory", message=one_line(out_of_memory[0]))
        if task is None or "Memory" not in task["how"]:  # it may have been ended for another one
            return failure
        return replace(failure, rank=int(task["rank"]), host=task["host"])
    step = STEP_ENDED.search(output)
    if step is not None:
        is_first = task is None or step.start() < task.start()
        if step["why"] or is_first:
            reason = step["why"] or "cancelled"
            return Failure(kind="Interrupted", message=f"{BY_SLURM}{reason.strip()}")
    not_started = NOT_STARTED.search(output)
    if task is not None or not_started is None:
        return None
    # srun gives up after about ten seconds without a controller; the allocation outlives that.
    kind = "ControllerDown" if is_silent(not_started["why"]) else "NotStarted"
    return Failure(kind=kind, message=one_line(not_started["why"]))


def _task_failure(task: re.Match[str], folder: TrialFolder) -> Failure:
    """Return the failure of a rank that exited, or that a signal has ended."""
    rank = int(task["rank"])
    how = one_line(task["how"])
    code = how.removeprefix(EXITED)
    if code.isdecimal():
        return rank_failure(rank, int(code), folder)
    number = SIGNALS.get(how.removesuffix(" (core dumped)"))
    if number is None:
        return Failure(kind="Killed", message=f"ended by Slurm: {how}", rank=rank)
    return rank_failure(rank, -number, folder)


def cancelled_by_user(message: str) -> bool:
    """Whether the message of an interruption says that a user wanted it: Slurm then gives no
    reason.
    """
    return message.endswith(f"{BY_SLURM}cancelled")


def is_silent(message: str) -> bool:
    """Return whether a client's message says that no controller answered."""
    return SILENT.search(message) is not None


def call(
    command: Sequence[str],
    *,
    patience: float = PATIENCE_SECONDS,
    on_wait: Callable[[str], None] = lambda message: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> subprocess.CompletedProcess[str]:
    """Run a client of Slurm, again and again while no controller answers.

    It is given up after `patience` seconds, or once `is_wanted` says no; then the result of the last
    call is returned, as `run_client` has it. `on_wait` gets a line about the wait, once.
    """
    deadline = time.monotonic() + patience
    pause = FIRST_PAUSE
    while True:
        completed = run_client(command)
        answered = completed.returncode == 0 or not is_silent(completed.stderr + completed.stdout)
        if answered or time.monotonic() + pause > deadline or not is_wanted():
            return completed
        if pause == FIRST_PAUSE:
            on_wait(f"{command[0]}: {one_line(completed.stderr)}; asking again for {patience:g} s")
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)


def run_client(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a client of Slurm once, without the variables that would change its options.

    One that is not installed, or takes longer than CALL_SECONDS, has the exit code that a shell or
    `timeout` would give; `stderr` says so.
    """
    try:
        return run_command(command, timeout=CALL_SECONDS, variables=client_variables())
    except HarnessError as error:
        return subprocess.CompletedProcess(command, 124, "", f"socket timed out: {error}")
    except OSError as error:
        message = f"{command[0]}: {error.strerror}"
        return subprocess.CompletedProcess(command, 127, "", message)
