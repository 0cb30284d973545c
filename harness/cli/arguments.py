"""Declares the arguments and options that several commands share, and reads the sweep they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.completion import (
    complete_profiles,
    complete_recorded_sweeps,
    complete_set,
    complete_sweeps,
)
from harness.core.errors import BadInput

if TYPE_CHECKING:
    from harness.spec.cluster import Profile
    from harness.spec.sweep import Sweep

# The arguments. A sweep to run is a file or the name of one; a sweep that has run is known by its name.
SweepArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP",
        help="A sweep file, or the name of a ready sweep.",
        autocompletion=complete_sweeps,
    ),
]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP",
        help="The name of a sweep that has run.",
        autocompletion=complete_recorded_sweeps,
    ),
]
# What to run and where. Both options may be repeated, and a later one goes before an earlier one.
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set an axis (execution=eager,compile) or any other key (length.epochs=3). Repeatable.",
        autocompletion=complete_set,
    ),
]
DataOption = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="[LABEL=]PATH",
        help="Where the data are: for every workload that reads files, or for the one named LABEL."
        " Repeatable.",
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="PROFILE",
        help="Where to run: the name of a cluster profile, or its file.",
        autocompletion=complete_profiles,
    ),
]
# Where results are kept. The environment variables are for CI files and clusters, where every command needs them.
ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results",
        metavar="DIR",
        envvar="HARNESS_RESULTS",
        help="The folder of records and of MLflow's database.",
    ),
]
UriOption = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="An MLflow server to use instead of results/mlflow.db.",
    ),
]
# How to run, compare and print.
RetryOption = Annotated[
    bool,
    typer.Option("--retry-failed/--skip-failed", help="Whether to run failed trials again."),
]
MinEffectOption = Annotated[
    str,
    typer.Option(
        "--min-effect",
        metavar="PERCENT",
        help="The smallest change of throughput that matters.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print all results as JSON instead of a table.")
]


def examples(*commands: str) -> str:
    """Return the epilog of a command's help: its examples, a line each."""
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExamples:\n{lines}"  # \b keeps typer from joining the lines into a paragraph


def load_sweep(
    sweep: str, settings: Sequence[str], data: Sequence[str], cluster: str
) -> tuple[Sweep, Profile]:
    """Return the sweep with its `--set` and `--data` options applied, and the profile it runs on.

    Raises BadInput for a mistake in either, and for a cell that the profile can't run.
    """
    from harness.spec import cluster as clusters
    from harness.spec import sweep as spec

    profile = clusters.load_profile(cluster)
    loaded = spec.load_sweep(spec.find_sweep_file(sweep), settings, data)
    axes = {f"{loaded.source}: {cell.label}": cell.axes for cell in loaded.cells}
    clusters.check_fits(profile, axes)
    return loaded, profile


def load_local_profile(cluster: str) -> Profile:
    """Return a profile that starts ranks on this machine; raises BadInput for any other."""
    from harness.spec import cluster as clusters

    profile = clusters.load_profile(cluster)
    check_launcher(cluster, profile, "torchrun", " (or harness submit)")
    return profile


def check_launcher(cluster: str, profile: Profile, allowed: str, hint: str = "") -> None:
    """Raise BadInput for a profile that starts ranks with another launcher than `allowed`."""
    if profile.launcher != allowed:
        raise BadInput(
            f"--cluster {cluster}: launcher: found {profile.launcher!r}; allowed: {allowed}{hint}"
        )


def split_commas(text: str) -> list[str]:
    """Return the parts of `a,b`, without blanks and empty parts."""
    parts = [part.strip() for part in text.split(",")]
    return [part for part in parts if part]
