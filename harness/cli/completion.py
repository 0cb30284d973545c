"""Offers the shell what may follow on a command line.

Every function here takes the text before the cursor and returns the candidates. Each imports what it needs, because the
shell starts a fresh process at every press of the tab key.
"""

from __future__ import annotations

import os
from pathlib import Path


def complete_sweeps(incomplete: str) -> list[str]:
    """Return the names of ready sweeps, then the YAML files."""
    from harness.spec.sweep import ready_sweeps

    names = [name for name in ready_sweeps() if name.startswith(incomplete)]
    files = sorted(str(path) for path in Path().glob(f"{incomplete}*.y*ml"))
    return names + files


def complete_profiles(incomplete: str) -> list[str]:
    """Return the names of the cluster profiles."""
    from harness.spec import cluster

    return [name for name in cluster.profile_paths() if name.startswith(incomplete)]


def complete_recorded_sweeps(incomplete: str) -> list[str]:
    """Return the names of sweeps that have run."""
    return [path.parent.name for path in _runs_folder().glob(f"{incomplete}*/sweep.json")]


def complete_trials(incomplete: str) -> list[str]:
    """Return the ids of trials that have started."""
    files = _runs_folder().glob(f"*/{incomplete}*/trial.json")
    return sorted({path.parent.name for path in files})


def complete_set(incomplete: str) -> list[str]:
    """Return axis names, or after `axis=` the values that the axis takes, also after a comma."""
    from harness.spec.axes import AXIS_TYPES, axis_choices

    axis, equals, values = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in AXIS_TYPES if name.startswith(axis)]
    finished, comma, value = values.rpartition(",")
    choices = [choice for choice in axis_choices(axis) if choice.startswith(value)]
    return [f"{axis}={finished}{comma}{choice}" for choice in choices]


def complete_topics(incomplete: str) -> list[str]:
    """Return the topics of the manual."""
    from harness.cli.pages import read_pages

    return [page.topic for page in read_pages() if page.topic.startswith(incomplete)]


def _runs_folder() -> Path:
    """Return the folder of all sweeps' records: options that were typed before are not known here."""
    return Path(os.environ.get("HARNESS_RESULTS", "results")) / "runs"
