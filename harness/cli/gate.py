"""The commands that measure code in turn: `harness gate` and `bisect`, and `certify` on how far to trust them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    ResultsOption,
    SetOption,
    SweepArgument,
    check_launcher,
    load_sweep,
)
from harness.cli.compare import MinEffectOption
from harness.core.errors import BadInput, did_you_mean, parse_percentage

EXAMPLES = "\b\nExample:\n  harness gate --against origin/main sweep.yaml --summary gate.md --junit gate.xml"
CERTIFY_EXAMPLES = (
    "\b\nExamples:\n  harness certify\n  harness certify sweep.yaml --seconds 10 --comparisons 50"
)
BudgetOption = Annotated[
    float,
    typer.Option("--budget", min=1.0, metavar="SECONDS", help="To measure each cell for at most."),
]
OrderOption = Annotated[
    int | None,
    typer.Option(
        "--order", metavar="N", help="Seed of the random order, to measure in the same one again."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Everything, for machines.")]


def gate(
    sweep: SweepArgument,
    against: Annotated[
        str, typer.Option("--against", metavar="REV", help="The git revision to measure against.")
    ],
    sets: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    min_effect: MinEffectOption = "1%",
    budget: BudgetOption = 30.0,
    bits: Annotated[
        bool, typer.Option("--bits", help="Fail where the losses are not the same to the bit.")
    ] = False,
    control: Annotated[
        bool,
        typer.Option(
            "--control", help="Measure the revision against itself too: that must come out equal."
        ),
    ] = False,
    order: OrderOption = None,
    results: ResultsOption = Path("results"),
    summary: Annotated[
        Path | None, typer.Option("--summary", metavar="FILE", help="Write it as Markdown.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write it as JUnit's XML.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this working tree against another revision. In turn, on this machine; exit code 1 if it is slower, 3 if
    that can't be told."""
    from rich.console import Console

    from harness.core.paths import Results, write_atomically
    from harness.gate.against import GateOptions
    from harness.gate.against import gate as measure
    from harness.gate.certify import describe_conditions
    from harness.render.terminal import gate as view

    asked, profile = load_sweep(sweep, sets, data, cluster)
    check_launcher(cluster, profile, "torchrun")
    what = GateOptions(
        revision=against,
        min_effect=parse_percentage(min_effect, "--min-effect"),
        budget_seconds=budget,
        compare_bits=bits,
        control=control,
        order_seed=order,
    )
    conditions = describe_conditions(Results(results), profile)
    with Console(stderr=True, highlight=False).status("starting", refresh_per_second=2) as status:
        found = measure(
            asked,
            profile,
            what,
            conditions,
            _place(asked),
            lambda cell, words: status.update(f"{cell.label}: {words}"),
        )
    print(view.as_json(found)) if as_json else view.show_outcome(found)
    for path, text in ((summary, view.markdown), (junit, view.junit)):
        if path is not None:
            write_atomically(path, text(found, asked.name))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def certify(
    sweep: SweepArgument = "quickstart",
    sets: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    comparisons: Annotated[
        int, typer.Option("--comparisons", min=1, help="How many there shall be in all.")
    ] = 200,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Of measuring at most, for each comparison.")
    ] = 0.5,
    min_effect: MinEffectOption = "1%",
    anew: Annotated[
        bool, typer.Option("--anew", help="Begin anew; else an earlier run is gone on with.")
    ] = False,
) -> None:
    """Measure how often this machine tells equal code apart. A sweep's first cell against itself, many times; exit code
    1 if that is certainly more than 5%."""
    from harness.core.paths import Results
    from harness.gate.certify import settings
    from harness.render.terminal import certify as view

    asked, profile = load_sweep(sweep, sets, data, cluster)
    check_launcher(cluster, profile, "torchrun")
    what = settings(asked.cells[0], seconds, parse_percentage(min_effect, "--min-effect"))
    if not view.run(Results(results), asked, profile, what, comparisons, anew=anew):
        raise typer.Exit(1)


def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A git revision before it happened.")],
    bad: Annotated[
        str, typer.Argument(metavar="BAD", help="One that came from it, after it happened.")
    ],
    sweep: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP", help="The sweep that has the cell; else it is one that has run."
        ),
    ] = "",
    cell: Annotated[
        str, typer.Option("--cell", metavar="ID", help="The cell, if there are several.")
    ] = "",
    sets: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    min_effect: MinEffectOption = "1%",
    budget: BudgetOption = 30.0,
    bits: Annotated[
        bool, typer.Option("--bits", help="Find what changed the losses, not the speed.")
    ] = False,
    first_parent: Annotated[
        bool,
        typer.Option("--first-parent", help="Take a merge for one change, as git bisect does."),
    ] = False,
    order: OrderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the commit that made a cell slower. Measured against GOOD in turn on this machine, by git's own bisect; exit
    code 0 if it is found, 3 if that can't be told."""
    from harness.gate.bisect import BisectOptions
    from harness.gate.bisect import bisect as search
    from harness.render.terminal import bisect as view

    asked, one, profile = _choose(sweep, cell, sets, data, cluster, results)
    what = BisectOptions(
        good=good,
        bad=bad,
        min_effect=parse_percentage(min_effect, "--min-effect"),
        budget_seconds=budget,
        compare_bits=bits,
        first_parent=first_parent,
        order_seed=order,
    )
    with view.Progress() as progress:
        found = search(asked, one, profile, what, _place(asked), progress)
    print(view.as_json(found)) if as_json else view.show(found)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _choose(
    sweep: str, cell: str, sets: list[str], data: list[str], cluster: str, results: Path
) -> tuple[Any, ...]:
    """The sweep, its cell and the profile, all checked."""
    from harness.analysis.selection import planned_cell
    from harness.core.paths import Results
    from harness.spec import cluster as clusters

    if sweep:
        asked, profile = load_sweep(sweep, sets, data, cluster)
        found = [one for one in asked.cells if cell in (one.id, one.label, "")]
        if len(found) != 1:
            wrong = (
                f"--cell {cell}: no such cell"
                if cell
                else f"--cell: found none, and {len(found)} cells"
            )
            raise BadInput(
                f"{wrong} in {asked.source}; {did_you_mean(cell, {one.id for one in asked.cells})}"
            )
        one = found[0]
    else:
        if sets or data or not cell:
            raise BadInput(
                "SWEEP: found none; allowed: a sweep, or --cell alone with a cell of one that has run"
            )
        profile = clusters.load_profile(cluster)
        asked, one = planned_cell(Results(results), cell)
        clusters.check_fits(profile, {f"{asked.source}: {one.label}": one.axes})
    check_launcher(cluster, profile, "torchrun")
    return asked, one, profile


def _place(asked: Any) -> Path:
    """Whose repository is meant: a sweep's, or that of this folder for a ready one."""
    from harness.spec.sweep import ready_sweeps

    return Path() if asked.source in ready_sweeps().values() else asked.base
