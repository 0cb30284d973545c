"""Runs real sweeps of the test workload."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from harness.core.paths import Results, TrialFolder
from harness.launch import sweep as runner
from harness.launch.runner import TrialListener
from harness.records.record import Record
from harness.sweep import sweep as spec
from harness.sweep.cluster import Parallel, Profile, ValidityRules

# Tests that share a small machine disturb each other; no trial must be invalid for that.
NO_VALIDITY_LIMITS: dict[str, Any] = {
    "steal": None,
    "contention": None,
    "data_wait": None,
}
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
    content = {"name": "line", "workloads": entries, "warmup": 2, **keys}
    content = json.loads(json.dumps(content))  # shared parts would be written as aliases
    path = folder / "line.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def run(
    path: Path,
    *,
    slots: int = 2,
    fail_fast: bool = False,
    redo: runner.Redo = "failed",
    forkserver: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
    listener: TrialListener | None = None,
    validity: ValidityRules | None = None,
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
        environment=dict(environment),
        forkserver=forkserver,
        validity=validity or ValidityRules(**NO_VALIDITY_LIMITS),
        parallel=parallel,
    )
    listener = listener or RecordCollector()
    return runner.run(sweep, profile, folder, listener, redo=redo, fail_fast=fail_fast)


def local_profile(folder: Path, **keys: Any) -> Path:
    """Write a profile with the same settings for the command line and return its path."""
    path = folder / "local.yaml"
    path.write_text(
        yaml.safe_dump({"device": "cpu", "validity": NO_VALIDITY_LIMITS, **keys}), encoding="utf-8"
    )
    return path


def by_label(records: Sequence[Record]) -> dict[str, Record]:
    return {record.trial.cell.workload.label: record for record in records}


def processes_below(folder: Path) -> list[int]:
    """Return the ids of other processes whose command line names something in `folder`."""
    process_ids: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command_line = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            if str(folder).encode() in command_line:
                process_ids.append(int(entry.name))
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
