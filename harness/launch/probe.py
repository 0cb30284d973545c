"""`harness peak` on this machine: starts the ranks that measure, follows them, and keeps what they
measured.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from harness.core.cores import usable_cores
from harness.core.errors import BadInput
from harness.core.paths import Results, TrialFolder, write_atomically
from harness.core.progress import report_progress
from harness.hardware import machine
from harness.hardware.machine import Machine
from harness.launch.hold import hold_machine
from harness.launch.ranks import run_ranks
from harness.launch.torchrun import Torchrun
from harness.launch.unmeasured import finish
from harness.records.running import ProbeProgress, read_progress_file
from harness.spec.cluster import Profile, available_slots

TIMEOUT = 900.0  # seconds that the ranks may take


def measure_peaks(results: Results, profile: Profile, ranks: int | None) -> tuple[Machine, Path]:
    """Measure this machine; return what was measured, and the path of its record.

    `ranks` is how many all-reduce, None for one for each GPU, or two on a CPU that has slots for them.
    The record replaces an earlier one of this machine. Raises BadInput for more ranks than the machine
    has slots and if the results can't be written, HarnessError with a rank's own message if one fails;
    the log that it names stays.
    """
    count = _choose_rank_count(profile, ranks)
    with hold_machine(profile, "measuring this machine's peaks"):
        folder = TrialFolder(make_folder(results.peaks, "running-"))
        request = {"device": profile.device}
        write_atomically(folder.assignment_path, json.dumps(request) + "\n")
        launcher = Torchrun(environment=profile.environment)

        def pass_progress_on() -> None:
            """Pass on what rank 0 writes to the folder's progress file."""
            progress = read_progress_file(folder.progress_path, ProbeProgress)
            if progress:
                report_progress(progress["now"])

        try:
            life = run_ranks(
                launcher,
                folder,
                count,
                launcher.variables(len(usable_cores()), {}),
                TIMEOUT,
                arguments=["--task", "peaks"],
                on_poll=pass_progress_on,
            )
            finish(life, folder)
        except KeyboardInterrupt:
            shutil.rmtree(folder.path)
            raise
        (measured,) = machine.read_all(folder.path / machine.PEAKS_FOLDER).values()
        shutil.rmtree(folder.path)
    return measured, machine.write(results.peaks, measured)


def _choose_rank_count(profile: Profile, requested: int | None) -> int:
    """Return how many ranks all-reduce; raises BadInput for more than the machine has slots."""
    slots, source = available_slots(profile)
    if requested is not None:
        if requested > slots:
            raise BadInput(f"--ranks: found {requested}; allowed: at most {slots}, {source}")
        return requested
    if profile.gpus:
        return max(1, slots)
    return max(1, min(2, slots))


def make_folder(parent: Path, prefix: str) -> Path:
    """Make a fresh folder among the results, for ranks that are no trials'.

    So the log of a rank that fails is where a user looks for the results. Raises BadInput if it
    can't be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent.absolute()))
    except OSError as error:
        raise BadInput(f"--results: {parent}: can't be written: {error.strerror}") from None
