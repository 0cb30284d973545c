"""Runs real sweeps of the test workload."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from harness.core.paths import Results, TrialFolder
from harness.launch import sweep as runner
from harness.launch.runner import TrialListener
from harness.records.record import Record
from harness.sweep import sweep as spec
from harness.sweep.cluster import Parallel, Profile, ValidityRules
from tests.support.sweeps import write

# Tests that share a small machine disturb each other; no trial must be invalid for that.
NO_VALIDITY_LIMITS: dict[str, Any] = dict.fromkeys(("steal", "contention", "data_wait"))
USER_SCRIPTS = Path(__file__).parent / "user-scripts"  # with their own loops
LINE = f"{Path(__file__).parent / 'line.py'}:LineFit"


class RecordCollector(TrialListener):
    """A listener that collects the records of finished trials."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        self.records.append(record)


def line_sweep(folder: Path, workloads: Mapping[str, Mapping[str, Any]], **keys: Any) -> Path:
    """Write a sweep file of variants of the test workload and return its path.

    `workloads` has the keys of each entry by its label; `keys` are those of the sweep.
    """
    entries = {label: {"uses": LINE, **entry} for label, entry in workloads.items()}
    return write(folder, entries, "line.yaml", **{"name": "line", "warmup": 2, **keys})


def run(
    path: Path,
    *,
    slots: int = 2,
    fail_fast: bool = False,
    redo: runner.Redo = "failed",
    forkserver: bool = True,
    listener: TrialListener | None = None,
    parallel: Parallel = 1,
) -> list[Record]:
    """Run the pending trials of a sweep on this machine and return the records of all its trials.

    Ranks are forked from the forkserver of this process, which later trials use too.
    """
    sweep = spec.load_sweep(path)
    folder = Results(path.parent / "results").sweep_folder(sweep.name)
    profile = Profile(
        slots=slots,
        device="cpu",
        forkserver=forkserver,
        validity=ValidityRules(**NO_VALIDITY_LIMITS),
        parallel=parallel,
    )
    return runner.run(
        sweep, profile, folder, listener or RecordCollector(), redo=redo, fail_fast=fail_fast
    )


def local_profile(folder: Path, **keys: Any) -> Path:
    """Write a profile with the same settings for the command line and return its path."""
    path = folder / "local.yaml"
    content = {"device": "cpu", "validity": NO_VALIDITY_LIMITS, **keys}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def by_label(records: Sequence[Record]) -> dict[str, Record]:
    return {record.trial.cell.workload.label: record for record in records}


def processes_below(folder: Path) -> list[int]:
    """Return the ids of other processes whose command line names something in `folder`."""
    process_ids: list[int] = []
    for process in psutil.process_iter(["cmdline"]):
        command_line = " ".join(process.info["cmdline"] or [])
        if process.pid != os.getpid() and str(folder) in command_line:
            process_ids.append(process.pid)
    return process_ids


def wait_until(condition: Any, seconds: float = 300.0, every: float = 0.05) -> None:
    """Wait until `condition()` is true; raises TimeoutError after so many seconds.

    The default is ample on a slow machine too. The condition is looked at every so many seconds, but
    a look that takes long, such as a command, gets at most a tenth of the time: others need the cores.
    """
    deadline = time.monotonic() + seconds
    while True:
        before = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"waited {seconds} s")
        time.sleep(max(every, 9 * (now - before)))
