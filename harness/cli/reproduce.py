"""Defines the commands about reproducing: `harness reproduce`, `diff` and `parity`."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.analysis.rungs import Rung
from harness.analysis.selection import find
from harness.api import load_planned
from harness.cli.arguments import (
    AccuracyMarginOption,
    ClusterOption,
    DataOption,
    JsonOption,
    OnlyOption,
    SeedOption,
    SetOption,
    SweepArgument,
    complete_recorded_sweeps,
)
from harness.cli.main import RESULTS
from harness.core.errors import BadInput
from harness.core.paths import safe_folder_name
from harness.core.progress import print_message
from harness.core.text import counted
from harness.reproduce.parity import plan_parity, sweep_parity
from harness.reproduce.reproduction import reproduce as reproduce_trials
from harness.reproduce.rerun import originals as find_originals
from harness.reproduce.source import Choice
from harness.reproduce.tracing import TracedTrial, diff_trials
from harness.sweep.cell import Trial
from harness.sweep.selected import find_cell
from harness.view.console import TerminalConsole, show, spinner
from harness.view.parity import parity_view, rung_badge
from harness.view.reproduce import code_lines, diff_view, verdict_view
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
    sweep: SweepArgument,
    a: CellArgument = "",
    b: CellArgument = "",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find where two cells diverge, to the tensor.

    Runs two cells of a sweep and compares what every rank computes, step by step: batches, random
    numbers, loss, gradients before and after the ranks share them, parameters, optimizer state,
    buffers and evaluations. Names the first step, phase, rank and tensor that differ, and how far
    apart they are. Nothing is recorded. A sweep of two cells needs no names.

    Exit code 0 if all bits are the same, 1 if not.

    Examples:
      harness diff quickstart strategy=ddp,workload=mlp strategy=fsdp2,workload=mlp
      harness diff sweep.yaml num_threads=1 num_threads=2 --set length.steps=20
    """
    loaded, profile = load_planned(sweep, settings, data, cluster, timed=False)
    cells = list(loaded.cells)
    if a:
        names = filter(None, [a, b])
        cells = [find_cell(loaded, name, "CELL") for name in names]
    if len(cells) != 2:
        found = counted(len(cells), "cell")
        allowed = "two, or the names of two (harness plan lists them)"
        raise BadInput(f"{loaded.source}: found {found}; allowed: {allowed}")
    if seed is None:
        seed = loaded.seeds[0]
    trial_a, trial_b = [Trial(cell=cell, seed=seed) for cell in cells]
    with spinner():
        difference = diff_trials(
            TracedTrial(trial=trial_a, base_folder=loaded.base_folder),
            TracedTrial(trial=trial_b, base_folder=loaded.base_folder),
            profile,
            loaded.timeout,
        )
    view = diff_view(trial_a, trial_b, difference)
    return show(view, as_json=as_json)


@app.command()
def parity(
    sweep: SweepArgument,
    reference: Annotated[
        str, typer.Option(metavar="AXIS=VALUE[,…]", help="The cell to compare with.")
    ] = "",
    at_least: Annotated[Rung, typer.Option(help="The lowest that is no failure.")] = "equivalent",
    accuracy_margin: AccuracyMarginOption = 0.01,
    seed: SeedOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    cluster: ClusterOption = "local",
    as_json: JsonOption = False,
) -> int:
    """Show how alike the cells of a sweep compute.

    Runs each cell once, unmeasured, and compares it with a reference of its workload, by default the first
    cell, which runs three times: as it is, again as a control, and in fp64. Rungs are, from the highest:
    bitwise; rounding, as close to the run in fp64 as the reference is; equivalent, by the target metric of
    recorded seeds; different. Cells with another batch size, learning rate, optimizer or gradient limit are
    meant to differ, and are only compared with each other. The result stays in the sweep's folder, for
    `harness show` and the report, and `harness collect` brings it to MLflow; that of a part of the sweep
    (--only) is printed only.

    Exit code 0 if all cells are on the rung --at-least or higher, 1 if one is not, 3 if that can't be
    told of one.

    Examples:
      harness parity quickstart
      harness parity sweep.yaml --reference strategy=single,precision=fp32 --set length.steps=50
      harness parity nightly.yaml --at-least rounding --json
    """
    loaded, profile = load_planned(sweep, settings, data, cluster, only=only, timed=False)
    plan = plan_parity(loaded, reference)
    seed = loaded.seeds[0] if seed is None else seed
    with spinner():
        measured = sweep_parity(
            RESULTS.get(),
            loaded,
            profile,
            plan,
            seed=seed,
            margin=accuracy_margin,
            on_cell=lambda cell: print_message(f"{cell.cell.label}: {rung_badge(cell)}"),
        )
    show(parity_view(measured), as_json=as_json)
    return measured.exit_code(at_least)


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
    code: Annotated[Choice | None, typer.Option(help="Whose code runs.")] = None,
    at_least: Annotated[
        Literal["bitwise", "rounding"], typer.Option(help="What must be reached.")
    ] = "rounding",
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="The new records.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Run a recorded trial again, and compare the bits.

    Runs the recorded commit where the code here is another one, in another checkout, with your rights:
    reproduce records of people whose code you would run. Without --code, it is the code here if it is
    the same. Uncommitted changes that a record keeps run only with --code recorded. No sweep file is
    needed. The verdict is bitwise equal, within rounding errors, or different, with the first
    difference and its likeliest cause, and every condition that differs. The new records and the
    verdict are left in a folder, reproduced-RUN-TIME by default.

    Exit code 0 if --at-least is reached, 1 if not, 3 if that can't be told.

    Examples:
      harness reproduce mlp-45dbdb38d5-s0-r0
      harness reproduce nightly --only seed=0 --only strategy=ddp --at-least bitwise
      harness reproduce runs/nightly/mlp-45dbdb38d5-s0-r0 --code recorded
    """
    # All that can be refused is refused before the first file is written.
    named = find(RESULTS.get(), run)
    originals = find_originals(named.records, named.folder, only)
    name = safe_folder_name(Path(run).name)
    if len(originals) == 1:
        name = originals[0].record.trial.id
    now = time.strftime("%Y%m%dT%H%M%S")
    folder = output or Path(f"reproduced-{name}-{now}")
    if folder.exists():
        raise BadInput(f"--output: {folder} exists; allowed: a folder that does not")
    console = TerminalConsole(stderr=as_json)  # as the output is JSON
    verdict = reproduce_trials(
        run,
        originals,
        code,
        data,
        at_least,
        folder,
        make_listener=lambda sweep: RunView(sweep, console),
        on_prepared=lambda prepared: console.show(View(lines=code_lines(prepared))),
    )
    return show(verdict_view(verdict, folder), as_json=as_json)
