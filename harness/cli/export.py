"""Defines the command that prepares a trained model for serving: `harness export`."""

from pathlib import Path
from typing import Annotated

import typer

from harness.analysis.selection import find_trial
from harness.api.planning import load_profile
from harness.cli.arguments import (
    BestOption,
    ClusterOption,
    OnlyOption,
    ResultsOption,
    print_collect,
    split_commas,
)
from harness.core.errors import BadInput
from harness.core.paths import Results, TrialFolder
from harness.export.exporting import check_formats, export_trial
from harness.view.console import show, spinner
from harness.view.machine import export_view

app = typer.Typer(add_completion=False)  # that is of `harness`, not of its command

MAX_BATCH = 1_000_000  # samples


@app.command()
def export(
    trial: Annotated[
        str,
        typer.Argument(
            metavar="TRIAL",
            help="A trial on record that has kept its best parameters: its id, its folder or its"
            " record; or a sweep or a cell, with --best.",
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT[,…]", help="onnx or torch-export.")],
    best: BestOption = False,
    only: OnlyOption = [],  # noqa: B006 - typer copies it
    batch_sizes: Annotated[
        str,
        typer.Option(
            "--batch-size", metavar="N[,…]", help="The samples of a call, to measure latency."
        ),
    ] = "1,32",
    cluster: ClusterOption = "local",
    results: ResultsOption = Path("results"),
) -> None:
    """Export a trained model, check it, and time its calls.

    Takes the parameters of the best evaluation (checkpoint: best in the sweep). The exported model
    is compared with eager mode over the whole test set, and refused if an output of any sample is
    farther off than rounding explains. The files, parity and latencies are in the trial's folder, for MLflow.

    Exit code 1 if the exported model computes something else.

    Examples:
      harness export my-sweep --best --to onnx
      harness export my-sweep --only strategy=ddp --best --to torch-export
      harness export mlp-45dbdb38d5-s0-r0 --to onnx,torch-export --batch-size 1,32
    """
    formats = check_formats(split_commas(to))
    sizes = _batch_sizes(batch_sizes)
    results_folder = Results(results)
    record, folder = find_trial(results_folder, trial, only, best=best)
    trial_folder = TrialFolder(folder)
    profile = load_profile(cluster)
    with spinner(f"{record.trial.id}:"):
        exported = export_trial(record, trial_folder, formats, profile, sizes)
    show(export_view(exported, trial_folder))
    print_collect(results_folder, record.sweep)


def _batch_sizes(text: str) -> list[int]:
    """Return the numbers of `1,8,64`; raises BadInput for anything else."""
    numbers = []
    for part in split_commas(text):
        if not part.isdecimal() or not 1 <= int(part) <= MAX_BATCH:
            raise BadInput(
                f"--batch-size: found {part!r}; allowed: whole numbers from 1 to {MAX_BATCH:,}, as in 1,8"
            )
        numbers.append(int(part))
    return numbers
