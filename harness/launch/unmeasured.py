"""Runs the ranks of a trial on this machine without measuring anything, and waits until they end.

For commands that look into training instead of timing it. They leave no record.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.core.processes import Process, end_process_group
from harness.launch import forkserver
from harness.launch.stack import ready_stack
from harness.launch.torchrun import Torchrun
from harness.launch.watchdog import Watchdog
from harness.records.assignment import read_assignment
from harness.records.files import read_rank_result
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from workloads.catalog import heavy_modules

POLL = 0.1  # seconds between two looks at the ranks


def run_unmeasured(
    module: str, folder: TrialFolder, cell: Cell, profile: Profile, timeout: float
) -> None:
    """Run `module` at every rank of the trial of `cell` whose assignment is in `folder`.

    `timeout` is in seconds. Raises HarnessError with a rank's own message if one fails, hangs or
    leaves no result; it names a log in `folder`, which must stay then. Raises BadInput for a stack
    that ranks can't run under.
    """
    axes = cell.axes
    fork = profile.forkserver and forkserver.AVAILABLE and not profile.gpus
    launcher = Torchrun(environment=profile.environment, fork=fork)
    if cell.stack is not None:
        base = Path(read_assignment(folder.assignment_path).base_folder)
        launcher = launcher.in_stack(ready_stack(cell, base))
    command = launcher.command(module, folder, axes.world_size, ["--write-logs"])
    variables = launcher.variables(axes.num_threads, cell.environment)
    preload = heavy_modules(cell.workload.uses)
    process = launcher.start(command, variables, folder.launch_log, preload=preload)
    try:
        _wait(process, folder, axes.world_size, timeout)
    finally:
        end_process_group(process)
    _check_results(folder, axes.world_size)


def _wait(process: Process, folder: TrialFolder, world_size: int, timeout: float) -> None:
    """Wait until the ranks have ended; raises HarnessError if they hang or take too long."""
    watchdog = Watchdog(folder, world_size)
    deadline = time.monotonic() + timeout
    while process.poll() is None:
        try:
            process.wait(POLL)
        except subprocess.TimeoutExpired:
            verdict = watchdog.look()
            if verdict is not None:
                raise HarnessError(f"{verdict.reason}; logs: {folder.log_folder}") from None
        if time.monotonic() > deadline:
            raise HarnessError(
                f"the ranks took longer than {timeout:g} s; logs: {folder.log_folder}"
            )


def _check_results(folder: TrialFolder, world_size: int) -> None:
    """Raise HarnessError if a rank has failed or left no result."""
    for rank in range(world_size):
        path = folder.result_path(rank)
        if not path.exists():
            raise HarnessError(f"rank {rank} left no result; log: {folder.launch_log}")
        failure = read_rank_result(path).failure
        if failure is not None:
            raise HarnessError(f"{failure}; log: {folder.rank_log(rank)}")
