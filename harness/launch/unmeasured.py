"""Lets ranks on this machine do a task of the worker, other than a trial, and waits until they end.

For commands that look into training, or measure the machine. They leave no record of a trial.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.launch.ranks import Ended, run_ranks
from harness.launch.stack import ready_stack
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Assignment, write_assignment
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile
from workloads.catalog import heavy_modules


def run_unmeasured(
    task: str,
    trial: Trial,
    base_folder: Path,
    profile: Profile,
    timeout: float,
    parent: Path,
    prepare: Callable[[TrialFolder], None] | None = None,
) -> TrialFolder:
    """Let every rank of a trial do a task, and return the folder with what they leave.

    It is a new folder in `parent`; `prepare` writes into it what the task needs besides the trial,
    whose paths are relative to `base_folder`. `timeout` is in seconds. Raises what `finish` raises, and
    BadInput for a script, and for a stack that ranks can't run under.
    """
    cell = trial.cell
    cell.workload.require_class()
    folder = TrialFolder(Path(tempfile.mkdtemp(prefix=f"{task}-", dir=parent)))
    assignment = Assignment(trial=trial, base_folder=str(base_folder), device=profile.device)
    write_assignment(folder.assignment_path, assignment)
    if prepare is not None:
        prepare(folder)
    launcher = Torchrun.of(profile)
    if cell.stack is not None:
        launcher = launcher.in_stack(ready_stack(cell, base_folder, cell.label))
    life = run_ranks(
        launcher,
        folder,
        cell.axes.world_size,
        launcher.variables(cell.axes.num_threads, cell.environment),
        timeout,
        arguments=["--task", task],
        preload=heavy_modules(cell.workload.uses),
    )
    finish(life, folder)
    return folder


def finish(life: Generator[None, None, Ended], folder: TrialFolder) -> None:
    """Wait until the ranks have ended that `run_ranks` runs.

    Raises HarnessError with a rank's own message if one fails, hangs or leaves no result; it names a log in
    `folder`, which must stay then.
    """
    while True:
        try:
            next(life)
        except StopIteration as end:
            ended: Ended = end.value
            break
    if ended.failure is not None:
        assert ended.failure.log is not None  # as whoever found the cause has looked for it
        raise HarnessError(f"{ended.failure}; log: {folder.path / ended.failure.log}")
