"""`harness machine peak` on this machine: starts the ranks that measure, follows them, and keeps what they
measured.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.core.cores import usable_cores
from harness.core.errors import BadInput, HarnessError
from harness.core.paths import Results, TrialFolder, write_atomically
from harness.core.processes import Process, end_process_group
from harness.hardware import machine
from harness.hardware.machine import Machine
from harness.launch.torchrun import Torchrun
from harness.records.decode import FileFormat, decode_file
from harness.records.running import ProbeProgress, read_progress_file
from harness.spec.cluster import Profile, available_slots, count_gpus

POLL = 0.1  # seconds between two looks at the ranks
TIMEOUT = 900.0  # seconds that they may take
RESULT_FORMAT = FileFormat(name="rank's result")


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What one rank leaves."""

    machine: Machine | None  # as it measured it: of rank 0 alone
    failure: str | None  # why it failed, if it did


def choose_rank_count(profile: Profile, requested: int | None) -> int:
    """Return how many ranks all-reduce; raises BadInput for more than the machine has slots.

    Without a request that is one for each GPU, or two on a CPU that has slots for them.
    """
    slots, source = available_slots(profile)
    if requested is not None:
        if requested > slots:
            raise BadInput(f"--ranks: found {requested}; allowed: at most {slots}, {source}")
        return requested
    if profile.device != "cpu" and count_gpus():
        return max(1, slots)
    return max(1, min(2, slots))


def measure(
    results: Results,
    profile: Profile,
    *,
    ranks: int,
    quick: bool,
    on_progress: Callable[[str], None],
    fine: bool = False,
) -> tuple[Path, Machine]:
    """Measure this machine; return the path of its record and the record, which is on disk.

    `quick` measures fewer sizes with fewer repeats, and `fine` products of twice as many sizes.
    `on_progress` is called with what is being measured. Raises BadInput if the results can't be
    written, HarnessError with a rank's own message if one fails; the log that it names stays.
    """
    folder = _make_folder(results)
    request = {"device": profile.device, "quick": quick, "fine": fine}
    write_atomically(folder.assignment_path, json.dumps(request) + "\n")
    launcher = Torchrun(environment=profile.environment)
    command = launcher.command("harness.hardware.measured_peaks", folder, ranks)
    variables = launcher.variables(len(usable_cores()), {})
    process = launcher.start(command, variables, folder.launch_log)
    try:
        ended = _wait(process, folder, on_progress)
    except KeyboardInterrupt:
        end_process_group(process)
        shutil.rmtree(folder.path)
        raise
    finally:
        end_process_group(process)
    if not ended:
        raise HarnessError(f"peak: took longer than {TIMEOUT:g} s; log: {folder.launch_log}")
    measured = _read_results(folder, ranks)
    shutil.rmtree(folder.path)
    return machine.write(results.peaks, measured), measured


def _make_folder(results: Results) -> TrialFolder:
    """Return a new folder for the ranks.

    It is next to the records, so that the log of a rank that fails is where a user looks for the
    record. Raises BadInput if it can't be made.
    """
    try:
        results.peaks.mkdir(parents=True, exist_ok=True)
        return TrialFolder(Path(tempfile.mkdtemp(prefix="running-", dir=results.peaks)))
    except OSError as error:
        raise BadInput(f"--results: {results.peaks}: can't be written: {error.strerror}") from None


def _wait(process: Process, folder: TrialFolder, on_progress: Callable[[str], None]) -> bool:
    """Wait for the ranks; return whether they have ended before `TIMEOUT`.

    Meanwhile rank 0 writes what it measures to the folder's progress file, which is passed on.
    """
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        try:
            process.wait(POLL)
            return True
        except subprocess.TimeoutExpired:
            progress = read_progress_file(folder.progress_path, ProbeProgress)
            if progress:
                on_progress(progress["now"])
    return False


def _read_results(folder: TrialFolder, ranks: int) -> Machine:
    """Return what rank 0 measured.

    Raises HarnessError if a rank failed or left nothing. A failure that a rank reports comes first,
    because a rank that left nothing was probably ended for it.
    """
    failures = []
    missing = []
    measured: Machine | None = None
    for rank in range(ranks):
        path = folder.result_path(rank)
        if not path.exists():
            missing.append(f"rank {rank} left no result")
            continue
        result = decode_file(ProbeResult, path, RESULT_FORMAT)
        if result.failure:
            failures.append(result.failure)
        if rank == 0:
            measured = result.machine
    problems = [*failures, *missing]
    if problems:
        raise HarnessError(f"peak: {problems[0]}; log: {folder.launch_log}")
    assert measured is not None
    return measured
