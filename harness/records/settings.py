"""Collects what a trial is run with besides its cell, for its record.

It ends up in MLflow, where more people read it than may read the profile. Hence values of variables
are withheld by their names.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

from harness.core.variables import WITHHELD, is_secret_name, recorded_value
from harness.records import seal
from harness.records.differences import as_text, flatten
from harness.records.record import Record, RunSettings
from harness.sweep.cell import CheckpointRules
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

ASSIGNED = re.compile(r"(\w+)=")  # in a line of shell: the name of a variable
SLURM_KEYS = (
    "slurm.python",
    "slurm.prefix",
    "slurm.cpus_per_rank",
)  # that change what trials compute, or how fast


def run_settings(sweep: Sweep, profile: Profile) -> RunSettings:
    """Return what the trials of a sweep are run with on a cluster, without secrets.

    Values of variables are withheld by their names, and lines of `setup` that assign to such a name.
    """
    settings = changed_settings(asdict(profile), asdict(Profile()))
    environment = settings.get("environment", {})
    for name, value in environment.items():
        environment[name] = recorded_value(name, value)
    slurm = settings.get("slurm", {})
    if "setup" in slurm:
        slurm["setup"] = [_recorded_line(line) for line in slurm["setup"]]
    return RunSettings(
        sweep_file=str(sweep.source),
        base_folder=str(sweep.base_folder),
        seeds=list(sweep.seeds),
        repeats=sweep.repeats,
        checkpoint="best" if sweep.checkpoint.best else "none",
        checkpoint_every=sweep.checkpoint.every,
        profiling=sweep.profile,
        timeout=sweep.timeout,
        launcher=profile.launcher,
        device=profile.device,
        profile=json.loads(seal.json_text(settings)),
    )


def saves_at_intervals(record: Record) -> bool:
    """Return whether a trial saves checkpoints at intervals, as far as its record says."""
    if record.settings is None:
        return False
    interval = CheckpointRules(every=record.settings.checkpoint_every)
    is_script = record.trial.cell.workload.is_script
    return interval.of(record.settings.launcher, is_script=is_script) is not None


def _recorded_line(line: str) -> str:
    """Return a line of shell as a record has it: withheld if it assigns to the name of a secret."""
    return WITHHELD if any(map(is_secret_name, ASSIGNED.findall(line))) else line


def profile_change(recorded: RunSettings, current: RunSettings) -> str | None:
    """Return which setting of the profile differs that may change a result; None if none does.

    Values that were withheld can't be compared and do not count.
    """
    before, now = flatten(recorded.profile), flatten(current.profile)
    is_slurm = recorded.launcher == current.launcher == "slurm"
    for name in sorted({*before, *now}):
        is_deciding = name.startswith("environment.") or (is_slurm and name in SLURM_KEYS)
        if is_deciding and not is_secret_name(name) and before.get(name) != now.get(name):
            return f"{name}: found {as_text(now.get(name))}, recorded {as_text(before.get(name))}"
    return None


def changed_settings(settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from their defaults, nested ones too.

    A setting that has no default is kept.
    """
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        default = defaults.get(name)
        if value == default:
            continue
        if isinstance(value, dict) and isinstance(default, dict):
            changed[name] = changed_settings(value, default)
        else:
            changed[name] = value
    return changed
