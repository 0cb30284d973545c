"""`harness peak` on this machine: starts the ranks that measure, follows them, and keeps what they
measured.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.core.cores import usable_cores
from harness.core.errors import BadInput
from harness.core.paths import Results, TrialFolder, write_atomically
from harness.core.progress import report_progress
from harness.core.scratch import run_folder
from harness.hardware import machine
from harness.hardware.machine import Machine
from harness.launch.hold import hold_machine
from harness.launch.ranks import run_ranks
from harness.launch.torchrun import Torchrun
from harness.launch.unmeasured import finish
from harness.records.assignment import read_progress_file
from harness.sweep.cluster import Profile, available_slots

TIMEOUT = 900.0  # seconds that the ranks may take


def measure_peaks(results: Results, profile: Profile, ranks: int | None) -> tuple[Machine, Path]:
    """Measure this machine; return what was measured, and the path of its record.

    `ranks` is how many all-reduce, None for one for each GPU, or two on a CPU that has slots for them.
    The record replaces an earlier one of this machine. Raises BadInput for more ranks than the machine
    has slots, HarnessError with a rank's own message if one fails; the log that it names stays.
    """
    slots, source = available_slots(profile)
    count = ranks or max(1, slots if profile.gpus else min(2, slots))
    if ranks is not None and ranks > slots:
        raise BadInput(f"--ranks: found {ranks}; allowed: at most {slots}, {source}")
    with hold_machine(profile, "measuring this machine's peaks"), run_folder("peaks") as path:
        folder = TrialFolder(path)
        write_atomically(folder.assignment_path, json.dumps({"device": profile.device}) + "\n")
        launcher = Torchrun(environment=profile.environment)
        variables = launcher.variables(len(usable_cores()), {})

        def pass_progress_on() -> None:
            """Pass on what rank 0 writes to the folder's progress file."""
            progress = read_progress_file(folder.progress_path)
            if progress:
                report_progress(progress["now"])

        life = run_ranks(
            launcher,
            folder,
            count,
            variables,
            TIMEOUT,
            arguments=["--task", "peaks"],
            on_poll=pass_progress_on,
        )
        finish(life, folder)
        (measured,) = machine.read_all(folder.path / machine.PEAKS_FOLDER).values()
    return measured, machine.write(results.peaks, measured)
