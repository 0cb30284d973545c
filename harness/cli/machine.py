"""Defines the commands about a machine, `harness doctor` and `peak`, and `harness export`.

`doctor` asks whether trials can run, `peak` what the hardware can do at most, and `export` prepares a
trained model for serving.
"""

from typing import Annotated

import typer

from harness.analysis.selection import find_trial
from harness.api import load_profile
from harness.cli.arguments import ClusterOption, JsonOption, OnlyOption
from harness.cli.main import RESULTS
from harness.core.paths import TrialFolder
from harness.export.exporting import check_formats, export_trial
from harness.launch.tasks import measure_peaks
from harness.slurm.doctor import examine
from harness.view.console import show, spinner
from harness.view.machine import doctor_view, export_view, peaks_view

app = typer.Typer()


@app.command()
def doctor(
    cluster: ClusterOption = "local",
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Compare the bits of every node that responds.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Check that trials can run where a cluster profile says.

    Runs one short trial as `harness run` or `harness submit` would, over as many ranks as a job of
    the profile has, and says what became of it. A job may be pending in Slurm's queue for ten minutes.

    Exit code 1 if a check fails.

    Examples:
      harness doctor
      harness doctor --cluster slurm --all-nodes
      harness doctor --cluster slurm --json
    """
    profile = load_profile(cluster, launcher="")
    with spinner():
        checks = examine(profile, RESULTS.get(), all_nodes=all_nodes)
    return show(doctor_view(cluster, checks), as_json=as_json)


@app.command()
def peak(
    ranks: Annotated[int | None, typer.Option(min=1, help="How many ranks all-reduce.")] = None,
    cluster: ClusterOption = "local",
) -> None:
    """Measure the machine's peaks, for MFU.

    Times matrix products, a copy and all-reduces for some ten seconds, and keeps the result in the
    results folder. `harness show` then gives MFU relative to it. All-reduces are over a rank for each
    GPU, or two on a CPU, unless --ranks says another number.

    Examples:
      harness peak
      harness peak --ranks 4
    """
    profile = load_profile(cluster)
    with spinner():
        machine, path = measure_peaks(RESULTS.get(), profile, ranks)
    show(peaks_view(machine, path))


@app.command()
def export(
    trial: Annotated[
        str,
        typer.Argument(
            metavar="TRIAL",
            help="A trial's id, its folder or its record; or a sweep or a cell, with --best.",
        ),
    ],
    to: Annotated[
        list[str], typer.Option(metavar="FORMAT", help="onnx, torch-export. Repeatable.")
    ],
    best: Annotated[bool, typer.Option("--best", help="Take the best trial.")] = False,
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    batch_size: Annotated[
        list[int], typer.Option(min=1, metavar="N", help="Samples of a timed call. Repeatable.")
    ] = [1, 32],  # noqa: B006
    cluster: ClusterOption = "local",
) -> None:
    """Export a trained model, check it, and time its calls.

    Takes the parameters of the best evaluation (checkpoint: best in the sweep). The exported model
    is compared with eager mode over the whole test set, and refused if an output of any sample is
    farther off than rounding explains. The files, parity and latencies are left in the trial's folder.

    Exit code 1 if the exported model computes something else.

    Examples:
      harness export my-sweep --best --to onnx
      harness export my-sweep --only strategy=ddp --best --to torch-export
      harness export mlp-45dbdb38d5-s0-r0 --to onnx --to torch-export --batch-size 32
    """
    formats = check_formats(to)
    record, path = find_trial(RESULTS.get(), trial, only, best=best)
    folder = TrialFolder(path)
    profile = load_profile(cluster)
    with spinner(f"{record.trial.id}:"):
        exported = export_trial(record, folder, formats, profile, batch_size)
    show(export_view(exported, folder))
