"""Defines the commands about reproducing: `harness diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import (
    ClusterOption,
    DataOption,
    JsonOption,
    SetOption,
    SweepArgument,
    check_launcher,
    examples,
    load_sweep,
)
from harness.core.errors import BadInput

if TYPE_CHECKING:
    from harness.spec.cell import Cell
    from harness.spec.sweep import Sweep

app = typer.Typer()

CellArgument = Annotated[
    str,
    typer.Argument(
        metavar="CELL",
        help="A cell of the sweep: the start of its id, or settings that no other cell has"
        " (strategy=ddp,precision=bf16).",
    ),
]


@app.command(
    epilog=examples(
        "harness diff quickstart strategy=ddp,workload=mlp strategy=fsdp2,workload=mlp",
        "harness diff sweep.yaml num_threads=1 num_threads=2 --set length.steps=20",
    )
)
def diff(
    sweep: SweepArgument,
    a: CellArgument = "",
    b: CellArgument = "",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    seed: Annotated[
        int | None, typer.Option("--seed", help="The seed of both.  [default: the sweep's first]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find where two cells of a sweep begin to compute something else.

    Runs both again and compares what every rank computes, step by step: batches, random numbers,
    loss, gradients before and after the ranks share them, parameters, optimizer state, buffers and
    evaluations. Names the first step, phase, rank and tensor that differ, and how far apart they
    are. Nothing is recorded. A sweep of two cells needs no names.

    Exit code 0 if all bits are the same, 1 if not.
    """
    import shutil
    import tempfile

    from harness.core.errors import HarnessError
    from harness.render.terminal import divergence
    from harness.reproduce.tracing import TracedTrial
    from harness.spec.cell import Trial

    loaded, profile = load_sweep(sweep, settings, data, cluster)
    check_launcher(cluster, profile, "torchrun")
    cells = _choose_cells(loaded, a, b)
    seed_of_both = loaded.seeds[0] if seed is None else seed
    traced_a, traced_b = (
        TracedTrial(trial=Trial(cell=cell, seed=seed_of_both), base_folder=loaded.base_folder)
        for cell in cells
    )
    folder = Path(tempfile.mkdtemp(prefix="harness-diff-"))
    try:
        same = divergence.run(traced_a, traced_b, folder, profile, loaded.timeout, as_json=as_json)
    except HarnessError:
        raise  # its message names logs in the folder, which stay
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    if not same:
        raise typer.Exit(1)


def _choose_cells(sweep: Sweep, a: str, b: str) -> tuple[Cell, Cell]:
    """Return the two cells to compare; raises BadInput."""
    if not a and not b:
        if len(sweep.cells) != 2:
            raise BadInput(
                f"{sweep.source}: found {len(sweep.cells)} cells; allowed: two, or the names of two"
                " (harness plan lists them)"
            )
        return sweep.cells[0], sweep.cells[1]
    if not b:
        raise BadInput(f"CELL: found only {a!r}; allowed: two cells")
    return _find_cell(sweep, a), _find_cell(sweep, b)


def _find_cell(sweep: Sweep, name: str) -> Cell:
    """Return the only cell that a name stands for; raises BadInput for none and for several."""
    matching = []
    for cell in sweep.cells:
        if cell.id.startswith(name) or _has_settings(cell, name):
            matching.append(cell)
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(cell.id for cell in (matching or sweep.cells)[:10])
    count = "no cell" if not matching else f"{len(matching)} cells"
    raise BadInput(
        f"{sweep.source}: CELL: {name!r} names {count}; allowed: the start of one id ({listed}) or"
        " settings of one, such as strategy=ddp,workload=mlp"
    )


def _setting(cell: Cell, name: str) -> str:
    """Return the value of an axis as text, `None` for what is no axis."""
    try:
        return str(cell.level(name))
    except AttributeError:
        return str(None)


def _has_settings(cell: Cell, text: str) -> bool:
    """Return whether a cell has all settings of a text such as `strategy=ddp,workload=mlp`."""
    if "=" not in text:
        return False
    for setting in text.split(","):
        name, _, value = setting.partition("=")
        if name.strip() == "workload":
            actual = cell.workload.label
        else:
            actual = _setting(cell, name.strip())
        if actual != value.strip():
            return False
    return True
