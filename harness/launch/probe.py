"""`harness peak` on this machine: starts the ranks that measure, follows them, keeps what they
found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import BadInput, HarnessError
from harness.core.paths import Results, TrialFolder, write_atomically
from harness.core.processes import Process, end_process_group
from harness.hardware import machine
from harness.hardware.machine import Machine
from harness.launch.torchrun import Torchrun
from harness.records.decode import FileFormat, decode_file
from harness.records.running import read_progress_file
from harness.spec.cluster import Profile, available_slots, count_gpus

POLL = 0.1  # seconds between looks
TIMEOUT = 900.0  # seconds


RESULT_FORMAT = FileFormat(name="rank's result")


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What one rank leaves: the machine as it measured it, or why it failed."""

    machine: Machine | None
    failure: str | None


def choose_rank_count(profile: Profile, asked: int | None) -> int:
    """The ranks that all-reduce: as asked, or one per GPU, or two on a CPU that holds them. Raises
    BadInput.
    """
    held, what = available_slots(profile)
    if asked is None:
        return max(1, held if profile.device != "cpu" and count_gpus() else min(2, held))
    if asked > held:
        raise BadInput(f"--ranks: found {asked}; allowed: at most {held}, {what}")
    return asked


def measure(
    results: Results,
    profile: Profile,
    *,
    ranks: int,
    quick: bool,
    on_progress: Callable[[str], None],
) -> tuple[Path, Machine]:
    """The record's path and the record, once it is on disk; `told` hears what is being measured.

    Raises BadInput if results can't be written, HarnessError with a rank's own words if one fails;
    its log stays.
    """
    try:
        results.peaks.mkdir(parents=True, exist_ok=True)
        place = TrialFolder(Path(tempfile.mkdtemp(prefix="running-", dir=results.peaks)))
    except OSError as error:
        raise BadInput(f"--results: {results.peaks}: can't be written: {error.strerror}") from None
    request = {"device": profile.device, "quick": quick}
    write_atomically(place.assignment_path, json.dumps(request) + "\n")
    launcher = Torchrun(environment=profile.environment)
    arguments = launcher.command("harness.hardware.measured_peaks", place, ranks)
    variables = launcher.variables(len(os.sched_getaffinity(0)))
    process = launcher.start(arguments, variables, place.launch_log)
    try:
        in_time = _follow(process, place, on_progress)
    except KeyboardInterrupt:
        end_process_group(process)
        shutil.rmtree(place.path)
        raise
    finally:
        end_process_group(process)
    found = _read(place, ranks) if in_time else f"took longer than {TIMEOUT:g} s"
    if isinstance(found, str):
        raise HarnessError(f"peak: {found}; log: {place.launch_log}")
    shutil.rmtree(place.path)
    return machine.write(results.peaks, found), found


def _follow(process: Process, place: TrialFolder, on_progress: Callable[[str], None]) -> bool:
    """Whether it ended in time."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        try:
            process.wait(POLL)
            return True
        except subprocess.TimeoutExpired:
            progress = read_progress_file(place.progress_path)
            if progress:
                on_progress(progress["now"])
    return False


def _read(place: TrialFolder, ranks: int) -> Machine | str:
    """What rank 0 found, or the first failure."""
    results: list[ProbeResult | None] = []
    for rank in range(ranks):
        path = place.result_path(rank)
        result = decode_file(ProbeResult, path, RESULT_FORMAT) if path.exists() else None
        results.append(result)
    failures = [result.failure for result in results if result and result.failure]
    lost = [f"rank {rank} left no result" for rank, result in enumerate(results) if result is None]
    if failures or lost:
        return str([*failures, *lost][0])
    assert results[0] is not None
    assert results[0].machine is not None
    return results[0].machine
