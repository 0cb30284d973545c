"""Defines the commands that judge a change of code: `harness gate`, its `bisect`, `certify`, `baseline`.

The first three compare two versions of the code that take turns in pairs of fresh processes, so that
a drift of the machine affects both alike. They measure on this machine and leave no records of trials.

A baseline is a file, `baselines/<hardware>/<cell id>.json` in the results folder. It is small and
without paths of this machine, because it is meant to be committed. Only `save` and `prune` change
files; both leave alone what would stay the same.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    JsonOption,
    JunitOption,
    MinEffectOption,
    NameArgument,
    NoWaitOption,
    ResultsOption,
    SetOption,
    SummaryOption,
    SweepArgument,
    UriOption,
    check_launcher,
    choose,
    examples,
    print_message,
)
from harness.core.errors import BadInput, parse_percentage
from harness.core.text import parse_duration

if TYPE_CHECKING:
    pass


app = typer.Typer()

ACCURACY_SEEDS = 5
ACCURACY_MARGIN = 0.01
# The options that `gate` and `bisect` share. The order of the two versions is random, so that
# nothing periodic on the machine favors one of them; its seed is for repeating a measurement.
BudgetOption = Annotated[
    str,
    typer.Option(
        "--budget", metavar="DURATION", help="Measure each cell for at most this long, as in 2m."
    ),
]
OrderOption = Annotated[
    int | None,
    typer.Option(
        "--order", metavar="N", help="The seed of the random order, to repeat a measurement."
    ),
]


@app.command(
    epilog=examples(
        "harness gate --against origin/main sweep.yaml",
        "harness gate --against v1.0 sweep.yaml --summary gate.md --junit gate.xml",
        "harness gate --against-stack torch-2.11 sweep.yaml",
    ),
)
def gate(
    sweep: SweepArgument,
    against: Annotated[
        str, typer.Option("--against", metavar="REV", help="The git revision to compare with.")
    ] = "",
    against_stack: Annotated[
        str,
        typer.Option(
            "--against-stack",
            metavar="NAME",
            help="The stack to compare with instead, by its name in the sweep.",
        ),
    ] = "",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    min_effect: Annotated[
        str,
        typer.Option(
            "--min-effect",
            metavar="PERCENT",
            help="The smallest slowdown that matters, in percent: 5% or 5. Default: the smallest that"
            " can be seen within the budget, by this machine's certificate; 1% without one.",
        ),
    ] = "",
    budget: BudgetOption = "30s",
    bits: Annotated[
        bool, typer.Option("--bits", help="Also fail if the losses are not bitwise identical.")
    ] = False,
    control: Annotated[
        bool,
        typer.Option(
            "--control",
            help="Also measure the revision against itself, which must come out equal.",
        ),
    ] = False,
    accuracy: Annotated[
        bool,
        typer.Option(
            "--accuracy", help="Also train every cell to its end, and fail if it learns less."
        ),
    ] = False,
    accuracy_seeds: Annotated[
        int,
        typer.Option("--accuracy-seeds", min=2, help="With --accuracy: train this many seeds."),
    ] = ACCURACY_SEEDS,
    accuracy_margin: Annotated[
        float,
        typer.Option(
            "--accuracy-margin",
            min=1e-9,
            help="The smallest loss of the target metric that matters, in its unit.",
        ),
    ] = ACCURACY_MARGIN,
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
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Also find out what makes each slower cell slower: harness explain."
        ),
    ] = False,
    order: OrderOption = None,
    results: ResultsOption = Path("results"),
    no_wait: NoWaitOption = False,
    summary: SummaryOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this working tree, or a stack, against another.

    Every cell of the sweep trains in pairs of fresh processes, one for each revision, which take
    turns until a slowdown is certain, one that matters is excluded, or the budget is spent. The
    other revision is checked out in a temporary worktree; the working tree is measured as it is,
    uncommitted changes included.
    With --against-stack, the files are the same, and each cell trains under its own stack and under
    that one.

    Exit code 1 if the working tree is certainly slower, learns less or its sweep lost cells, 3 if the
    measurement is inconclusive.
    """
    # Imported here: they load NumPy and SciPy, which `harness --help` must not wait for.
    from harness.core.paths import Results, write_atomically
    from harness.gate.against import MIN_EFFECT, GateOptions
    from harness.gate.limits import Policy
    from harness.interface.gating import explain_slower, gate_sweep
    from harness.interface.planning import load_planned
    from harness.render import explain as explanation_view
    from harness.render import gate as view
    from harness.render.console import spinner

    if bool(against) == bool(against_stack):
        found = "both" if against else "neither"
        raise BadInput(
            f"--against and --against-stack: found {found}; needed: one of them, as in"
            f" harness gate {sweep} --against main"
        )
    if not accuracy and (accuracy_seeds, accuracy_margin) != (ACCURACY_SEEDS, ACCURACY_MARGIN):
        raise BadInput(
            "--accuracy-seeds, --accuracy-margin: found without --accuracy; allowed: with it"
        )
    loaded, profile = load_planned(sweep, settings, data, cluster)
    check_launcher(cluster, profile, "torchrun")
    options = GateOptions(
        revision=against,
        stack=against_stack,
        min_effect=parse_percentage(min_effect, "--min-effect") if min_effect else MIN_EFFECT,
        budget_seconds=parse_duration(budget, "--budget", at_least=1.0),
        compare_bits=bits,
        control=control,
        order_seed=order,
        accuracy_seeds=accuracy_seeds if accuracy else 0,
        accuracy_margin=accuracy_margin,
        inconclusive=choose("--inconclusive", inconclusive, get_args(Policy)),
        accept_sweep_changes=accept_sweep_changes,
        settings=settings,
        data=data,
    )
    # Redrawn rarely: this process shares the machine with what it measures.
    with spinner(refresh_per_second=2) as on_progress:
        outcome = gate_sweep(
            loaded,
            profile,
            Results(results),
            options,
            by_certificate=not min_effect,
            wait=not no_wait,
            on_message=print_message,
            on_progress=on_progress,
        )
    explanations = {}
    if explain:
        with spinner("explaining", refresh_per_second=2) as on_progress:
            explanations = explain_slower(
                loaded,
                profile,
                outcome,
                wait=not no_wait,
                on_message=print_message,
                on_progress=on_progress,
            )
    if as_json:
        print(view.as_json(outcome, explanations))
    else:
        view.show_outcome(outcome)
        explanation_view.show_reasons(outcome, explanations, sweep, cluster)
    # The files are written whatever the outcome is: CI shows them above all for a gate that fails.
    if summary is not None:
        reasons = explanation_view.reasons(outcome, explanations, sweep, cluster)
        write_atomically(summary, view.markdown(outcome, loaded.name, reasons))
    if junit is not None:
        write_atomically(junit, view.junit(outcome, loaded.name))
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


@app.command(
    epilog=examples(
        "harness bisect v1.0 main sweep.yaml",
        "harness bisect v1.0 main --cell mlp-45dbdb38d5",
        "harness bisect torch-2.11 torch-2.13 sweep.yaml --stacks",
    )
)
def bisect(
    good: Annotated[
        str, typer.Argument(metavar="GOOD", help="A git revision, or a stack, before the change.")
    ],
    bad: Annotated[
        str, typer.Argument(metavar="BAD", help="A descendant, or a later stack, of GOOD.")
    ],
    sweep: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP",
            help="The sweep of the cell. Default: the sweep that has run and has --cell.",
        ),
    ] = "",
    cell: Annotated[
        str,
        typer.Option(
            "--cell",
            metavar="CELL",
            help="The cell to measure, if the sweep has several: its id, the start of it, its label,"
            " or settings that only it has.",
        ),
    ] = "",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    min_effect: MinEffectOption = "1%",
    budget: BudgetOption = "30s",
    bits: Annotated[
        bool, typer.Option("--bits", help="Find the commit that changed the losses instead.")
    ] = False,
    first_parent: Annotated[
        bool,
        typer.Option("--first-parent", help="Treat a merge as one change, as git bisect does."),
    ] = False,
    stacks: Annotated[
        bool,
        typer.Option(
            "--stacks", help="Search the sweep's stacks from GOOD to BAD instead of commits."
        ),
    ] = False,
    order: OrderOption = None,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the commit, or the stack, that made a cell slower.

    Measures commits in turn with GOOD on this machine, in the order of `git bisect`, in temporary
    worktrees: the checkout and any bisection in it stay as they are. The first bad commit is
    measured once more against its parent. With --stacks, GOOD and BAD name stacks of the sweep, and
    those that it declares between them are searched in its order.

    Exit code 0 if the commit is found, 2 if BAD is not slower, 1 if GOOD or BAD fails, 3 if the
    search is inconclusive.
    """
    from harness.core.paths import Results
    from harness.gate.bisect import BisectOptions
    from harness.interface.gating import bisect_cell, choose_cell, recorded_cell
    from harness.interface.planning import load_planned
    from harness.render import bisect as view
    from harness.spec.cluster import load_profile

    # The cell is one of a sweep file, or without SWEEP one that has run: then the recorded spec has
    # every setting, and --set and --data would make another cell of it.
    if sweep:
        loaded, profile = load_planned(sweep, settings, data, cluster)
        chosen = choose_cell(loaded, cell)
    else:
        if settings or data or not cell:
            raise BadInput(
                "SWEEP: found none; allowed: a sweep, or --cell with a cell of a sweep that has run"
            )
        profile = load_profile(cluster)
        loaded, chosen = recorded_cell(Results(results), cell, profile)
    check_launcher(cluster, profile, "torchrun")
    options = BisectOptions(
        good=good,
        bad=bad,
        min_effect=parse_percentage(min_effect, "--min-effect"),
        budget_seconds=parse_duration(budget, "--budget", at_least=1.0),
        compare_bits=bits,
        first_parent=first_parent,
        order_seed=order,
    )
    with view.BisectView() as bisect_view:
        outcome = bisect_cell(
            loaded,
            chosen,
            profile,
            options,
            bisect_view,
            is_over_stacks=stacks,
            wait=not no_wait,
            on_message=print_message,
        )
    if as_json:
        print(view.as_json(outcome))
    else:
        view.show(outcome)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


@app.command(epilog=examples("harness certify", "harness certify sweep.yaml --comparisons 200"))
def certify(
    sweep: SweepArgument = "quickstart",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    comparisons: Annotated[
        int, typer.Option("--comparisons", min=1, help="The number of comparisons in all.")
    ] = 100,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="DURATION",
            help="Measure each comparison for at most this long, as a gate does, as in 10s.",
        ),
    ] = "30s",
    min_effect: MinEffectOption = "1%",
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again instead of resuming an earlier run.")
    ] = False,
    no_wait: NoWaitOption = False,
) -> None:
    """Measure how often this machine raises false alarms.

    A gate compares the first cell of a sweep with itself, many times, and counts how often it finds
    a change. Later verdicts on this hardware cite the result. It takes an hour or two; an
    interrupted run resumes when the command is repeated.

    Exit code 1 if the rate of false alarms is certainly above 5%.
    """
    from harness.core.paths import Results
    from harness.gate.certify import settings as certificate_settings
    from harness.hardware.certificate import certificate_path
    from harness.interface.gating import certify_machine
    from harness.interface.planning import load_planned
    from harness.render.machine import certify_progress, show_certificate

    # The certificate is a file of the machine, `certificates/<hardware>.json` in the results
    # folder, and grows with each comparison: an interrupted run is resumed, not lost.
    loaded, profile = load_planned(sweep, settings, data, cluster)
    check_launcher(cluster, profile, "torchrun")
    request = certificate_settings(
        loaded.cells[0],
        parse_duration(budget, "--budget", at_least=0.1),
        parse_percentage(min_effect, "--min-effect"),
    )
    results_folder = Results(results)
    with certify_progress(comparisons) as on_progress:
        certificate, new_comparisons = certify_machine(
            results_folder,
            loaded,
            profile,
            request,
            comparisons,
            restart=restart,
            wait=not no_wait,
            on_message=print_message,
            on_progress=on_progress,
        )
    path = certificate_path(results_folder, certificate.key)
    show_certificate(certificate, path, new_comparisons)
    if not certificate.holds:
        raise typer.Exit(1)


@app.command(epilog=examples("harness baseline nightly"))
def baseline(
    sweep: NameArgument, results: ResultsOption = Path("results"), tracking_uri: UriOption = None
) -> None:
    """Save results as the baseline of their hardware.

    Writes a small file for each cell, below a folder named after the hardware. Commit them, and
    compare with them by `harness compare baseline SWEEP` or with the pytest plugin. SWEEP may also
    be a cell, or the id of an MLflow run.
    """
    from harness.analysis.baseline import save
    from harness.core.paths import Results
    from harness.interface.comparing import select_results
    from harness.render.compare import show_saved

    results_folder = Results(results)
    (side,) = select_results(results_folder, [sweep], tracking_uri)
    # All cells or none are written: a cell without a measurement, or with trials of several kinds
    # of hardware, raises BadInput before the first file.
    show_saved(save(results_folder, side.cells))
