"""Declares the arguments and options that several commands share, and checks and prints for them.

An option is declared once, as an annotated type, so that its name, its help and its completion are
the same at every command. Its default stands in the signature of the command, since typer takes it
from there.

Every command imports this module, `harness --help` included. What loads a profile or draws a table
is therefore imported by the functions that need it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from harness.cli.completion import (
    complete_axes,
    complete_profiles,
    complete_recorded_sweeps,
    complete_sweeps,
)
from harness.core.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from harness.core.paths import Results
    from harness.records.store import RecordedSweep

Choice = TypeVar("Choice", bound=str)
MAX_SEED = 2**32 - 1  # as in a sweep file; NumPy takes no larger one

# The arguments. A sweep to run is a file or the name of a ready one; a sweep that has run is known
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
        autocompletion=complete_axes,
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
# Of these trials alone; the sweep stays the same.
OnlyOption = Annotated[
    list[str],
    typer.Option(
        "--only",
        metavar="KEY=V[,V]",
        help="Only trials with one of these values (KEY!=V: with none of them). A key is an axis,"
        " workload, cell (its id, the start of it, or its label) or seed. Repeatable: all must hold.",
        autocompletion=complete_axes,
    ),
]
BestOption = Annotated[
    bool, typer.Option("--best", help="Of several trials, the one with the best target metric.")
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
# Where results are kept. The environment variables are for CI files and clusters, where every
# command needs the same value.
ResultsOption = Annotated[
    Path,
    typer.Option(
        "--results",
        metavar="DIR",
        envvar="HARNESS_RESULTS",
        help="The folder of records and of MLflow's database.",
    ),
]
SummaryOption = Annotated[
    Path | None,
    typer.Option("--summary", metavar="FILE", help="Write the result as Markdown."),
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
# How to run, compare and print. A percentage is read as text (`parse_percentage`): without a sign, 5
# is 5%, and 0.05 is refused, because it could mean 5% as well.
MinEffectOption = Annotated[
    str,
    typer.Option(
        "--min-effect",
        metavar="PERCENT",
        help="The smallest change of throughput that matters, in percent: 5% or 5.",
    ),
]
GoalOption = Annotated[
    float | None,
    typer.Option(
        "--to-reach",
        metavar="VALUE",
        help="A value of the target metric: compare the steps until it is reached, too.",
    ),
]
AccuracyMarginOption = Annotated[
    float,
    typer.Option(
        "--accuracy-margin",
        min=0.0,
        metavar="X",
        help="The smallest change of the target metric that matters, in the metric's unit.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print all results as JSON instead of a table.")
]


def print_next(command: str, purpose: str) -> None:
    """Print a command to try next with what it shows."""
    print(f"next  {command}  {purpose}")


def print_collect(results: Results, sweep: str) -> None:
    """Print how what is new of a sweep comes to MLflow."""
    print_next(results.collect_command(sweep), "brings it to MLflow")


def print_left_out(recorded: RecordedSweep) -> None:
    """Name on stderr the records that are left out, and why."""
    from harness.view.run import left_out_lines

    for line in left_out_lines(recorded):
        print(line, file=sys.stderr)


def choose(option: str, text: str, allowed: Sequence[Choice]) -> Choice:
    """Return the word of `allowed` that an option names; raises BadInput for any other."""
    for choice in allowed:
        if text == choice:
            return choice
    raise BadInput(f"{option}: found {text!r}; {did_you_mean(text, allowed, allowed)}")


def split_commas(text: str) -> list[str]:
    """Return the parts of `a,b`, without blanks and empty parts."""
    parts = [part.strip() for part in text.split(",")]
    return [part for part in parts if part]
