"""Defines the command that prepares a trained model for serving: `harness export`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from harness.cli.arguments import (
    BestOption,
    CellOption,
    ClusterOption,
    NoWaitOption,
    ResultsOption,
    examples,
    load_local_profile,
    print_collect,
    print_message,
    split_commas,
    write_output,
)
from harness.cli.completion import complete_trials
from harness.core.errors import BadInput
from harness.core.text import parse_duration

if TYPE_CHECKING:
    from harness.core.paths import TrialFolder
    from harness.serving.exporting import LatencyPlan
    from harness.serving.record import FormatName, TrialExport

app = typer.Typer()

MAX_BATCH = 1_000_000  # samples
MAX_THREADS = 4096


@app.command(
    epilog=examples(
        "harness export my-sweep --best --to onnx",
        "harness export my-sweep --cell strategy=ddp --best --to torch-export",
        "harness export mlp-45dbdb38d5-s0-r0 --to onnx,aotinductor --batch-size 1,32 --threads 1",
        "harness export distilbert-45dbdb38d5-s0-r0 --to save_pretrained --calls 0",
        "harness export mlp-45dbdb38d5-s0-r0 --format markdown",
    )
)
def export(
    trial: Annotated[
        str,
        typer.Argument(
            metavar="TRIAL",
            help="A trial on record that has kept its best parameters: its id, its folder or its"
            " record; or a sweep or a cell, with --best.",
            autocompletion=complete_trials,
        ),
    ],
    best: BestOption = False,
    cell: CellOption = "",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT[,…]",
            help="onnx, torch-export, aotinductor or save_pretrained.  [default: show what was"
            " exported]",
        ),
    ] = "",
    batch_sizes: Annotated[
        str,
        typer.Option(
            "--batch-size", metavar="N[,…]", help="The samples of a call, to measure latency."
        ),
    ] = "1,8,64",
    threads: Annotated[
        str,
        typer.Option(
            "--threads",
            metavar="N[,…]",
            help="The threads of a call, to measure latency.  [default: 1, and all cores]",
        ),
    ] = "",
    calls: Annotated[
        int,
        typer.Option(
            "--calls",
            min=0,
            max=1_000_000,
            help="Calls of each way to run the model, at each batch size and number of threads;"
            " 0: measure no latency.",
        ),
    ] = 500,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="DURATION",
            help="Measure each batch size and number of threads for at most this long, as in 1m.",
        ),
    ] = "30s",
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            min=0.0,
            metavar="X",
            help="The largest difference of an output from eager mode.  [default: ten times the"
            " rounding error of eager mode]",
        ),
    ] = None,
    table_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="csv|json|markdown|parquet",
            help="Print the latencies as a table for other programs.",
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write that table into this file. Its ending may stand for the format.",
        ),
    ] = None,
    cluster: ClusterOption = "local",
    no_wait: NoWaitOption = False,
    results: ResultsOption = Path("results"),
) -> None:
    """Export a trained model, check it, and time its calls.

    Takes the parameters of the best evaluation (checkpoint: best in the sweep). The exported model
    is compared with eager mode over the whole test set, and refused if an output of any sample is
    farther off than rounding explains. Then eager mode, torch.compile and all exported models of
    the trial are called in turn. The files, parity and latencies are in the trial's folder, for the
    report and MLflow.

    Exit code 1 if the exported model computes something else.
    """
    from harness.analysis.selection import find_trial
    from harness.core.paths import Results, TrialFolder
    from harness.interface.tables import choose_format
    from harness.interface.tables import export as export_table
    from harness.render.serving import latency_table, show_export
    from harness.serving.formats import check_formats

    formats = split_commas(to)
    check_formats(formats)
    table = choose_format(table_format, output) if table_format or output else None
    plan = _plan(batch_sizes, threads, calls, parse_duration(budget, "--budget", at_least=0.1))
    results_folder = Results(results)
    record, folder = find_trial(results_folder, trial, cell, best=best)
    trial_folder = TrialFolder(folder)
    if formats:
        from harness.interface.serving import export_model
        from harness.render.console import spinner
        from harness.serving.exporting import find_checkpoint

        profile = load_local_profile(cluster)
        checkpoint = find_checkpoint(record, folder)
        with spinner(f"{record.trial.id}:") as on_progress:
            exported = export_model(
                checkpoint,
                cast("Sequence[FormatName]", formats),  # `check_formats` has checked them
                plan,
                tolerance,
                profile,
                wait=not no_wait,
                on_message=print_message,
                on_progress=on_progress,
            )
    else:
        exported = _recorded_export(trial, trial_folder)
    if table is not None:
        write_output(export_table(latency_table([exported]), table), output)
        return
    show_export(exported, str(trial_folder.export_folder))
    if formats:
        print_collect(results_folder, record.sweep)


def _recorded_export(trial: str, folder: "TrialFolder") -> "TrialExport":
    """Return what was exported of a trial before; raises BadInput if nothing was."""
    from harness.serving.formats import FORMATS
    from harness.serving.record import read_export

    exported = read_export(folder)
    if exported is None:
        allowed = ", ".join(FORMATS)
        raise BadInput(f"{trial}: nothing was exported yet; needed: --to with any of {allowed}")
    return exported


def _plan(batch_sizes: str, threads: str, calls: int, seconds: float) -> "LatencyPlan":
    """Return what to measure; raises BadInput for a list that has anything but whole numbers."""
    from harness.core.cores import usable_cores
    from harness.serving.exporting import LatencyPlan

    thread_counts = sorted({1, len(usable_cores())})
    if threads:
        thread_counts = _whole_numbers("--threads", threads, MAX_THREADS)
    return LatencyPlan(
        batch_sizes=_whole_numbers("--batch-size", batch_sizes, MAX_BATCH),
        threads=thread_counts,
        calls=calls,
        seconds=seconds,
    )


def _whole_numbers(option: str, text: str, highest: int) -> list[int]:
    """Return the numbers of `1,8,64`, each once; raises BadInput for anything else."""
    numbers = []
    for part in split_commas(text):
        if not part.isdecimal() or not 1 <= int(part) <= highest:
            raise BadInput(
                f"{option}: found {part!r}; allowed: whole numbers from 1 to {highest:,}, as in 1,8"
            )
        numbers.append(int(part))
    if not numbers:
        raise BadInput(f"{option}: found none; allowed: whole numbers, as in 1,8")
    return list(dict.fromkeys(numbers))
