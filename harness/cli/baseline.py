"""Defines `harness gate baseline save`, `show` and `prune`.

A baseline is a file, `baselines/<hardware>/<cell id>.json` in the results folder. It is small and
without paths of this machine, because it is meant to be committed. Only `save` and `prune` change
files; both leave alone what would stay the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import NameArgument, ResultsOption, UriOption, examples
from harness.cli.completion import complete_sweeps
from harness.core.errors import BadInput

if TYPE_CHECKING:
    from harness.analysis.result import CellResult

app = typer.Typer(
    help="Save, show and prune baselines for later runs.",
    no_args_is_help=True,
)


@app.command(epilog=examples("harness gate baseline save nightly"))
def save(
    sweep: NameArgument, results: ResultsOption = Path("results"), tracking_uri: UriOption = None
) -> None:
    """Save results as the baseline of their hardware.

    Writes a small file for each cell, below a folder named after the hardware. Commit them, and
    compare with them by `harness compare baseline SWEEP` or with the pytest plugin. SWEEP may also
    be a cell, or the id of an MLflow run.
    """
    from harness.analysis import baseline
    from harness.core.paths import Results
    from harness.interface.comparing import select_results
    from harness.render.terminal.compare import show_saved

    results_folder = Results(results)
    (side,) = select_results(results_folder, [sweep], tracking_uri)
    # All cells or none are written: a cell without a measurement, or with trials of several kinds
    # of hardware, raises BadInput before the first file.
    show_saved(baseline.save(results_folder, side.cells))


@app.command(
    epilog=examples("harness gate baseline show", "harness gate baseline show mlp-45dbdb38d5")
)
def show(
    cell: Annotated[
        str,
        typer.Argument(
            metavar="[CELL]",
            help="A cell: its id, the start of it, its label, or settings that it has. Default: a"
            " list of all baselines.",
        ),
    ] = "",
    results: ResultsOption = Path("results"),
) -> None:
    """Show the baselines, or the contents of a cell's.

    The list has the hardware, the cell, the mean throughput and the code of each baseline. Of a
    cell, shows the conditions that each was measured under, and a row for each of its trials.
    """
    from harness.core.errors import did_you_mean
    from harness.render.terminal.compare import show_baseline, show_baselines
    from harness.spec.cell import is_named

    baselines = _read_baselines(results)
    if not cell:
        show_baselines(baselines)
        return
    # A cell has a baseline for each kind of hardware; all of them are shown.
    ids: set[str] = set()
    matching: list[tuple[Path, CellResult]] = []
    for path, result in baselines:
        ids.add(path.stem)
        if path.stem.startswith(cell) or is_named(result.cell, cell):
            matching.append((path, result))
    if not matching:
        raise BadInput(f"{cell}: no such baseline; {did_you_mean(cell, ids)}")
    for path, result in matching:
        show_baseline(path, result)


@app.command(epilog=examples("harness gate baseline prune nightly --dry-run"))
def prune(
    sweeps: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP",
            help="Sweep files, or names of ready sweeps.",
            autocompletion=complete_sweeps,
        ),
    ],
    results: ResultsOption = Path("results"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
) -> None:
    """Remove baselines that no sweep needs any more.

    Removes unreadable baselines, and those of cells that none of the given sweeps has.
    """
    from harness.analysis import baseline
    from harness.core.paths import Results
    from harness.spec import sweep as spec

    # The id changes with any setting that a cell trains with, so that a changed sweep leaves behind
    # the baselines of its former cells.
    ids_to_keep: set[str] = set()
    for name in sweeps:
        sweep = spec.load_sweep(spec.find_sweep_file(name))
        ids_to_keep.update(cell.settings_id for cell in sweep.cells)
    removed = baseline.prune(Results(results), ids_to_keep, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    for path in removed:
        print(f"{verb} {path}")
    if not removed:
        print("nothing to remove: all baselines are of cells of these sweeps")


def _read_baselines(results: Path) -> list[tuple[Path, CellResult]]:
    """Return every baseline in the results folder, with its file.

    Raises BadInput for one that can't be read; `harness gate baseline prune` removes it.
    """
    from harness.analysis import baseline
    from harness.core.paths import Results

    baselines = []
    for path in baseline.files(Results(results)):
        baselines.append((path, baseline.read(path)))
    return baselines
