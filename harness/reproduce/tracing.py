"""Runs trials to trace them, and finds the first step and tensor at which two of them part.

The first run of each has one mark a moment, of all steps. From the first step at which they differ,
the second run has a mark for each tensor, and the tensors themselves. So two runs of each are
enough, however many steps there are.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder
from harness.core.processes import end_process_group
from harness.launch import forkserver
from harness.launch.torchrun import Torchrun
from harness.launch.watchdog import Watchdog
from harness.records.assignment import Assignment, write_assignment
from harness.records.record import read_rank_result
from harness.reproduce.divergence import Comparison, RankMark, Traces, compare
from harness.reproduce.trace import Recording, read_traces, values_path, write_recording
from harness.reproduce.values import TensorDifference, difference
from harness.spec.cell import Trial
from harness.spec.cluster import Profile

POLL = 0.1  # seconds between two looks at the ranks
LAST_STEP = 1 << 30  # more steps than a trial has


@dataclass(frozen=True, kw_only=True)
class TracedTrial:
    """A trial to trace, and where its code and its data are found."""

    trial: Trial
    base_folder: Path  # that the paths of its workload are relative to


@dataclass(frozen=True, kw_only=True)
class Parting:
    """Where two trials part."""

    steps: Comparison  # of all steps, with one mark a moment
    tensors: Comparison | None = None  # of the first step that differs, with a mark a tensor
    differences: tuple[TensorDifference, ...] = ()  # of the tensors that differ first


class Tracer:
    """Runs trials on this machine, one after the other, and reads their traces."""

    def __init__(
        self, folder: Path, profile: Profile, timeout: float, on_progress: Callable[[str], None]
    ) -> None:
        """Work in `folder`; a trial may take `timeout` seconds."""
        self._folder = folder
        self._profile = profile
        self._timeout = timeout
        self._on_progress = on_progress

    def trace(self, name: str, traced: TracedTrial, recording: Recording) -> tuple[Path, Traces]:
        """Run a trial; return its folder and the traces of its ranks.

        Raises HarnessError with a rank's own message if one fails; the log that it names stays.
        """
        self._on_progress(f"tracing {name}: {traced.trial.cell.label}")
        folder = TrialFolder(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder)))
        assignment = Assignment(
            trial=traced.trial,
            base_folder=str(traced.base_folder),
            device=self._profile.device,
        )
        write_assignment(folder.assignment_path, assignment)
        write_recording(folder.path, recording)
        world_size = traced.trial.cell.axes.world_size
        self._run(folder, traced.trial, world_size)
        return folder.path, read_traces(folder.path, world_size)

    def _run(self, folder: TrialFolder, trial: Trial, world_size: int) -> None:
        """Start the ranks and wait until they have ended; raises HarnessError if one fails."""
        fork = self._profile.forkserver and forkserver.AVAILABLE and not self._profile.gpus
        launcher = Torchrun(environment=self._profile.environment, fork=fork)
        command = launcher.command(
            "harness.reproduce.trace_worker", folder, world_size, ["--write-logs"]
        )
        variables = launcher.variables(trial.cell.axes.num_threads)
        process = launcher.start(command, variables, folder.launch_log)
        watchdog = Watchdog(folder, world_size)
        deadline = time.monotonic() + self._timeout
        try:
            while process.poll() is None:
                try:
                    process.wait(POLL)
                except subprocess.TimeoutExpired:
                    verdict = watchdog.look()
                    if verdict is not None:
                        raise HarnessError(f"{verdict.reason}; logs: {folder.log_folder}") from None
                if time.monotonic() > deadline:
                    raise HarnessError(
                        f"a traced trial took longer than {self._timeout:g} s;"
                        f" logs: {folder.log_folder}"
                    )
        finally:
            end_process_group(process)
        _check_results(folder, world_size)


def _check_results(folder: TrialFolder, world_size: int) -> None:
    """Raise HarnessError if a rank has failed or left no result."""
    for rank in range(world_size):
        path = folder.result_path(rank)
        if not path.exists():
            raise HarnessError(f"rank {rank} left no result; log: {folder.launch_log}")
        failure = read_rank_result(path).failure
        if failure is not None:
            raise HarnessError(f"{failure}; log: {folder.rank_log(rank)}")


def find_parting(tracer: Tracer, a: TracedTrial, b: TracedTrial) -> Parting:
    """Return where two trials part; raises HarnessError if a rank fails."""
    overview = Recording(first_step=1, last_step=LAST_STEP, tensors=False, values=False)
    _, traces_a = tracer.trace("a", a, overview)
    _, traces_b = tracer.trace("b", b, overview)
    steps = compare(traces_a, traces_b)
    if steps.divergence is None:
        return Parting(steps=steps)
    step = steps.divergence.first.mark.step
    detail = Recording(first_step=step, last_step=step, tensors=True, values=True)
    folder_a, traces_a = tracer.trace("a", a, detail)
    folder_b, traces_b = tracer.trace("b", b, detail)
    tensors = compare(traces_a, traces_b)
    if tensors.divergence is None:
        return Parting(steps=steps, tensors=tensors)
    differences = []
    for entry in tensors.divergence.together:
        differences.append(_difference_of(entry, folder_a, folder_b))
    return Parting(steps=steps, tensors=tensors, differences=tuple(differences))


def _difference_of(entry: RankMark, folder_a: Path, folder_b: Path) -> TensorDifference:
    """Return how far a tensor is apart in two trials whose values were kept."""
    return difference(values_path(folder_a, entry.rank), values_path(folder_b, entry.rank), entry)
