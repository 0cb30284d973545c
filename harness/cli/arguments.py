"""The arguments and options that several commands share, and what the shell offers for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.core.errors import BadInput


def sweeps(incomplete: str) -> list[str]:
    from harness.spec.sweep import ready_sweeps

    files = sorted(str(path) for path in Path().glob(f"{incomplete}*.y*ml"))
    return [name for name in ready_sweeps() if name.startswith(incomplete)] + files


def profiles(incomplete: str) -> list[str]:
    from harness.spec import cluster

    return [name for name in cluster.profile_paths() if name.startswith(incomplete)]


def recorded(incomplete: str) -> list[str]:
    """The names of sweeps that have run, for the shell."""
    return [path.parent.name for path in _runs().glob(f"{incomplete}*/sweep.json")]


def trials(incomplete: str) -> list[str]:
    """The ids of trials that have begun, for the shell."""
    return sorted({path.parent.name for path in _runs().glob(f"*/{incomplete}*/trial.json")})


def _runs() -> Path:
    return Path(os.environ.get("HARNESS_RESULTS", "results")) / "runs"


def _sets(incomplete: str) -> list[str]:
    from harness.cli.completion import complete_set

    return complete_set(incomplete)


SweepArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP", help="A sweep file, or the name of a ready one.", autocompletion=sweeps
    ),
]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP", help="The name of a sweep that has run.", autocompletion=recorded
    ),
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set an axis (execution=eager,compile) or any other key (length.epochs=3). Repeatable.",
        autocompletion=_sets,
    ),
]
DataOption = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="[LABEL=]PATH",
        help="Where the data lies, for all workloads that read files or for one.",
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="PROFILE",
        help="Where to run: a profile's name or file.",
        autocompletion=profiles,
    ),
]
ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results",
        metavar="DIR",
        envvar="HARNESS_RESULTS",
        help="The folder for records and MLflow's database.",
    ),
]
UriOption = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="An MLflow server instead of results/mlflow.db.",
    ),
]


def load_sweep(
    sweep: str, sets: Sequence[str], data: Sequence[str], cluster: str
) -> tuple[Any, Any]:
    """The sweep and the profile that it runs on, all checked."""
    from harness.spec import cluster as clusters
    from harness.spec import sweep as spec

    profile = clusters.load_profile(cluster)
    asked = spec.load_sweep(spec.find_sweep_file(sweep), sets, data)
    clusters.check_fits(
        profile, {f"{asked.source}: {cell.label}": cell.axes for cell in asked.cells}
    )
    return asked, profile


def check_launcher(cluster: str, profile: Any, allowed: str, hint: str = "") -> None:
    """Raises BadInput for a profile that starts ranks in another way."""
    if profile.launcher != allowed:
        raise BadInput(
            f"--cluster {cluster}: launcher: found {profile.launcher!r}; allowed: {allowed}{hint}"
        )
