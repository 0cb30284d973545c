"""Lets ranks on this machine do a task of the worker, other than a trial, and waits until they end.

For commands that look into training, or measure the machine. They leave no record of a trial.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.core.control_groups import oom_kills
from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.launch.assemble import first_cause, read_rank_files
from harness.launch.launcher import describe_end
from harness.launch.stack import ready_stack
from harness.launch.torchrun import Torchrun
from harness.launch.watch import to_the_end, watch
from harness.records.assignment import Assignment, write_assignment
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
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
    whose paths are relative to `base_folder`. `timeout` is in seconds. Raises what `run_task` raises, and
    BadInput for a script, and for a stack that ranks can't run under.
    """
    trial.cell.workload.require_class()
    folder = TrialFolder(Path(tempfile.mkdtemp(prefix=f"{task}-", dir=parent)))
    assignment = Assignment(trial=trial, base_folder=str(base_folder), device=profile.device)
    write_assignment(folder.assignment_path, assignment)
    if prepare is not None:
        prepare(folder)
    cell, axes = trial.cell, trial.cell.axes
    launcher = Torchrun.of(profile)
    if cell.stack is not None:
        launcher = launcher.in_stack(ready_stack(cell, base_folder, cell.label))
    run_task(
        task,
        folder,
        launcher,
        launcher.variables(axes.num_threads, cell.environment),
        world_size=axes.world_size,
        timeout=timeout,
        preload=heavy_modules(cell.workload.uses),
    )
    return folder


def run_task(
    task: str,
    folder: TrialFolder,
    launcher: Torchrun,
    variables: Mapping[str, str],
    *,
    world_size: int,
    timeout: float,
    preload: Sequence[str] = (),
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Let every rank do a task with `folder`: the name of one of the worker's `TASKS`.

    `timeout` is in seconds; `on_poll` is called ten times a second. Raises HarnessError with a
    rank's own message if one fails, hangs or leaves no result; it names a log in `folder`, which
    must stay then.
    """
    arguments = ["--task", task, "--write-logs"]
    command = launcher.command("harness.training.worker", folder, world_size, arguments)
    kills_before = oom_kills()
    process = launcher.start(command, variables, folder.launch_log, preload=preload)
    try:
        ended_by = to_the_end(
            watch(process, launcher, folder, world_size, timeout, on_poll=on_poll)
        )
    finally:
        launcher.end(process, folder)
    failure = ended_by or first_cause(
        folder,
        read_rank_files(folder, world_size),
        launcher.observed_failures(folder, ""),
        describe_end(process.poll(), oom_kills() > kills_before),
    )
    if failure is not None:
        assert failure.log is not None  # as both have looked for it
        raise HarnessError(f"{failure}; log: {folder.path / failure.log}")
