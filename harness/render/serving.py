"""What the exports of a trial show, as texts and as a table: for the terminal, the report, MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from harness.analysis.trial_table import TableColumn, TrialTable, Value
from harness.core.text import counted
from harness.render import format as fmt
from harness.render.console import TerminalConsole, show_table
from harness.render.table import Table
from harness.serving.record import COMPILED, EAGER, ExportedModel, ModelInput, TrialExport
from harness.serving.summary import QUANTILES, ArmLatency, summarize_groups
from harness.statistics.quantile import Quantile

# What runs a model, by the name of its arm.
RUNTIMES = {
    EAGER: "eager",
    COMPILED: "torch.compile",
    "onnx": "onnxruntime",
    "torch-export": "torch-export",
    "aotinductor": "aotinductor",
    "save_pretrained": "transformers",
}
MODEL_COLUMNS = (
    "format",
    "size",
    "samples",
    "eager",
    "exported",
    "largest difference",
    "allowed",
    "other class",
)
LATENCY_COLUMNS = (
    "batch",
    "threads",
    "run by",
    *(f"{name} ms" for name in QUANTILES),
    "speedup",
    "calls",
)


def export_tables(export: TrialExport) -> list[Table]:
    """Return the table of a trial's exported models, and that of their latencies if there are any."""
    models = Table(MODEL_COLUMNS, MODEL_COLUMNS[1:])
    for model in export.models:
        parity = model.parity
        models.add_row(
            model.format,
            f"{fmt.three_digits(model.bytes / 2**20)} MiB",
            f"{parity.samples:,}",
            fmt.metric_value(parity.metrics.get(export.target)),
            fmt.metric_value(parity.exported_metrics.get(export.target)),
            _difference(parity.largest_difference),
            _difference(parity.tolerance),
            f"{parity.changed:,}",
        )
    if not export.latency:
        return [models]
    numbers = [column for column in LATENCY_COLUMNS if column != "run by"]
    latencies = Table(LATENCY_COLUMNS, numbers)
    for latency in summarize_groups(export.latency):
        speedup = "1" if latency.speedup is None else quantile_text(latency.speedup)
        quantiles = [quantile_text(value, 1e3) for value in latency.quantiles.values()]
        latencies.add_row(
            str(latency.batch_size),
            str(latency.threads),
            RUNTIMES[latency.arm],
            *quantiles,
            speedup,
            f"{latency.calls:,}",
        )
    return [models, latencies]


def _difference(value: float | None) -> str:
    """Return a difference of outputs with two digits."""
    return "not finite" if value is None else f"{value:.2g}"


def quantile_text(quantile: Quantile, factor: float = 1.0) -> str:
    """Return a quantile with its bounds, all times a factor: `0.42 (0.41 to 0.44)`."""
    low, high = (_significant(bound, factor) for bound in (quantile.low, quantile.high))
    return f"{_significant(quantile.value, factor)} ({low} to {high})"


def _significant(value: float | None, factor: float) -> str:
    """Return a number times a factor with three significant digits."""
    if value is None:
        return fmt.MISSING
    return fmt.three_digits(value * factor)


def notes(export: TrialExport) -> list[str]:
    """Return what to know of the latencies: warm-up, what never became steady, what was left out."""
    lines = []
    rows = summarize_groups(export.latency)
    warmup = max((row.warmup for row in rows), default=0)
    if warmup:
        lines.append(f"warm-up: up to {counted(warmup, 'round')}, which do not count")
    unsettled = [row for row in rows if row.settled is False]
    if unsettled:
        names = dict.fromkeys(RUNTIMES[row.arm] for row in unsettled)
        lines.append(f"never steady: {', '.join(names)}; calls may differ from moment to moment")
    reasons: dict[str, None] = {}
    for group in export.latency:
        for arm, reason in group.left_out.items():
            reasons[f"without {RUNTIMES[arm]}: {reason}"] = None
    return [*lines, *reasons]


def latency_table(exports: Sequence[TrialExport]) -> TrialTable:
    """Return the latencies of trials for other programs, a row for each way to run a model."""
    rows: list[dict[str, Value]] = []
    for export in exports:
        for latency in summarize_groups(export.latency):
            rows.append(_table_row(export, latency))
    return TrialTable(columns=_columns(), rows=rows)


def _table_row(export: TrialExport, latency: ArmLatency) -> dict[str, Value]:
    """Return the row of one way to run a trial's model."""
    row: dict[str, Value] = {
        "trial": export.trial,
        "arm": latency.arm,
        "batch_size": latency.batch_size,
        "threads": latency.threads,
        "calls": latency.calls,
        "warmup_rounds": latency.warmup,
        "settled": latency.settled,
        "load_s": latency.load_seconds,
        "first_call_ms": latency.first_call_seconds * 1e3,
    }
    for name, value in latency.quantiles.items():
        row[f"{name}_ms"] = value.value * 1e3
        row[f"{name}_low_ms"] = None if value.low is None else value.low * 1e3
        row[f"{name}_high_ms"] = None if value.high is None else value.high * 1e3
    if latency.speedup is not None:
        row["speedup"] = latency.speedup.value
        row["speedup_low"] = latency.speedup.low
        row["speedup_high"] = latency.speedup.high
    return row


def _columns() -> list[TableColumn]:
    """Return the columns of the table of latencies."""
    columns = [
        TableColumn(name="trial", kind="text", meaning="the trial's id"),
        TableColumn(
            name="arm", kind="text", meaning="eager, compiled, or the format of the export"
        ),
        TableColumn(name="batch_size", kind="integer", meaning="samples of a call"),
        TableColumn(name="threads", kind="integer", meaning="threads of a call"),
    ]
    for name in QUANTILES:
        meaning = f"{name} of the time of a call"
        columns.append(TableColumn(name=f"{name}_ms", kind="number", unit="ms", meaning=meaning))
        for bound in ("low", "high"):
            column = f"{name}_{bound}_ms"
            meaning = f"{bound} bound of its 95% interval"
            columns.append(TableColumn(name=column, kind="number", unit="ms", meaning=meaning))
    meaning = "median over rounds of the time in eager mode over this one"
    columns.append(TableColumn(name="speedup", kind="number", meaning=meaning))
    for bound in ("low", "high"):
        meaning = f"{bound} bound of its 95% interval"
        columns.append(TableColumn(name=f"speedup_{bound}", kind="number", meaning=meaning))
    return [
        *columns,
        TableColumn(name="calls", kind="integer", meaning="calls that count"),
        TableColumn(name="warmup_rounds", kind="integer", meaning="calls before them"),
        TableColumn(name="settled", kind="boolean", meaning="whether calls became steady"),
        TableColumn(
            name="load_s", kind="number", unit="s", meaning="time to load or compile the model"
        ),
        TableColumn(
            name="first_call_ms", kind="number", unit="ms", meaning="time of the first call"
        ),
    ]


def serving_lines(model: ExportedModel, folder: str, device: str) -> list[str]:
    """Return lines of Python that load a model from a trial's folder of exports, and call it once.

    The inputs are zeros: of one sample, and of two elements along other axes of varying size. A
    comment has the axes. `device` is the type of the device that the model was exported on, and runs on.
    """
    path = Path(folder) / model.format
    move = "" if device == "cpu" else f".to({device!r})"
    if model.format == "save_pretrained":
        loader = model.loader or "AutoModel"
        return [
            f"from transformers import {loader}",
            f"model = {loader}.from_pretrained({str(path)!r}){move}",
        ]
    shapes = [f"{value.name}: {value.dtype} ({', '.join(value.shape)})" for value in model.inputs]
    comment = f"  # {'; '.join(shapes)}" if shapes else ""
    if model.format == "onnx":
        providers = "" if device == "cpu" else ", providers=['CUDAExecutionProvider']"
        feeds = [f"{value.name!r}: {_zeros(value, 'np')}" for value in model.inputs]
        return [
            "import numpy as np, onnxruntime",
            f"session = onnxruntime.InferenceSession({str(path / 'model.onnx')!r}{providers})",
            f"outputs = session.run(None, {{{', '.join(feeds)}}}){comment}",
        ]
    tensors = [_zeros(value, "torch") + move for value in model.inputs]
    load = f"torch.export.load({str(path / 'model.pt2')!r}).module()"
    if model.format == "aotinductor":
        load = f"torch._inductor.aoti_load_package({str(path / 'model.pt2')!r})"
    return ["import torch", f"model = {load}", f"outputs = model({', '.join(tensors)}){comment}"]


def _zeros(value: ModelInput, library: str) -> str:
    """Return the call of NumPy (`np`) or torch that makes an input of zeros."""
    sizes = []
    for axis in value.shape:
        size = axis
        if not axis.isdecimal():  # of varying size
            size = "1" if axis == "batch" else "2"
        sizes.append(size)
    shape = f"({', '.join(sizes)},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
    return f"{library}.zeros({shape}, dtype={library}.{value.dtype})"


def show_export(export: TrialExport, folder: str) -> None:
    """Print the models in a trial's folder and their latencies."""
    console = TerminalConsole()
    recorded = export.recorded_metrics.get(export.target)
    line = f"[bold]{escape(export.trial)}[/] step {export.step}"
    if recorded is not None:
        line += f", recorded {escape(export.target)} {recorded:.4f}"
    console.print_markup(line)
    for number, table in enumerate(export_tables(export)):
        if number:
            console.print()
        show_table(console, table)
    for note in notes(export):
        console.print_text(note)
    for model in export.models:
        console.print_text(f"\nserve {model.format}:")
        for line in serving_lines(model, folder, export.device):
            console.print_text(f"  {line}")
