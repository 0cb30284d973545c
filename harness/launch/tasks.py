"""Lets ranks on this machine do a task of the worker, other than a trial, and waits until they end.

For commands that look into training, or measure the machine. They leave no record of a trial.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import Results, TrialFolder, write_atomically
from harness.core.progress import report_progress
from harness.core.scratch import run_folder
from harness.hardware import machine
from harness.hardware.machine import Machine
from harness.launch.hold import hold_machine
from harness.launch.launcher import Launcher, RankProgram
from harness.launch.ranks import Ended, run_ranks
from harness.launch.stack import ready_stack
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Assignment, read_progress_file, write_assignment
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile, available_slots

PEAKS_TIMEOUT = 900.0  # seconds that ranks may take which measure the machine


def run_task(
    task: str,
    trial: Trial,
    base_folder: Path,
    profile: Profile,
    timeout: float,
    parent: Path,
    prepare: Callable[[TrialFolder], None] = lambda folder: None,
) -> TrialFolder:
    """Let every rank of a trial do a task, and return the folder with what they leave.

    It is a new folder in `parent`; `prepare` writes into it what the task needs besides the trial,
    whose paths are relative to `base_folder`. `timeout` is in seconds. Raises what `finish` raises, and
    BadInput for a script, and for a stack that ranks can't run under.
    """
    cell = trial.cell
    cell.workload.require_class()
    path = tempfile.mkdtemp(prefix=f"{task}-", dir=parent)
    folder = TrialFolder(Path(path))
    assignment = Assignment(trial=trial, base_folder=str(base_folder), device=profile.device)
    write_assignment(folder.assignment_path, assignment)
    prepare(folder)
    stack = ready_stack(cell, base_folder, cell.label)
    program = RankProgram.of(cell, folder, stack, "--task", task)
    finish(Torchrun.of(profile).start, program, timeout)
    return folder


def measure_peaks(results: Results, profile: Profile, ranks: int | None) -> tuple[Machine, Path]:
    """Measure this machine; return what was measured, and the path of its record.

    `ranks` is how many all-reduce, None for one for each GPU, or two on a CPU that has slots for them.
    The record replaces an earlier one of this machine. Raises BadInput for more ranks than the machine
    has slots, and what `finish` raises.
    """
    slots, source = available_slots(profile)
    default = slots if profile.gpus else min(2, slots)
    if ranks is not None and ranks > slots:
        raise BadInput(f"--ranks: found {ranks}; allowed: at most {slots}, {source}")
    with hold_machine(profile, "measuring this machine's peaks"), run_folder("peaks") as path:
        folder = TrialFolder(path)
        content = json.dumps({"device": profile.device})
        write_atomically(folder.assignment_path, content)
        program = RankProgram(
            arguments=["--task", "peaks", "--write-logs"],
            folder=folder,
            world_size=ranks or max(1, default),
            num_threads=len(usable_cores()),
        )

        def pass_progress_on() -> None:
            """Pass on what rank 0 writes to the folder's progress file."""
            progress = read_progress_file(folder.progress_path)
            if progress:
                report_progress(progress["now"])

        launcher = Torchrun(environment=profile.environment).start
        finish(launcher, program, PEAKS_TIMEOUT, pass_progress_on)
        peaks = machine.read_all(folder.path / machine.PEAKS_FOLDER)
        (measured,) = peaks.values()
    return measured, machine.write(results.peaks, measured)


def finish(
    launcher: Launcher,
    program: RankProgram,
    timeout: float,
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Run ranks until they have ended.

    Raises HarnessError with a rank's own message if one fails, hangs or leaves no result; it names a log in
    their folder, which must stay then.
    """
    life = run_ranks(launcher, program, timeout, on_poll=on_poll)
    while True:
        try:
            next(life)
        except StopIteration as end:
            ended: Ended = end.value
            break
    if ended.failure is not None:
        raise HarnessError(f"{ended.failure}; log: {program.folder.path}/{ended.failure.log}")
