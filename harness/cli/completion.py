"""Offers the shell what may follow on a command line.

Every function here takes the text before the cursor and returns the candidates. Each imports what
it needs, because the shell starts a fresh process at every press of the tab key.

Sweeps and trials that have run are known by the names of their folders: no record is read, so a
damaged one does not break completion.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def complete_sweeps(incomplete: str) -> list[str]:
    """Return the names of ready sweeps, then the YAML files."""
    from harness.spec.sweep import ready_sweeps

    folder, slash, _ = incomplete.rpartition("/")
    paths = sorted(Path(f"{folder}{slash}").glob("*.y*ml"))
    files = [f"{folder}{slash}{path.name}" for path in paths]  # as it was typed: ./ stays
    return _beginning_with(incomplete, [*ready_sweeps(), *files])


def complete_profiles(incomplete: str) -> list[str]:
    """Return the names of the cluster profiles, those that come with the harness included."""
    from harness.spec import cluster

    return _beginning_with(incomplete, cluster.profile_paths())


def complete_recorded_sweeps(incomplete: str) -> list[str]:
    """Return the names of sweeps that have run, as their folders are called."""
    files = _runs_folder().glob("*/sweep.json")
    return _beginning_with(incomplete, [path.parent.name for path in files])


def complete_trials(incomplete: str) -> list[str]:
    """Return the ids of trials that have started, each once: several sweeps may share a trial."""
    files = _runs_folder().glob("*/*/attempt-*/trial.json")
    return _beginning_with(incomplete, sorted({path.parent.parent.name for path in files}))


def complete_set(incomplete: str) -> list[str]:
    """Return axis names, or after `axis=` the values that the axis takes, also after a comma.

    An axis of numbers, and a key that is no axis, has no candidates after its equals sign.
    """
    from harness.spec.axes import AXIS_TYPES, axis_choices

    axis, equals, values = incomplete.partition("=")
    if not equals:
        return [f"{name}=" for name in _beginning_with(axis, AXIS_TYPES)]
    finished, comma, value = values.rpartition(",")
    # The shell replaces the whole word, so each candidate repeats what is before the last comma.
    choices = _beginning_with(value, axis_choices(axis))
    return [f"{axis}={finished}{comma}{choice}" for choice in choices]


def complete_only(incomplete: str) -> list[str]:
    """Return terms that continue a word: keys, or after `axis=` its values."""
    from harness.spec.axes import AXIS_TYPES, axis_choices

    axis, equals, values = incomplete.partition("=")
    if not equals:
        return [
            f"{name}=" for name in _beginning_with(axis, ["workload", "cell", "seed", *AXIS_TYPES])
        ]
    finished, comma, value = values.rpartition(",")
    choices = _beginning_with(value, axis_choices(axis.removesuffix("!")))
    return [f"{axis}={finished}{comma}{choice}" for choice in choices]


def complete_workloads(incomplete: str) -> list[str]:
    """Return the names of the workloads that come with the harness."""
    from workloads.catalog import BUILT_IN

    return _beginning_with(incomplete, BUILT_IN)


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with the text before the cursor, in their order."""
    return [name for name in names if name.startswith(incomplete)]


def _runs_folder() -> Path:
    """Return the folder of all sweeps' records.

    It is that of the environment variable, else the default: a `--results` that was typed earlier
    on the line is not passed to the functions here.
    """
    from harness.core.paths import Results, default_results

    return Results(default_results()).runs
