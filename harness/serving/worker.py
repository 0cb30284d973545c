"""Exports one model, compares it with eager mode, and times its calls.

This is the task `export` of `harness.training.worker`, of one rank. It reads FOLDER/trial.json and
FOLDER/order.json, and leaves FOLDER/answer.json in addition to its result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from harness.core.errors import HarnessError, one_line
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment
from harness.records.record import RankResult
from harness.serving.calls import CallShape, Inputs, inputs_of, probe_calls
from harness.serving.models import EXPORTERS, Served
from harness.serving.parity import compare
from harness.serving.record import (
    ExportAnswer,
    ExportedModel,
    ExportOrder,
    Latency,
    answer_path,
    digest_files,
    read_order,
    write_message,
)
from harness.serving.trained import load_trained
from harness.training.entry import joined, load_workload
from harness.training.ranks import Ranks, seed_everything
from harness.training.state import TrainingState
from workloads.base import Workload, load_splits

BATCHES = 16  # different ones of the test set that calls go through
WARMUP = 20  # calls that don't count


def export_model(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Write the answer of an export; return a result without measurements."""
    with joined(folder, ranks) as (assignment, mesh):
        workload = load_workload(assignment)
        answer = export(read_order(folder), assignment, workload, mesh.device)
    write_message(answer_path(folder), answer)
    return entered


def export(
    order: ExportOrder, assignment: Assignment, workload: Workload, device: torch.device
) -> ExportAnswer:
    """Export the model of a checkpoint, load the file again, compare the two, and time its calls.

    An exporter may raise anything for a model that its format can't hold; the answer has its
    message, as it has for a model whose tolerance can't be measured.
    """
    cell = assignment.trial.cell
    axes, threads = cell.axes, cell.axes.num_threads
    seed_everything(assignment.trial.seed)  # as before training
    samples = load_splits(workload).test
    model = load_trained(workload, cell, Path(order.checkpoint), device)
    exporter, target = EXPORTERS[order.format], Path(order.target)

    def calls_of(indices: Sequence[int]) -> list[Inputs]:
        return inputs_of(workload, model, samples, indices, axes, device)

    try:
        shape = probe_calls(calls_of, len(samples), axes.batch_size)
        target.mkdir(parents=True)
        with torch.no_grad():
            names = exporter.write(model, shape, target)
        served = exporter.load(target, device, threads)
        parity = compare(workload, model, served, samples, axes, device, order.tolerance)
        latencies = []
        for batch_size in order.batch_sizes if order.calls else ():
            batches = [calls_of(rows)[0] for rows in batches_of(len(samples), batch_size)]
            latencies.append(time_calls(served, batches, batch_size, order.calls, device))
    except HarnessError as error:
        return ExportAnswer(device=device.type, problem=str(error))
    except Exception as error:
        problem = one_line(f"{type(error).__name__}: {error}")
        return ExportAnswer(device=device.type, problem=problem)
    files = digest_files(target)
    exported = ExportedModel(
        format=order.format,
        bytes=sum((target / name).stat().st_size for name in files),
        files=files,
        inputs=[_describe(shape, index, name) for index, name in enumerate(names)],
        parity=parity,
        threads=threads,
        latencies=latencies,
    )
    return ExportAnswer(device=device.type, model=exported)


def _describe(shape: CallShape, index: int, name: str) -> str:
    """Return an input with its type and shape, as in `points: float32 (batch, 4)`."""
    dtype = str(shape.example[index].dtype).removeprefix("torch.")
    return f"{name}: {dtype} ({', '.join(shape.axes(index))})"


def batches_of(count: int, batch_size: int) -> list[list[int]]:
    """Return the indices of the batches that are called, taken from `count` samples in turn.

    A set with fewer samples than a batch is repeated.
    """
    batches = []
    for number in range(BATCHES):
        start = number * batch_size
        batches.append([index % count for index in range(start, start + batch_size)])
    return batches


@torch.inference_mode()
def time_calls(
    served: Served, batches: Sequence[Inputs], batch_size: int, calls: int, device: torch.device
) -> Latency:
    """Call a model WARMUP times and then `calls` times; return the quantiles of the latter."""
    milliseconds = []
    for number in range(WARMUP + calls):
        inputs = batches[number % len(batches)]
        started = time.perf_counter_ns()
        served(*inputs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        milliseconds.append((time.perf_counter_ns() - started) / 1e6)
    p50, p95 = np.quantile(milliseconds[WARMUP:], [0.5, 0.95]).tolist()
    return Latency(batch_size=batch_size, calls=calls, p50_ms=p50, p95_ms=p95)
