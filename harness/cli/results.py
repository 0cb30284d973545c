"""Defines the commands that show results: `harness show`, `compare`, `ui`, and of `harness results`
`report`, `collect`, `verify` and `mllog`.

They read the records of trials and train nothing. Only `collect`, `ui` and a result that is named
by the id of an MLflow run need MLflow.
"""

import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from harness.cli.arguments import (
    AccuracyMarginOption,
    CellsOption,
    GoalOption,
    JsonOption,
    MinEffectOption,
    NameArgument,
    OnlyOption,
    ResultsOption,
    UriOption,
    choose,
    examples,
    split_commas,
    write_output,
)
from harness.cli.completion import complete_recorded_sweeps
from harness.cli.run import VerboseOption, WideOption
from harness.core.errors import BadInput, parse_percentage

if TYPE_CHECKING:
    from harness.core.paths import Results
    from harness.interface.comparing import Verdicts
    from harness.records.store import RecordedSweep

app = typer.Typer()
stored_app = typer.Typer()  # the part of `harness results` that is here


@app.command(
    epilog=examples(
        "harness show mnist",
        "harness show mnist --phases",
        "harness show mnist --pivot num_workers",
        "harness show mnist --only 'precision in (bf16, fp16)'",
        "harness show mnist --format markdown",
        "harness show mnist --output trials.parquet",
    )
)
def show(
    sweep: NameArgument,
    only: OnlyOption = "",
    cells: CellsOption = [],  # noqa: B006 - typer copies it
    results: ResultsOption = Path("results"),
    phases: Annotated[
        bool,
        typer.Option(
            "--phases", help="Show where a step's time goes: data, forward, communication, …"
        ),
    ] = False,
    pivot: Annotated[
        str | None,
        typer.Option(
            "--pivot",
            metavar="AXIS[,AXIS…]",
            help="Tabulate throughput with the values of these axes as columns.",
        ),
    ] = None,
    table_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="csv|json|markdown|parquet",
            help="Print the trials as a table for other programs instead.",
        ),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            "--columns",
            metavar="NAME[,NAME…]",
            help="With --format: these columns. Default: all; of Markdown, those that differ most.",
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="With --format: write this file. Its ending may stand for the format.",
        ),
    ] = None,
    verbose: VerboseOption = False,
    wide: WideOption = False,
) -> None:
    """Show the results of a sweep that has run.

    Prints each cell's mean throughput, step time and target metric, then the verdicts on its cells
    if there are several seeds, and what to know about trials that failed or never settled. It reads
    records only, so it also works while the sweep runs and without MLflow.

    With --format or --output, prints or writes a row for each trial, which is the table of
    harness.load(SWEEP).trials in Python.
    """
    from harness.core.paths import Results
    from harness.interface.reporting import write_roofline
    from harness.records.store import read_recorded_sweep, select_recorded
    from harness.render.plan import conflict_lines
    from harness.render.results import show_results

    if phases and pivot is not None:
        raise BadInput("--phases, --pivot: found both; allowed: one of them")
    results_folder = Results(results)
    is_export = _check_export(table_format, columns, output, is_view=phases or pivot is not None)
    recorded = select_recorded(read_recorded_sweep(results_folder, sweep), only, cells)
    _print_left_out(recorded)
    if is_export:
        from harness.interface.data import SweepData
        from harness.interface.export import choose_columns, choose_format, export

        chosen = choose_format(table_format, output)
        table = SweepData(results=results_folder, recorded=recorded).table
        table = choose_columns(table, split_commas(columns), chosen)
        write_output(export(table, chosen), output)
        return
    # Each view is imported where it is shown: the pivot loads SciPy, which the phases do not need.
    if phases:
        from harness.render.phases import show_phases

        show_phases(recorded.sweep, recorded.records, wide=wide)
    elif pivot:
        from harness.render.pivot import show_pivot

        show_pivot(recorded.sweep, recorded.records, pivot.split(","))
    else:
        for line in conflict_lines(recorded.sweep.whole()):
            print(line)
        write_roofline(recorded.sweep, recorded.records, results_folder)
        show_results(recorded.sweep, recorded.records, results_folder, verbose=verbose, wide=wide)


def _check_export(table_format: str, columns: str, output: Path | None, *, is_view: bool) -> bool:
    """Return whether trials are exported; raises BadInput for options that do not go together."""
    is_export = bool(table_format) or output is not None
    if is_export and is_view:
        raise BadInput("--format, --output: found with --phases or --pivot; allowed: one of them")
    if columns and not is_export:
        raise BadInput("--columns: found without --format; allowed: --format, or --output FILE")
    return is_export


@app.command(
    epilog=examples(
        "harness compare baseline nightly",
        "harness compare nightly --by precision",
        "harness compare nightly --by strategy --to-reach 0.95",
        "harness compare nightly --effects",
    )
)
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULT",
            help="Sweeps, cells, trials, baselines, paths or MLflow run ids (also mlflow:ID)."
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
    steps_margin: Annotated[
        str,
        typer.Option(
            "--steps-margin",
            metavar="PERCENT",
            help="The smallest change of the steps to --to-reach that matters.",
        ),
    ] = "10%",
    correction: Annotated[
        str,
        typer.Option(
            "--correction",
            metavar="holm|bh",
            help="How to control false alarms over all cells.",
        ),
    ] = "holm",
    as_effects: Annotated[
        bool,
        typer.Option("--effects", help="Estimate the effect of each axis and each pair of axes."),
    ] = False,
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare results, with intervals and verdicts.

    A verdict is faster, slower, same or inconclusive: a change must be significant over all cells
    together and at least --min-effect large; sameness must be shown too. Results of other hardware,
    data or settings are refused unless --across or --by asks for that difference.

    Exit code 1 if something is worse, 3 if a comparison is inconclusive.
    """
    from harness.analysis.compare import Rules, certified_drifts
    from harness.core.paths import Results
    from harness.interface.comparing import judge, select_results
    from harness.statistics.verdict import Correction

    # All options are checked before the first file is read: a mistake in one is reported at once.
    min_effect_fraction = parse_percentage(min_effect, "--min-effect")
    steps_margin_fraction = parse_percentage(steps_margin, "--steps-margin")
    # `holm` bounds the chance of any false alarm, `bh` the expected share of false ones among all.
    checked_correction: Correction = choose("--correction", correction, get_args(Correction))
    _check_question(names, by=by, as_effects=as_effects)
    results_folder = Results(results)
    sides = select_results(results_folder, names, tracking_uri)
    if as_effects:  # an estimate without a verdict, so its exit code is always 0
        from harness.analysis.sweep_result import effects
        from harness.render.compare import show_effects

        # Raises BadInput for too few trials to tell effects from noise.
        show_effects(effects(sides[0]), as_json=as_json)
        return
    rules = Rules(
        across=split_commas(",".join(across)),
        min_effect=min_effect_fraction,
        accuracy_margin=accuracy_margin,
        goal=goal,
        steps_margin=steps_margin_fraction,
        correction=checked_correction,
        drift=certified_drifts(results_folder, sides),
    )
    verdicts = judge(sides, split_commas(by), rules)
    _show_comparison(verdicts, results_folder, as_json=as_json)
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


def _show_comparison(verdicts: "Verdicts", results: "Results", *, as_json: bool) -> None:
    """Print verdicts, below the certificates of the hardware that they rest on.

    A certificate says how often equal code was told apart on that machine. With `as_json` the
    comparison alone is printed, without the certificates.
    """
    from harness.hardware.certificate import citation_lines
    from harness.render import compare as view

    comparison = verdicts.comparison
    if as_json:
        view.print_comparison_json(comparison, verdicts.a, verdicts.b)
        return
    hardware: list[str] = []  # keys; one that several matches share is cited once
    for match in comparison.matches:
        hardware += match.hardware
    for line in citation_lines(results, hardware):
        print(line)
    view.show_comparison(comparison, verdicts.a, verdicts.b)


@stored_app.command(
    epilog=examples(
        "harness results report matrix", "harness results report nightly --against baseline"
    )
)
def report(
    sweep: NameArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE.html",
            help="The file to write. Default: report.html next to the records.",
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="BASELINE|SWEEP",
            help="What to compare the sweep with, named as for `harness compare`.",
        ),
    ] = "",
    goal: GoalOption = None,
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
) -> None:
    """Write a sweep's report as one HTML file.

    The file needs no network and no other file, so it can be mailed or kept as an artifact. It
    names for every section that is empty the data that would fill it.
    """
    from harness.core.paths import Results
    from harness.interface.reporting import write_report
    from harness.records.store import read_recorded_sweep

    results_folder = Results(results)
    recorded = read_recorded_sweep(results_folder, sweep)
    _print_left_out(recorded)
    reference = None
    if against:
        from harness.interface.comparing import select_results  # which loads what talks to MLflow

        # The sweep is selected too because `baseline` means those of the hardware of the others.
        reference = select_results(results_folder, [against, sweep], tracking_uri)[0]
    path = output or results_folder.sweep_folder(recorded.sweep.name).report_path
    write_report(
        path,
        results_folder,
        recorded.sweep,
        recorded.records,
        reference,
        unreadable_count=len(recorded.unreadable),
        other_code_count=recorded.other_code_count,
        goal=goal,
    )
    print(path)  # alone on stdout, for scripts that mail or upload the file


@stored_app.command(
    epilog=examples("harness results collect quickstart --tracking-uri http://127.0.0.1:5000")
)
def collect(
    sweep: NameArgument, results: ResultsOption = Path("results"), tracking_uri: UriOption = None
) -> None:
    """Deliver the records of a sweep to MLflow.

    For trials that ran while MLflow could not be reached, and for jobs that nobody watched. Records
    that are there already are not sent again.
    """
    from harness.core.paths import Results
    from harness.core.text import counted
    from harness.records.store import read_recorded_sweep
    from harness.tracking import Tracker

    results_folder = Results(results)
    recorded = read_recorded_sweep(results_folder, sweep)
    _print_left_out(recorded)
    sweep_folder = results_folder.sweep_folder(recorded.sweep.name)
    trials = [record.trial.id for record in recorded.records]
    del recorded  # they would take as much memory as all that MLflow is told
    # Safe to repeat: a delivery that was cut off is completed, and nothing is added twice.
    delivery = Tracker(results_folder, tracking_uri).deliver(sweep_folder, trials)
    delivered = counted(delivery.delivered, "trial")
    print(f"{delivered} delivered, {delivery.already_delivered} were there already")


@stored_app.command(epilog=examples("harness results verify", "harness results verify nightly"))
def verify(
    sweeps: Annotated[
        list[str],
        typer.Argument(
            metavar="[SWEEP]…",
            help="Sweeps that have run. Default: all of them.",
            autocompletion=complete_recorded_sweeps,
        ),
    ] = [],  # noqa: B006 - typer copies it
    results: ResultsOption = Path("results"),
) -> None:
    """Check that recorded numbers are as they were written.

    Other commands check the seal of each file that they read, and of records only the headers. This
    reads the columns of records too, computes each figure again that follows from them, and checks
    what commands leave next to them: fingerprints, checkpoints, exported models, parity, the results
    of check and find-lr. Without SWEEP, also measured peaks, certificates and baselines.

    A seal has no secret: it proves that nothing was damaged or edited by hand, and not who wrote
    it. Whoever can write to the folder can seal other numbers that agree with each other.

    Exit code 2 if anything is damaged, which is named.
    """
    from harness.core.paths import Results
    from harness.core.text import counted
    from harness.housekeeping.verify import verify_machines, verify_sweep
    from harness.records.store import read_recorded_spec, recorded_sweep_names

    results_folder = Results(results)
    names = sweeps or recorded_sweep_names(results_folder)
    for name in sweeps:
        read_recorded_spec(results_folder, name)  # which says what there is if there is none
    parts = [verify_sweep(results_folder, name) for name in names]
    if not sweeps:
        parts.append(verify_machines(results_folder))
    files = records = ranks = problems = 0
    for verified in chain.from_iterable(parts):
        files += 1
        records += verified.is_record
        ranks += verified.ranks
        if verified.problem is not None:
            problems += 1
            print(verified.problem, file=sys.stderr)
    if problems:
        raise BadInput(f"found {counted(problems, 'damaged file')} of {files}")
    print(
        f"{counted(records, 'record')} of {counted(len(names), 'sweep')} are whole, with the series"
        f" of {counted(ranks, 'rank')}; so are {counted(files - records, 'other file')}"
    )
    print("that is no proof against someone who can write to the folder: seals have no secret")


@stored_app.command(
    epilog=examples("harness results mllog mnist", "harness results mllog mnist --check")
)
def mllog(
    sweep: NameArgument,
    results: ResultsOption = Path("results"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Ask MLCommons' compliance checker about each log."),
    ] = False,
) -> None:
    """Write the trials of a sweep as logs in MLPerf's format.

    With mllog: true in its file, `harness run` writes them. They are made from the records, and are
    in the folders of the trials.

    Exit code 1 if the checker refuses one, and 2 if a trial has no log or the checker is not
    installed.
    """
    from harness.core.paths import Results
    from harness.mllog.checker import check_logs
    from harness.mllog.log import write_logs
    from harness.records.store import read_recorded_sweep
    from harness.render.stored import show_answers

    results_folder = Results(results)
    recorded = read_recorded_sweep(results_folder, sweep)
    _print_left_out(recorded)
    written = write_logs(results_folder.sweep_folder(sweep), recorded)
    if not check:
        for log in written:
            print(log.path)
        return
    benchmarks = sorted({log.benchmark for log in written})
    answers = check_logs([log.path for log in written], benchmarks)
    show_answers(written, answers)
    if not all(answer.accepted for answer in answers):
        raise typer.Exit(1)


@app.command(epilog=examples("harness ui --port 5001"))
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
    """
    from harness.core.paths import Results
    from harness.tracking.ui import serve

    serve(Results(results), tracking_uri, port=port)


def _print_left_out(recorded: "RecordedSweep") -> None:
    """Name on stderr the records that are left out, and why."""
    if not recorded.unreadable and not recorded.other_code:
        return
    from harness.render.run import left_out_lines

    for line in left_out_lines(recorded):
        print(line, file=sys.stderr)
