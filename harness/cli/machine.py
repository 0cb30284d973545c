"""Defines the commands about a machine: `harness doctor` and `peak`.

`doctor` asks whether trials can run, and `peak` what the hardware can do at most.
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from harness.api.planning import load_profile
from harness.cli.arguments import (
    ClusterOption,
    JsonOption,
    ResultsOption,
    print_next,
)
from harness.core.paths import Results
from harness.core.text import parse_duration
from harness.launch.probe import measure_peaks
from harness.records.store import latest_sweep_name
from harness.slurm.doctor import examine
from harness.sweep import cluster as clusters
from harness.view.console import show, spinner
from harness.view.machine import doctor_view, peaks_view

app = typer.Typer()


@app.command()
def doctor(
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="How long its job may be pending in Slurm's queue, as in 30m.",
        ),
    ] = "10m",
    all_nodes: Annotated[
        bool,
        typer.Option(
            "--all-nodes",
            help="Run a trial on every node that responds, which must compute the same bits.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that trials can run where a cluster profile says.

    Runs one short trial as `harness run` or `harness submit` would, over as many ranks as a job of
    the profile has, and says what became of it. Exit code 1 if a check fails.

    Examples:
      harness doctor
      harness doctor --cluster slurm --all-nodes
      harness doctor --cluster slurm --json
    """
    profile = clusters.load_profile(cluster)
    patience = parse_duration(timeout, "--timeout")
    with spinner():
        checks = examine(profile, Results(results), patience=patience, all_nodes=all_nodes)
    show(doctor_view(cluster, checks), as_json=as_json)
    if not all(check.passed for check in checks):  # a check that was not made has not passed
        raise typer.Exit(1)


@app.command()
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
) -> None:
    """Measure the machine's peaks, for MFU.

    Times matrix products, a copy and all-reduces for some ten seconds, and keeps the result in the
    results folder. `harness show` then gives MFU relative to it.

    Examples:
      harness peak
      harness peak --ranks 4
    """
    profile = load_profile(cluster)
    results_folder = Results(results)
    with spinner():
        machine, path = measure_peaks(results_folder, profile, ranks)
    show(peaks_view(machine))
    print(f"record: {path}")
    purpose = "compares its cells with these peaks"
    sweep = latest_sweep_name(results_folder)
    command = "harness run quickstart" if sweep is None else f"harness show {shlex.quote(sweep)}"
    print_next(f"{command}{results_folder.flag}", purpose)
