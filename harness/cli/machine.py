"""Defines the commands about a machine: `harness doctor`, `selftest` and `peak`.

`doctor` asks whether trials can run, `selftest` whether their measurements can be believed, and
`peak` what the hardware can do at most.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import (
    ClusterOption,
    JsonOption,
    NoWaitOption,
    ResultsOption,
    examples,
    load_local_profile,
    machine_held,
)
from harness.core.errors import BadInput

if TYPE_CHECKING:
    from harness.core.paths import Results
    from harness.spec.cluster import Profile

app = typer.Typer()


@app.command(epilog=examples("harness doctor", "harness doctor --cluster slurm --json"))
def doctor(
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            metavar="SECONDS",
            help="How long its job may wait in Slurm's queue.",
        ),
    ] = 600.0,
    all_nodes: Annotated[
        bool,
        typer.Option(
            "--all-nodes",
            help="Examine every node of the partition, once all are free, not only as many as a"
            " job takes.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that trials can run where a cluster profile says.

    Checks Python, torch, the harness and the results folder; on a Slurm cluster also names, ports,
    clocks and an all-reduce, by a small job on as many nodes as a job of the profile takes. Exit code 1 if a check
    fails.
    """
    from harness.core.paths import Results
    from harness.render.terminal import doctor as view
    from harness.spec import cluster as clusters

    # Unlike the commands below, the doctor takes a profile of either launcher.
    profile = clusters.load_profile(cluster)
    passed = view.run(
        cluster,
        profile,
        Results(results),
        patience=patience,
        all_nodes=all_nodes,
        as_json=as_json,
    )
    if not passed:
        raise typer.Exit(1)


@app.command(epilog=examples("harness selftest --ranks 1,2"))
def selftest(
    ranks: Annotated[
        str, typer.Option("--ranks", metavar="N[,N…]", help="Numbers of ranks, one trial each.")
    ] = "1,2,4",
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
) -> None:
    """Check that the harness measures known times right.

    Steps, data waits and communication of known length must be measured to within 1%. A trial that
    misses runs again, up to four times, because another program may have disturbed it. Exit code 1
    if a quantity stays off.
    """
    from harness.core.paths import Results

    run_selftest(ranks, load_local_profile(cluster), Results(results))


@app.command(
    epilog=examples("harness peak", "harness peak --plot", "harness peak --ranks 4 --quick")
)
def peak(
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=1,
            metavar="N",
            help="How many ranks all-reduce. Default: one per GPU, or two on a CPU.",
        ),
    ] = None,
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sizes and repeats: rough figures in seconds.")
    ] = False,
    plot: Annotated[
        bool,
        typer.Option(
            "--plot",
            help="Measure products of twice as many sizes, and plot which of them reach the peak.",
        ),
    ] = False,
    no_wait: NoWaitOption = False,
) -> None:
    """Measure the machine's peaks, for MFU and the roofline.

    Times matrix products, copies and all-reduces for about a minute, and keeps the result in the
    results folder. `harness show` then gives MFU relative to it, and a roofline.
    """
    from harness.core.paths import Results
    from harness.render.terminal import peak as view

    profile = load_local_profile(cluster)
    with machine_held(profile, "measuring this machine's peaks", no_wait=no_wait):
        view.run(Results(results), profile, ranks=ranks, quick=quick, plot=plot)


def run_selftest(ranks: str, profile: Profile, results: Results) -> None:
    """Run the self-test with each number of ranks in a list such as `1,2,4`.

    Its trials are those of the ready sweep `selftest`, and leave their records in the results
    folder as any other. `harness run --selftest` calls this function too.

    Raises BadInput for anything else than numbers, and ends the command with exit code 1 if a
    measured quantity is off.
    """
    from harness.render.terminal.selftest import run

    world_sizes: list[int] = []
    for part in ranks.split(","):
        # `isdecimal` is also false for an empty part, a sign and a fraction.
        if not part.strip().isdecimal():
            raise BadInput(f"--ranks: found {ranks!r}; allowed: numbers of ranks, as in 1,2,4")
        world_sizes.append(int(part))
    if not run(results, profile, world_sizes):
        raise typer.Exit(1)
