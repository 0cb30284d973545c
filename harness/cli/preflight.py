"""Defines the commands that look at a workload before it is trained: `harness check`."""

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
    from harness.render.terminal import preflight as view

    loaded, profile = load_sweep(sweep, settings, data, cluster, only=only, cells=cells)
    check_launcher(cluster, profile, "torchrun")
    chosen_seed = loaded.seeds[0] if seed is None else seed
    passed = view.run(
        Results(results), loaded, profile, seed=chosen_seed, verbose=verbose, as_json=as_json
    )
    if not passed:
        raise typer.Exit(1)
