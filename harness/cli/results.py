"""Defines the commands that show results: `harness show`, `compare` and `ui`.

They read the records of trials and train nothing. Only `ui` and a result that is named by the id of
an MLflow run need MLflow.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.analysis.selection import select
from harness.analysis.sweep_result import effects
from harness.api import comparing
from harness.api.data import SweepData
from harness.api.tables import WRITERS, check_table_path
from harness.cli.arguments import (
    AccuracyMarginOption,
    GoalOption,
    JsonOption,
    MinEffectOption,
    OnlyOption,
    ResultsOption,
    UriOption,
    print_left_out,
)
from harness.cli.completion import complete_recorded_sweeps
from harness.cli.run import WideOption
from harness.core.errors import BadInput, parse_percentage
from harness.core.paths import Results
from harness.housekeeping import list_sweeps
from harness.records.store import read_recorded_sweep, select_recorded
from harness.tracking.ui import serve
from harness.view import console
from harness.view.compare import comparison_view, effects_view
from harness.view.plan import conflict_lines
from harness.view.stored import sweeps_view
from harness.view.sweep import sweep_view

app = typer.Typer()


@app.command()
def show(
    sweep: Annotated[
        str,
        typer.Argument(
            metavar="[SWEEP]",
            help="A sweep that has run. Default: a list of all.",
            autocompletion=complete_recorded_sweeps,
        ),
    ] = "",
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    results: ResultsOption = Path("results"),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write the trials as a table instead: FILE.csv, FILE.json or FILE.parquet.",
        ),
    ] = None,
    wide: WideOption = False,
) -> None:
    """Show the results of a sweep that has run.

    Prints which cells are fastest, a table of all cells with their verdicts, and what to know before
    believing it. It reads records only, so it also works while the sweep runs and without MLflow.
    Without SWEEP, lists the sweeps that have run.

    With --output, writes a row for each trial: the table of harness.load(SWEEP).trials in Python.

    Examples:
      harness show mnist
      harness show mnist --only precision=bf16,fp16
      harness show mnist --output trials.parquet
    """
    if output is not None:
        check_table_path(output)
    results_folder = Results(results)
    if not sweep:
        console.show(sweeps_view(list_sweeps(results_folder)))
        return
    recorded = select_recorded(read_recorded_sweep(results_folder, sweep), only)
    print_left_out(recorded)
    if output is not None:
        frame = SweepData(results=results_folder, recorded=recorded).trials
        WRITERS[output.suffix](frame, output)
        print(output)
        return
    for line in conflict_lines(recorded.sweep.whole()):
        print(line)
    console.show(sweep_view(recorded.sweep, recorded.records, results_folder, wide=wide))


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULT",
            help="Sweeps, cells, trials, baselines or paths."
            " All are compared with the first; with --by or --effects give one.",
            autocompletion=complete_recorded_sweeps,
        ),
    ],
    across: Annotated[
        list[str],
        typer.Option(
            "--across",
            metavar="DIFFERENCE[,…]",
            help="The difference to compare across: hardware, data, an axis.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="AXIS[,…]", help="Compare the values of an axis within one sweep."
        ),
    ] = "",
    min_effect: MinEffectOption = "1%",
    accuracy_margin: AccuracyMarginOption = 0.01,
    goal: GoalOption = None,
    as_effects: Annotated[
        bool,
        typer.Option("--effects", help="Estimate the effect of each axis and each pair of axes."),
    ] = False,
    results: ResultsOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Compare results, with intervals and verdicts.

    A verdict is faster, slower, same or inconclusive: a change must be significant over all cells
    together and at least --min-effect large; sameness must be shown too. Results of other hardware,
    data or settings are refused unless --across or --by asks for that difference.

    Exit code 1 if something is worse, 3 if a comparison is inconclusive.

    Examples:
      harness compare baseline nightly
      harness compare nightly --by precision
      harness compare nightly --by strategy --to-reach 0.95
      harness compare nightly --effects
    """

    # All options are checked before the first file is read: a mistake in one is reported at once.
    min_effect_fraction = parse_percentage(min_effect, "--min-effect")
    _check_question(names, by=by, as_effects=as_effects)
    results_folder = Results(results)
    if as_effects:  # an estimate without a verdict, so its exit code is always 0
        (side,) = select(results_folder, names)
        # Raises BadInput for too few trials to tell effects from noise.
        console.show(effects_view(effects(side)), as_json=as_json)
        return
    verdicts = comparing.compare(
        *names,
        by=by,
        across=",".join(across),
        min_effect=min_effect_fraction,
        accuracy_margin=accuracy_margin,
        to_reach=goal,
        results=results,
    )
    view = comparison_view(verdicts, verdicts.a, verdicts.b)
    console.show(view, as_json=as_json)
    if verdicts.exit_code:
        raise typer.Exit(verdicts.exit_code)


def _check_question(names: Sequence[str], *, by: str, as_effects: bool) -> None:
    """Raise BadInput unless it is clear what is compared with what.

    That is several results, or a single one with either --by or --effects.
    """
    options = ["--by"] * bool(by) + ["--effects"] * as_effects
    is_within_one = len(options) == 1 and len(names) == 1
    is_among_several = not options and len(names) > 1
    if not is_within_one and not is_among_several:
        request = " and ".join([str(len(names)), *options])
        raise BadInput(
            f"found {request} to compare; allowed: A B…, or one with --by AXIS or --effects"
        )


@app.command()
def ui(
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            metavar="PORT",
            help="The port on 127.0.0.1. Default: 5000, or the next free one.",
        ),
    ] = None,
) -> None:
    """Serve the MLflow UI on this machine.

    Prints the address of each sweep's page, which opens on its cells side by side. The server
    listens on the loopback interface only. Ctrl-C stops it.

    Examples:
      harness ui --port 5001
    """
    serve(Results(results), tracking_uri, port=port)
