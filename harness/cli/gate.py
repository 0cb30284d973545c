"""Defines the commands that judge a change of code: `harness gate`, `bisect`, `certify`, `baseline`.

The first three compare two versions of the code that take turns in pairs of fresh processes, so that
a drift of the machine affects both alike. They measure on this machine and leave no records of trials.

A baseline is a file, `baselines/<hardware>/<cell id>.json` in the results folder. It is small and
without paths of this machine, because it is meant to be committed.
"""

from pathlib import Path
from typing import Annotated

import typer

from harness.analysis.baseline import save
from harness.analysis.selection import select
from harness.api import load_planned
from harness.cli.arguments import (
    BudgetOption,
    ClusterOption,
    DataOption,
    JsonOption,
    MinEffectOption,
    NameArgument,
    OnlyOption,
    SetOption,
    SweepArgument,
)
from harness.cli.main import RESULTS
from harness.core.errors import parse_percentage
from harness.core.paths import write_atomically
from harness.core.progress import print_message
from harness.core.text import parse_duration
from harness.gate.against import GateOptions
from harness.gate.against import gate as run_gate
from harness.gate.bisect import BisectOptions
from harness.gate.bisect import bisect as run_bisect
from harness.gate.certify import CertifySettings
from harness.gate.certify import certify as run_certify
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


@app.command()
def gate(
    sweep: SweepArgument,
    against: Annotated[str, typer.Option(metavar="REV", help="A git revision.")],
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    min_effect: MinEffectOption = "1%",
    budget: BudgetOption = "30s",
    bits: Annotated[
        bool, typer.Option("--bits", help="Also fail if the losses are not bitwise identical.")
    ] = False,
    summary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result as Markdown.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Measure this working tree against another revision.

    Every cell of the sweep trains in pairs of fresh processes, one for each revision, which take
    turns until a slowdown is certain, one that matters is excluded, or the budget is spent. The
    other revision is checked out in a temporary worktree; the working tree is measured as it is,
    uncommitted changes included.

    Exit code 1 if the working tree is certainly slower, 3 if the measurement is inconclusive or the
    sweep has lost or changed cells, which can't be compared.

    Examples:
      harness gate --against origin/main sweep.yaml
      harness gate --against v1.0 sweep.yaml --summary gate.md
    """
    loaded, profile = load_planned(sweep, settings, data, cluster)
    options = GateOptions(
        revision=against,
        min_effect=parse_percentage(min_effect, "--min-effect"),
        budget_seconds=parse_duration(budget, "--budget", at_least=1.0),
        compare_bits=bits,
        settings=settings,
        data=data,
    )
    with spinner():
        outcome = run_gate(
            loaded, profile, options, on_cell=lambda cell: print_message(progress_line(cell))
        )
    view = gate_view(outcome, loaded.name)
    # The file is written whatever the outcome is: CI shows it above all for a gate that fails.
    if summary is not None:
        write_atomically(summary, markdown(view))
    return show(view, as_json=as_json)


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
) -> int:
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
        outcome = run_bisect(
            loaded, profile, options, on_step=lambda step: console.say(step_line(step))
        )
    return show(bisect_view(outcome), as_json=as_json)


@app.command()
def certify(
    sweep: SweepArgument = "quickstart",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    comparisons: Annotated[int, typer.Option(min=1, help="How many in all.")] = 100,
    budget: BudgetOption = "30s",
) -> int:
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
    cell = loaded.cells[0]
    request = CertifySettings(
        cell=cell.id,
        label=cell.label,
        seconds=parse_duration(budget, "--budget", at_least=0.1),
        min_effect=GateOptions.min_effect,
        alpha=ALPHA,
    )
    results = RESULTS.get()
    with spinner(f"{cell.label} against itself:"):
        certificate, path = run_certify(results, loaded, profile, request, comparisons)
    return show(certificate_view(certificate, path))


@app.command()
def baseline(sweep: NameArgument) -> None:
    """Save results as the baseline of their hardware.

    Writes a small file for each cell, below a folder named after the hardware. Commit them, and
    compare with them by `harness compare baseline SWEEP` or with the pytest plugin. SWEEP may also
    be a cell.

    Examples:
      harness baseline nightly
    """
    results = RESULTS.get()
    (side,) = select(results, [sweep])
    # All cells or none are written: a cell without a measurement, or with trials of several kinds
    # of hardware, raises BadInput before the first file.
    saved = save(results, side.cells)
    show(saved_view(saved))
