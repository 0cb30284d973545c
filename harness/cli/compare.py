"""The commands that say what results come to: `harness compare`, `harness baseline` and `harness report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.arguments import NameArgument, ResultsOption, UriOption, recorded, sweeps
from harness.core.errors import BadInput, parse_percentage

if TYPE_CHECKING:
    from harness.analysis.compare import Side
    from harness.statistics.verdict import Correction

EXAMPLES = "\b\nExamples:\n  harness compare baseline today\n  harness compare today --by precision"

baseline_app = typer.Typer(
    help="Keep, show and prune what later runs are held against.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


AcrossOption = Annotated[
    list[str],
    typer.Option(
        "--across",
        metavar="WHAT[,…]",
        help="The difference that is the question: hardware, data, an axis.",
    ),
]
ByOption = Annotated[
    str,
    typer.Option(
        "--by", metavar="AXIS[,…]", help="Hold an axis' values against each other within one sweep."
    ),
]
MinEffectOption = Annotated[
    str,
    typer.Option(
        "--min-effect", metavar="PERCENT", help="The smallest change of throughput that matters."
    ),
]
MarginOption = Annotated[
    float,
    typer.Option(
        "--accuracy-margin",
        min=0.0,
        metavar="X",
        help="The same for the target metric, in its own unit.",
    ),
]
CorrectionOption = Annotated[
    str,
    typer.Option(
        "--correction", metavar="holm|bh", help="How false alarms are held down over all cells."
    ),
]


def compare(
    things: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULT",
            help="Sweeps, cells, trials, baselines, paths or MLflow run ids (also mlflow:ID), all against the first;"
            " only one with --by or --effects.",
            autocompletion=recorded,
        ),
    ],
    across: AcrossOption = [],  # noqa: B006 - typer copies it
    by: ByOption = "",
    min_effect: MinEffectOption = "1%",
    accuracy_margin: MarginOption = 0.01,
    correction: CorrectionOption = "holm",
    as_effects: Annotated[
        bool,
        typer.Option(
            "--effects", help="What each axis of one sweep buys, and two of them together."
        ),
    ] = False,
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for machines.")] = False,
) -> None:
    """Compare results with intervals and verdicts. Exit code 1 if worse, 3 if that can't be told."""
    from harness.analysis.compare import Rules, certified_drifts, compare, compare_by
    from harness.core.paths import Results
    from harness.hardware.certificate import citation_lines
    from harness.render.terminal import compare as view

    matters, way = parse_percentage(min_effect, "--min-effect"), _correction(correction)
    if bool(by or as_effects) == (len(things) > 1) or (by and as_effects):
        given = " and ".join([str(len(things)), *["--by"] * bool(by), *["--effects"] * as_effects])
        raise BadInput(
            f"found {given} to compare; allowed: A B…, or one with --by AXIS or --effects"
        )
    sides = _select(results, things, tracking_uri)
    if as_effects:
        from harness.analysis.effects import effects
        from harness.render.terminal.effects import show_effects

        return show_effects(effects(sides[0]), as_json=as_json)
    rules = Rules(
        across=_words(",".join(across)),
        min_effect=matters,
        accuracy_margin=accuracy_margin,
        correction=way,
        drift=certified_drifts(Results(results), sides),
    )
    found = compare_by(sides[0], _words(by), rules) if by else compare(sides[0], sides[1:], rules)
    names = [side.name for side in sides[1:]] or [f"{sides[0].name} by {by}"]
    if not as_json:
        for line in citation_lines(
            Results(results), (kind for one in found.matches for kind in one.hardware)
        ):
            print(line)
    show: Any = view.print_json if as_json else view.show_comparison
    show(found, sides[0].name, names)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _correction(text: str) -> Correction:
    if text not in ("holm", "bh"):
        raise BadInput(f"--correction: found {text!r}; allowed: holm, bh")
    return "holm" if text == "holm" else "bh"


def report(
    sweep: NameArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE.html", help="Where to; else report.html beside its records."
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="BASELINE|SWEEP",
            help="What to hold it against, as compare takes it.",
        ),
    ] = "",
    results: ResultsOption = Path("results"),
    tracking_uri: UriOption = None,
) -> None:
    """Write a sweep's report as one HTML file. Nothing else is needed to read it."""
    from harness.core.paths import Results
    from harness.launch.sweep import read_recorded_sweep
    from harness.render.html import page

    place = Results(results)
    asked, records = read_recorded_sweep(place, sweep)
    side = _select(results, [against, sweep], tracking_uri)[0] if against else None
    path = out or place.sweep_folder(asked.name).report_path
    page.write(path, place, asked, records, side)
    print(path)


@baseline_app.command(epilog="Example:  harness baseline save nightly")
def save(
    sweep: NameArgument, results: ResultsOption = Path("results"), tracking_uri: UriOption = None
) -> None:
    """Keep results as the baseline of their hardware. A sweep's, a cell's or an MLflow run's; commit the files."""
    from harness.analysis import baseline
    from harness.core.paths import Results
    from harness.render.terminal.compare import show_saved

    (side,) = _select(results, [sweep], tracking_uri)
    show_saved(baseline.save(Results(results), side.cells))


@baseline_app.command("list", epilog="Example:  harness baseline list")
def list_(results: ResultsOption = Path("results")) -> None:
    """List the baselines there are."""
    from harness.analysis import baseline
    from harness.core.paths import Results
    from harness.render.terminal.compare import show_baselines

    show_baselines([(path, baseline.read(path)) for path in baseline.files(Results(results))])


@baseline_app.command("show", epilog="Example:  harness baseline show mlp-45dbdb38d5")
def show_(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell's id or label.")],
    results: ResultsOption = Path("results"),
) -> None:
    """Show what the baselines of a cell hold."""
    from harness.analysis import baseline
    from harness.core.errors import did_you_mean
    from harness.core.paths import Results
    from harness.render.terminal.compare import show_baseline

    found = [(path, baseline.read(path)) for path in baseline.files(Results(results))]
    own = [(path, one) for path, one in found if cell in (one.cell.id, one.cell.label)]
    if not own:
        raise BadInput(
            f"{cell}: no such baseline; {did_you_mean(cell, {path.stem for path, _ in found})}"
        )
    for path, one in own:
        show_baseline(path, one)


@baseline_app.command(epilog="Example:  harness baseline prune nightly --dry-run")
def prune(
    sweeps: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP", help="Sweep files, or names of ready ones.", autocompletion=sweeps
        ),
    ],
    results: ResultsOption = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove baselines that are of no use any more. Of cells that none of these sweeps has, or unreadable."""
    from harness.analysis import baseline
    from harness.core.paths import Results
    from harness.spec import sweep as spec

    keep = {
        cell.id for sweep in sweeps for cell in spec.load_sweep(spec.find_sweep_file(sweep)).cells
    }
    gone = baseline.prune(Results(results), keep, dry_run=dry_run)
    for path in gone:
        print(f"{'would remove' if dry_run else 'removed'} {path}")
    if not gone:
        print("nothing to remove: all baselines are of cells of these sweeps")


def _select(results: Path, names: Sequence[str], tracking_uri: str | None) -> list[Side]:
    """What the names stand for; MLflow is asked for those of its runs only."""
    from harness.analysis.selection import select
    from harness.core.paths import Results
    from harness.tracking import Tracker

    return select(
        Results(results), names, lambda run: Tracker(Results(results), tracking_uri).recall(run)
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
