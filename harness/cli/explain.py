"""Defines `harness explain`, which says what the difference of two arms' steps consists of."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    JsonOption,
    NoWaitOption,
    ResultsOption,
    SetOption,
    check_launcher,
    examples,
    print_message,
)
from harness.cli.gate import OrderOption
from harness.core.errors import BadInput
from harness.core.text import parse_duration

if TYPE_CHECKING:
    from harness.gate.explain import ArmKind

app = typer.Typer()


@app.command(
    epilog=examples(
        "harness explain strategy=ddp strategy=fsdp2 sweep.yaml",
        "harness explain main . sweep.yaml --revisions",
        "harness explain torch-2.11 torch-2.13 sweep.yaml --stacks",
    )
)
def explain(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A cell: its id, the start of it, its label, or settings that it has."
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The cell to compare with A.")],
    sweep: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP",
            help="The sweep of the cells. Default: the sweep that has run and has A, or --cell.",
        ),
    ] = "",
    revisions: Annotated[
        bool,
        typer.Option(
            "--revisions", help="A and B are git revisions instead; . is the working tree."
        ),
    ] = False,
    stacks: Annotated[
        bool,
        typer.Option(
            "--stacks", help="A and B are stacks of the sweep instead; . is the cell's own."
        ),
    ] = False,
    cell: Annotated[
        str,
        typer.Option(
            "--cell",
            metavar="CELL",
            help="With --revisions or --stacks: the cell to train, if the sweep has several.",
        ),
    ] = "",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="DURATION",
            help="Measure for about this long, the start of ranks included, as in 1m.",
        ),
    ] = "30s",
    order: OrderOption = None,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find out what makes B's steps longer or shorter than A's.

    Both train in turn in pairs of fresh processes, as in a gate, and torch's profiler looks on in
    every other turn. Each operator, kernel, collective and wait gets its difference a step with an
    interval. The differences add up to the whole one, next to what is left over.

    Of two cells of a sweep that has run, the report and MLflow show it from then on.
    """
    from harness.core.paths import Results
    from harness.gate.explain import ExplainOptions
    from harness.gate.explanation import write_explanation
    from harness.interface.gating import explain_arms, recorded_cell
    from harness.interface.planning import load_planned
    from harness.render import explain as view
    from harness.render.console import spinner
    from harness.spec.cluster import load_profile

    arms = _kind_of_arms(revisions=revisions, stacks=stacks, cell=cell)
    of_cells = arms == "cells"
    folder = None
    if sweep:
        loaded, profile = load_planned(sweep, settings, data, cluster)
    elif settings or data or not (cell or of_cells):
        raise BadInput("SWEEP: found none; allowed: a sweep, or a cell of a sweep that has run")
    else:
        name, option = (a, "A") if of_cells else (cell, "--cell")
        profile = load_profile(cluster)
        loaded, _ = recorded_cell(Results(results), name, profile, option)
        if of_cells:
            folder = Results(results).sweep_folder(loaded.name)
    check_launcher(cluster, profile, "torchrun")
    options = ExplainOptions(
        a=a,
        b=b,
        arms=arms,
        budget_seconds=parse_duration(budget, "--budget", at_least=1.0),
        order_seed=order,
    )
    # Redrawn rarely: this process shares the machine with what it measures.
    with spinner("profiling", refresh_per_second=2) as on_progress:
        explanation = explain_arms(
            loaded,
            None if of_cells else cell,
            profile,
            options,
            wait=not no_wait,
            on_message=print_message,
            on_progress=on_progress,
        )
    if folder is not None:  # where the report and MLflow find it
        write_explanation(folder, explanation)
    if as_json:
        print(view.as_json(explanation))
    else:
        view.show(explanation)


def _kind_of_arms(*, revisions: bool, stacks: bool, cell: str) -> "ArmKind":
    """Return what A and B are; raises BadInput for options that contradict each other."""
    if revisions and stacks:
        raise BadInput("--revisions and --stacks: found both; allowed: one of them, or neither")
    if revisions:
        return "revisions"
    if stacks:
        return "stacks"
    if cell:
        raise BadInput(
            f"--cell: found {cell} with cells as A and B; allowed: with --revisions or --stacks"
        )
    return "cells"
