"""Declares the arguments and options that several commands share, and what the shell completes them with.

An option is declared once, as an annotated type, so that its name, its help and its completion are
the same at every command. Its default stands in the signature of the command, since typer takes it
from there. What completes an argument returns all candidates, of which typer offers those that begin
as the text before the cursor does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.core.paths import Results, default_results
from harness.records.store import RecordedSweep
from harness.sweep import cluster
from harness.sweep.axes import AXIS_TYPES
from harness.sweep.sweep import ready_sweeps
from harness.view.run import left_out_lines

MAX_SEED = 2**32 - 1  # as in a sweep file; NumPy takes no larger one
AXIS_NAMES = [f"{axis}=" for axis in AXIS_TYPES]  # as `--set` and `--only` take them


def complete_sweeps(incomplete: str) -> list[str]:
    """Return the names of ready sweeps, then the YAML files."""
    folder, slash, _ = incomplete.rpartition("/")
    prefix = folder + slash
    paths = sorted(Path(prefix).glob("*.y*ml"))
    files = [prefix + path.name for path in paths]  # as it was typed: ./ stays
    return [*ready_sweeps(), *files]


def complete_recorded_sweeps() -> list[str]:
    """Return the names of sweeps that have run, as their folders are called.

    They are those of the environment variable's results folder, else of the default one: a `--results`
    that was typed earlier on the line is not passed to the functions here.
    """
    files = Results(default_results()).runs.glob("*/sweep.json")
    return [path.parent.name for path in files]


# A sweep to run is a file or the name of a ready one; a sweep that has run is known
# by its name alone, since its spec is next to its records and its file may have changed or be gone.
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
# What to run and where. `--set` and `--data` may be repeated, and a later one goes before an
# earlier one. A list as default is safe, as typer copies it for every call.
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set an axis (execution=eager,compile) or any other key (length.epochs=3). Repeatable.",
        autocompletion=lambda: AXIS_NAMES,
    ),
]
DataOption = Annotated[
    list[str],
    typer.Option(
        metavar="[LABEL=]PATH", help="Where the data are, of all workloads or of LABEL. Repeatable."
    ),
]
# Of these trials alone; the sweep stays the same.
OnlyOption = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=V[,V]",
        help="Only trials with one of these values (KEY!=V: with none of them). A key is an axis,"
        " workload, cell (its id, the start of it, or its label) or seed. Repeatable: all must hold.",
        autocompletion=lambda: AXIS_NAMES,
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        metavar="PROFILE",
        help="Where to run: the name of a cluster profile, or its file.",
        autocompletion=lambda: list(cluster.profile_paths()),
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(min=0, max=MAX_SEED, help="The seed of all runs.  [default: the sweep's first]"),
]
UriOption = Annotated[
    str | None,
    typer.Option(
        metavar="URI", envvar="MLFLOW_TRACKING_URI", help="An MLflow server for results/mlflow.db."
    ),
]
# How to run, compare and print. A percentage is read as text (`parse_percentage`): without a sign, 5
# is 5%, and 0.05 is refused, because it could mean 5% as well.
MinEffectOption = Annotated[
    str,
    typer.Option(
        metavar="PERCENT", help="The smallest change of throughput that matters: 5% or 5."
    ),
]
AccuracyMarginOption = Annotated[
    float,
    typer.Option(
        min=0.0, metavar="X", help="The smallest change of the target metric that matters."
    ),
]
BudgetOption = Annotated[
    str,
    typer.Option(metavar="DURATION", help="Measure each cell for at most this long, as in 2m."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print all results as JSON instead of a table.")
]


def print_left_out(recorded: RecordedSweep) -> None:
    """Name on stderr the records that are left out, and why."""
    for line in left_out_lines(recorded):
        print(line, file=sys.stderr)
