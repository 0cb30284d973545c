"""Offers the shell what may follow on a command line.

Every function here takes the text before the cursor and returns the candidates. Each imports what
it needs, because the shell starts a fresh process at every press of the tab key.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def complete_sweeps(incomplete: str) -> list[str]:
    """Return the names of ready sweeps, then the YAML files."""
    from harness.sweep.sweep import ready_sweeps

    folder, slash, _ = incomplete.rpartition("/")
    paths = sorted(Path(f"{folder}{slash}").glob("*.y*ml"))
    files = [f"{folder}{slash}{path.name}" for path in paths]  # as it was typed: ./ stays
    return _beginning_with(incomplete, [*ready_sweeps(), *files])


def complete_profiles(incomplete: str) -> list[str]:
    """Return the names of the cluster profiles, those that come with the harness included."""
    from harness.sweep import cluster

    return _beginning_with(incomplete, cluster.profile_paths())


def complete_recorded_sweeps(incomplete: str) -> list[str]:
    """Return the names of sweeps that have run, as their folders are called.

    They are those of the environment variable's results folder, else of the default one: a `--results`
    that was typed earlier on the line is not passed to the functions here.
    """
    from harness.core.paths import Results, default_results

    files = Results(default_results()).runs.glob("*/sweep.json")
    return _beginning_with(incomplete, [path.parent.name for path in files])


def complete_axes(incomplete: str) -> list[str]:
    """Return the names of axes with an equals sign, as `--set` and `--only` take them."""
    from harness.sweep.axes import AXIS_TYPES

    return _beginning_with(incomplete, [f"{axis}=" for axis in AXIS_TYPES])


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with the text before the cursor, in their order."""
    return [name for name in names if name.startswith(incomplete)]
