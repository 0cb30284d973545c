"""Defines the commands that look at a workload before it is trained: `check` and `find-lr`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import (
    CellsOption,
    ClusterOption,
    DataOption,
    JsonOption,
    OnlyOption,
    ResultsOption,
    SetOption,
    SweepArgument,
    check_launcher,
    examples,
    load_sweep,
)

app = typer.Typer()


@app.command(
    epilog=examples(
        "harness check quickstart",
        "harness check sweep.yaml --set workloads.mlp.options.lr=0.1",
        "harness check sweep.yaml --only workload=cnn --json",
    )
)
def check(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = "",
    cells: CellsOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="The seed of the models.  [default: the sweep's first]"),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show what passed, and every parameter's gradient."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Look for mistakes in a sweep's workloads.

    Takes seconds, before hours are spent on training. Looks at samples, labels and split; at layers,
    devices and modes; at loss, gradients and optimizer; and has each model learn a few samples by
    heart. Each mistake is named with what to do about it. The report of the sweep shows the result
    too.

    Exit code 1 if there is a mistake.
    """
    from harness.core.paths import Results
    from harness.interface.checking import check_sweep
    from harness.render.preflight import show_preflight
    from harness.render.terminal.console import spinner

    loaded, profile = load_sweep(sweep, settings, data, cluster, only=only, cells=cells)
    check_launcher(cluster, profile, "torchrun")
    chosen_seed = loaded.seeds[0] if seed is None else seed
    with spinner("checking") as on_progress:
        preflight = check_sweep(
            Results(results), loaded, profile, seed=chosen_seed, on_progress=on_progress
        )
    show_preflight(preflight, verbose=verbose, as_json=as_json)
    if preflight.problem_count:
        raise typer.Exit(1)


@app.command(
    "find-lr",
    epilog=examples(
        "harness find-lr quickstart",
        "harness find-lr sweep.yaml --only workload=cnn --epochs 1",
        "harness find-lr sweep.yaml --set precision=bf16 --seeds 5 --json",
    ),
)
def find_lr(
    sweep: SweepArgument,
    settings: SetOption = [],  # noqa: B006
    data: DataOption = [],  # noqa: B006
    only: OnlyOption = "",
    cells: CellsOption = [],  # noqa: B006
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=20, max=100_000, help="Steps of a training.  [default: 200]"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, max=1000, help="Epochs of a training, instead of --steps."),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=100, help="How many seeds, for their spread.")
    ] = 3,
    as_json: JsonOption = False,
) -> None:
    """Suggest a learning rate for each cell of a sweep.

    Trains each cell for a short time while its rate rises from 1e-7 to 1, until the loss diverges,
    under the cell's own strategy, precision and batch size. The suggestion is the rate at which the
    loss falls most, or more for a schedule that has its peak only for a while. Beside it are the
    steepest rate itself, and a tenth of the rate at which the loss is lowest; each with its range
    over seeds. They are values of the axis lr. The report and MLflow show the curves too.
    """
    from harness.core.errors import BadInput
    from harness.core.paths import Results
    from harness.interface.checking import search_rates
    from harness.render.rates import show_rates
    from harness.render.terminal.console import spinner
    from harness.spec.cell import Length

    if steps is not None and epochs is not None:
        raise BadInput(f"--epochs: found {epochs} and --steps {steps}; allowed: one of them")
    length = Length(steps=steps or 200) if epochs is None else Length(epochs=epochs)
    loaded, profile = load_sweep(sweep, settings, data, cluster, only=only, cells=cells)
    check_launcher(cluster, profile, "torchrun")
    with spinner("training") as on_progress:
        search = search_rates(
            Results(results),
            loaded,
            profile,
            seeds=list(range(seeds)),
            length=length,
            on_progress=on_progress,
        )
    show_rates(search, as_json=as_json)
