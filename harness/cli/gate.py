"""Defines the commands that judge a change of code: `harness gate`, `bisect`, `certify`, `baseline`.

The first three compare two versions of the code that take turns in pairs of fresh processes, so that
a drift of the machine affects both alike. They measure on this machine and leave no records of trials.

A baseline is a file, `baselines/<hardware>/<cell id>.json` in the results folder. It is small and
without paths of this machine, because it is meant to be committed.
"""

from pathlib import Path
from typing import Annotated, get_args

import typer

from harness.analysis.baseline import save
from harness.analysis.selection import select
from harness.api.planning import load_planned
from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    JsonOption,
    MinEffectOption,
    NameArgument,
    OnlyOption,
    ResultsOption,
    SetOption,
    SummaryOption,
    SweepArgument,
    choose,
)
from harness.core.errors import parse_percentage
from harness.core.paths import Results, write_atomically
from harness.core.progress import print_message
from harness.core.text import parse_duration
from harness.gate.against import GateOptions
from harness.gate.against import gate as run_gate
from harness.gate.bisect import BisectOptions
from harness.gate.bisect import bisect as run_bisect
from harness.gate.certify import CertifySettings
from harness.gate.certify import certify as run_certify
from harness.gate.limits import Policy
from harness.statistics.verdict import ALPHA
from harness.view.compare import saved_view
from harness.view.console import TerminalConsole, show, spinner
from harness.view.gate import (
    bisect_view,
    certificate_view,
    gate_view,
    progress_line,
    step_line,
)
from harness.view.view import markdown

app = typer.Typer()

BudgetOption = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="DURATION",
        help="Measure each cell for at most this long, as in 2m; starting processes takes longer.",
    ),
]


@app.command()
def gate(
    sweep: SweepArgument,
    against: Annotated[
        str, typer.Option("--against", metavar="REV", help="The git revision to compare with.")
    ],
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    min_effect: MinEffectOption = "1%",
    budget: BudgetOption = "30s",
    bits: Annotated[
        bool, typer.Option("--bits", help="Also fail if the losses are not bitwise identical.")
    ] = False,
    inconclusive: Annotated[
        str,
        typer.Option(
            "--inconclusive",
            metavar="POLICY",
            help="What an inconclusive cell does: ignore (exit code 0), warn (3) or fail (1).",
        ),
    ] = "warn",
    accept_sweep_changes: Annotated[
        bool,
        typer.Option(
            "--accept-sweep-changes",
            help="Pass although the sweep lost or changed cells that the revision has.",
        ),
    ] = False,
    summary: SummaryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this working tree against another revision.

    Every cell of the sweep trains in pairs of fresh processes, one for each revision, which take
    turns until a slowdown is certain, one that matters is excluded, or the budget is spent. The
    other revision is checked out in a temporary worktree; the working tree is measured as it is,
    uncommitted changes included.

    Exit code 1 if the working tree is certainly slower or its sweep lost cells, 3 if the measurement is
    inconclusive.

    Examples:
      harness gate --against origin/main sweep.yaml
      harness gate --against v1.0 sweep.yaml --summary gate.md
    """
    # Imported here: they load NumPy and SciPy, which `harness --help` must not wait for.

    loaded, profile = load_planned(sweep, settings, data, cluster)
    options = GateOptions(
        revision=against,
        min_effect=parse_percentage(min_effect, "--min-effect"),
        budget_seconds=parse_duration(budget, "--budget", at_least=1.0),
        compare_bits=bits,
        inconclusive=choose("--inconclusive", inconclusive, get_args(Policy)),
        accept_sweep_changes=accept_sweep_changes,
        settings=settings,
        data=data,
    )
    with spinner():
        outcome = run_gate(
            loaded, profile, options, lambda cell: print_message(progress_line(cell))
        )
    view = gate_view(outcome, loaded.name)
    show(view, as_json=as_json)
    # The file is written whatever the outcome is: CI shows it above all for a gate that fails.
    if summary is not None:
        write_atomically(summary, markdown(view))
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


@app.command()
def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A git revision before the change.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A descendant of GOOD.")],
    sweep: SweepArgument,
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    settings: SetOption = [],  # noqa: B006
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    min_effect: MinEffectOption = "1%",
    budget: BudgetOption = "30s",
    bits: Annotated[
        bool, typer.Option("--bits", help="Find the commit that changed the losses instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the commit that made a cell slower: the sweep's only one, or the one that --only leaves.

    Measures commits in turn with GOOD on this machine, by binary search along first parents, in
    temporary worktrees. A commit is bad if it is slower by half of the loss between GOOD and BAD. The
    first bad one is measured once more against its parent.

    Exit code 0 if the commit is found, 2 if BAD is not slower, 1 if GOOD or BAD fails, 3 if the
    search is inconclusive.

    Examples:
      harness bisect v1.0 main sweep.yaml --only strategy=ddp
    """
    loaded, profile = load_planned(sweep, settings, data, cluster, only=only)
    options = BisectOptions(
        good=good,
        bad=bad,
        min_effect=parse_percentage(min_effect, "--min-effect"),
        budget_seconds=parse_duration(budget, "--budget", at_least=1.0),
        compare_bits=bits,
    )
    with spinner():
        # On stderr, so that stdout has nothing but the result, as scripts read that of `git bisect`.
        console = TerminalConsole(stderr=True)
        outcome = run_bisect(loaded, profile, options, lambda step: console.say(step_line(step)))
    show(bisect_view(outcome), as_json=as_json)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


@app.command()
def certify(
    sweep: SweepArgument = "quickstart",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    comparisons: Annotated[
        int, typer.Option("--comparisons", min=1, help="The number of comparisons in all.")
    ] = 100,
    budget: BudgetOption = "30s",
) -> None:
    """Measure how often this machine raises false alarms.

    A gate compares the first cell of a sweep with itself, many times, and counts how often it finds
    a change. It takes an hour or two; an interrupted run resumes when the command is repeated.

    Exit code 1 if the rate of false alarms is certainly above 5%.

    Examples:
      harness certify
      harness certify sweep.yaml --comparisons 200
    """

    # The certificate is a file of the machine, `certificates/<hardware>.json` in the results
    # folder, and grows with each comparison: an interrupted run is resumed, not lost.
    loaded, profile = load_planned(sweep, settings, data, cluster)
    request = CertifySettings(
        cell=loaded.cells[0].id,
        label=loaded.cells[0].label,
        seconds=parse_duration(budget, "--budget", at_least=0.1),
        min_effect=GateOptions.min_effect,
        alpha=ALPHA,
    )
    with spinner(f"{request.label} against itself:"):
        certificate, path = run_certify(Results(results), loaded, profile, request, comparisons)
    show(certificate_view(certificate, path))
    if not certificate.holds:
        raise typer.Exit(1)


@app.command()
def baseline(sweep: NameArgument, results: ResultsOption = Path("results")) -> None:
    """Save results as the baseline of their hardware.

    Writes a small file for each cell, below a folder named after the hardware. Commit them, and
    compare with them by `harness compare baseline SWEEP` or with the pytest plugin. SWEEP may also
    be a cell.

    Examples:
      harness baseline nightly
    """
    results_folder = Results(results)
    (side,) = select(results_folder, [sweep])
    # All cells or none are written: a cell without a measurement, or with trials of several kinds
    # of hardware, raises BadInput before the first file.
    show(saved_view(save(results_folder, side.cells)))
