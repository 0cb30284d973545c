"""Defines the commands about reproducing: `harness diff`, its `parity`, and `reproduce`."""

import time
from pathlib import Path
from typing import Annotated, get_args

import typer

from harness.analysis.rungs import RUNGS
from harness.analysis.selection import find, find_trial
from harness.api.planning import load_planned, load_profile
from harness.cli.arguments import (
    MAX_SEED,
    AccuracyMarginOption,
    ClusterOption,
    DataOption,
    JsonOption,
    OnlyOption,
    ResultsOption,
    SetOption,
    SweepArgument,
    choose,
    print_collect,
)
from harness.cli.completion import complete_recorded_sweeps, complete_sweeps
from harness.core.errors import BadInput
from harness.core.paths import Results, safe_folder_name
from harness.core.progress import print_message
from harness.core.text import counted
from harness.reproduce.parity import plan_parity, sweep_parity
from harness.reproduce.reproduction import RESULTS_FOLDER
from harness.reproduce.reproduction import reproduce as reproduce_trials
from harness.reproduce.rerun import originals as find_originals
from harness.reproduce.source import Choice
from harness.reproduce.tracing import TracedTrial, diff_recorded, diff_trials
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile
from harness.sweep.selected import find_cell
from harness.sweep.sweep import Sweep, ready_sweeps
from harness.view.console import TerminalConsole, show, spinner
from harness.view.divergence import diff_view, recorded_diff_view
from harness.view.parity import parity_view, rung_badge
from harness.view.reproduction import code_lines, verdict_view
from harness.view.run import RunView
from harness.view.view import View

app = typer.Typer()

CellArgument = Annotated[
    str,
    typer.Argument(
        metavar="CELL",
        help="A cell of the sweep: its id, the start of it, its label, or settings that only it has"
        " (strategy=ddp,precision=bf16).",
    ),
]


@app.command()
def diff(
    sweep: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP|TRIAL",
            help="A sweep file or the name of a ready sweep; or a trial on record: its id, its folder"
            " or its record.",
            autocompletion=complete_sweeps,
        ),
    ],
    a: CellArgument = "",
    b: CellArgument = "",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            max=MAX_SEED,
            help="The seed of both.  [default: the sweep's first]",
        ),
    ] = None,
    results: ResultsOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Find where two cells or two trials diverge, to the tensor.

    Runs two cells of a sweep and compares what every rank computes, step by step: batches, random
    numbers, loss, gradients before and after the ranks share them, parameters, optimizer state,
    buffers and evaluations. Names the first step, phase, rank and tensor that differ, and how far
    apart they are. Nothing is recorded. A sweep of two cells needs no names.

    Two trials on record (harness diff TRIAL TRIAL) are compared by their losses, evaluations and
    digests, and run again, up to the first step that differs, if these differ.

    Exit code 0 if all bits are the same, 1 if not.

    Examples:
      harness diff quickstart strategy=ddp,workload=mlp strategy=fsdp2,workload=mlp
      harness diff sweep.yaml num_threads=1 num_threads=2 --set length.steps=20
      harness diff mlp-45dbdb38d5-s0-r0 mlp-07092cdc5e-s0-r0
    """

    # Two names of which the first is no sweep are those of trials on record.
    is_sweep = sweep in ready_sweeps() or Path(sweep).suffix in (".yaml", ".yml")
    if a and not b and not is_sweep:
        if settings or data or seed is not None:
            raise BadInput(
                "--set, --data, --seed: found with trials on record; allowed: with a sweep"
            )
        is_same = _diff_recorded(Results(results), (sweep, a), cluster, as_json=as_json)
    else:
        planned = load_planned(sweep, settings, data, cluster, timed=False)
        is_same = _diff_cells(planned, (a, b), cluster, seed, as_json=as_json)
    if not is_same:
        raise typer.Exit(1)


def _diff_cells(
    planned: tuple[Sweep, Profile],
    names: tuple[str, str],
    cluster: str,
    seed: int | None,
    *,
    as_json: bool,
) -> bool:
    """Run two cells of a sweep, show where they diverge, and return whether they are the same."""
    loaded, profile = planned
    traced_a, traced_b = _choose_trials(loaded, *names, seed)
    with spinner():
        diff = diff_trials(traced_a, traced_b, profile, loaded.timeout)
    show(diff_view(traced_a.trial, traced_b.trial, diff), as_json=as_json)
    return diff.is_same


def _choose_trials(
    sweep: Sweep, a: str, b: str, seed: int | None
) -> tuple[TracedTrial, TracedTrial]:
    """Return a trial of each of two cells, the sweep's only ones or those that are named.

    Their seed is `seed`, or the sweep's first. Raises BadInput.
    """
    if a and b:
        first, second = find_cell(sweep, a, "CELL"), find_cell(sweep, b, "CELL")
    elif a:
        raise BadInput(f"CELL: found only {a!r}; allowed: two cells")
    elif len(sweep.cells) == 2:
        first, second = sweep.cells
    else:
        raise BadInput(
            f"{sweep.source}: found {counted(len(sweep.cells), 'cell')}; allowed: two, or the names of two"
            " (harness plan lists them)"
        )
    seed_of_both = sweep.seeds[0] if seed is None else seed
    folder = sweep.base_folder
    return (
        TracedTrial(trial=Trial(cell=first, seed=seed_of_both), base_folder=folder),
        TracedTrial(trial=Trial(cell=second, seed=seed_of_both), base_folder=folder),
    )


def _diff_recorded(
    results: Results, names: tuple[str, str], cluster: str, *, as_json: bool
) -> bool:
    """Compare two trials on record, show where they diverge, and return whether they are the same."""
    profile = load_profile(cluster)
    record_a, record_b = (find_trial(results, name)[0] for name in names)
    with spinner():
        recorded_diff = diff_recorded(record_a, record_b, profile)
    show(recorded_diff_view(recorded_diff), as_json=as_json)
    return recorded_diff.is_same


@app.command()
def parity(
    sweep: SweepArgument,
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            metavar="AXIS=VALUE[,…]",
            help="The settings of the cell that the others of its workload are compared with."
            "  [default: the first]",
        ),
    ] = "",
    lowest: Annotated[
        str,
        typer.Option("--at-least", metavar="RUNG", help="The lowest rung that is no failure."),
    ] = "equivalent",
    margin: AccuracyMarginOption = 0.01,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            max=MAX_SEED,
            help="The seed of all runs.  [default: the sweep's first]",
        ),
    ] = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Show how alike the cells of a sweep compute.

    Runs each cell once, unmeasured, and compares it with a reference, which runs three times: as it
    is, again as a control, and in fp64. Rungs are, from the highest: bitwise; rounding, as close to the
    run in fp64 as the reference is; equivalent, by the target metric of recorded seeds; different.
    Cells with another batch size, learning rate, optimizer or gradient limit are meant to differ, and
    are only compared with each other. The result stays in the sweep's folder, for `harness show`, the
    report and MLflow; that of a part of the sweep (--only) is printed only.

    Exit code 0 if all cells are on the rung --at-least or higher, 1 if one is not, 3 if that can't be
    told of one.

    Examples:
      harness parity quickstart
      harness parity sweep.yaml --reference strategy=single,precision=fp32 --set length.steps=50
      harness parity nightly.yaml --at-least rounding --json
    """
    rung = choose("--at-least", lowest, RUNGS)
    loaded, profile = load_planned(sweep, settings, data, cluster, only=only, timed=False)
    plan = plan_parity(loaded, reference)
    results_folder = Results(results)
    with spinner():
        measured = sweep_parity(
            results_folder,
            loaded,
            profile,
            plan,
            seed=loaded.seeds[0] if seed is None else seed,
            margin=margin,
            on_cell=lambda cell: print_message(f"{cell.cell.label}: {rung_badge(cell)}"),
        )
    show(parity_view(measured), as_json=as_json)
    if not as_json:
        sweep_folder = results_folder.sweep_folder(loaded.name)
        if loaded.whole() is loaded and sweep_folder.recorded_ids():
            print_collect(results_folder, loaded.name)
    raise typer.Exit(measured.exit_code(rung))


@app.command()
def reproduce(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A record, a trial's id or folder, a cell, or a sweep.",
            autocompletion=complete_recorded_sweeps,
        ),
    ],
    code: Annotated[
        str,
        typer.Option(
            "--code",
            metavar="recorded|here",
            help="Whose code runs.  [default: here where it is the same, else the recorded commit,"
            " if it had no uncommitted changes]",
        ),
    ] = "",
    at_least: Annotated[
        str,
        typer.Option(
            "--at-least",
            metavar="RUNG",
            help="What must be reached: bitwise or rounding.",
        ),
    ] = "rounding",
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR", help="The new records.  [default: reproduced-RUN-TIME]"
        ),
    ] = None,
    results: ResultsOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Run a recorded trial again, and compare the bits.

    Runs the recorded commit where the code here is another one, in another checkout, with your rights:
    reproduce records of people whose code you would run. Uncommitted changes that a record keeps run
    only with --code recorded. No sweep file is needed. The verdict is bitwise equal, within
    rounding errors, or different, with the first difference and its likeliest cause, and every condition
    that differs. The new records and the verdict are left in a folder.

    Exit code 0 if --at-least is reached, 1 if not, 3 if that can't be told.

    Examples:
      harness reproduce mlp-45dbdb38d5-s0-r0
      harness reproduce nightly --only seed=0 --only strategy=ddp --at-least bitwise
      harness reproduce runs/nightly/mlp-45dbdb38d5-s0-r0 --code recorded
    """

    # All that can be refused is refused before the first file is written.
    whose_code = choose("--code", code, get_args(Choice)) if code else None
    demanded = choose("--at-least", at_least, RUNGS[: RUNGS.index("rounding") + 1])
    folder_of_results = Results(results)
    named = find(folder_of_results, run)
    originals = find_originals(named.records, named.folder, only)
    name = originals[0].record.trial.id if len(originals) == 1 else safe_folder_name(Path(run).name)
    folder = output or Path(f"reproduced-{name}-{time.strftime('%Y%m%dT%H%M%S')}")
    if folder.exists():
        raise BadInput(f"--output: {folder} exists; allowed: a folder that does not")
    console = TerminalConsole(stderr=as_json)  # as the output is JSON
    verdict = reproduce_trials(
        run,
        originals,
        whose_code,
        data,
        demanded,
        folder,
        lambda sweep: RunView(sweep, Results(folder / RESULTS_FOLDER), console),
        lambda prepared: console.show(View(lines=code_lines(prepared))),
    )
    show(verdict_view(verdict, folder), as_json=as_json)
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)
