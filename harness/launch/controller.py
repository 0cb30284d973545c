"""Slurm's controller: calls of its clients that are patient while it is away.

A controller that is restarted, or overloaded, does not answer for seconds or minutes. Jobs keep
running, and a job that gave up would lose its nodes without need. So a job repeats each call until
the controller answers.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence

from harness.core.errors import one_line
from harness.core.processes import Process, end_process_group
from harness.core.slurm_environment import client_variables, own_job_id

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
        return subprocess.run(
            command,
            env=client_variables(),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=CALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        message = f"socket timed out: no answer within {CALL_SECONDS:g} s"
        return subprocess.CompletedProcess(command, 124, "", message)
    except OSError as error:
        message = f"{command[0]}: {error.strerror}"
        return subprocess.CompletedProcess(command, 127, "", message)


def end_step(process: Process, name: str) -> None:
    """End a step of this name that srun's `process` runs, and its tasks on all nodes.

    They outlive an srun that is killed. An srun that exits has ended them.
    """
    status = process.poll()
    end_process_group(process)
    if status is not None and status >= 0:
        return
    listed = call(
        ["squeue", "--steps", f"--jobs={own_job_id()}", "--noheader", "--format=%i|%j"],
        patience=STEP_PATIENCE,
    )
    for line in listed.stdout.splitlines():
        step_id, _, step_name = line.strip().partition("|")
        if step_name == name:
            call(["scancel", "--signal=KILL", step_id], patience=STEP_PATIENCE)
