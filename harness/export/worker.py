"""Exports one model, compares it with eager mode, and times its calls.

This is the task `export` of `harness.training.worker`, of one rank. It reads FOLDER/trial.json and
FOLDER/order.json, and leaves FOLDER/export in addition to its result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder, write_atomically
from harness.export.calls import Inputs, TrainedModel, probe_calls
from harness.export.models import EXPORTERS, Served
from harness.export.parity import compare
from harness.export.record import (
    ORDER_FILE,
    ExportedModel,
    ExportOrder,
    FormatName,
    Latency,
    TrialExport,
)
from harness.records.assignment import Assignment
from harness.records.environment import describe_hardware, describe_packages
from harness.records.format import sealed_text
from harness.records.record import RankResult
from harness.training.checkpoint import SEAL_FILE, WEIGHTS_FILE, load_best, read_seal
from harness.training.entry import joined
from harness.training.execution import apply_matmul_precision
from harness.training.model import build_model
from harness.training.ranks import Ranks, seed_everything
from harness.training.state import TrainingState
from workloads.base import Workload, load_splits

PACKAGES = ("onnx", "onnxruntime")  # whose versions count too
BATCHES = 16  # different ones of the test set that calls go through
WARMUP = 20  # calls that don't count
CALLS = 200  # that do, at each batch size


def export_model(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Write the exports that were ordered; return a result without measurements."""
    with joined(folder, ranks) as (assignment, workload, mesh):
        export(folder, assignment, workload, mesh.device)
    return entered


def export(
    folder: TrialFolder, assignment: Assignment, workload: Workload, device: torch.device
) -> None:
    """Export the model of a checkpoint to each format.

    Raises BadFile for a damaged checkpoint, what an exporter raises for a model that its format can't
    hold, and HarnessError for a file that computes something else than eager mode.
    """
    order_path = folder.path / ORDER_FILE
    order = ExportOrder(**json.loads(order_path.read_text(encoding="utf-8")))
    trial = assignment.trial
    checkpoint = Path(order.checkpoint)
    axes = trial.cell.axes
    seed_everything(trial.seed)  # as before training
    samples = load_splits(workload).test
    apply_matmul_precision(axes, device)
    model = build_model(workload, axes, device)
    seal = read_seal(checkpoint / SEAL_FILE, {"trial": trial.id})
    workload_state = load_best(checkpoint, model)  # the model's buffers are rank 0's
    if workload_state:
        workload.load_state_dict(workload_state)
    trained = TrainedModel(workload, model.eval(), samples, axes, device)
    models = []
    for name in order.formats:
        target = folder.exported_model(name)
        models.append(_export_to(name, target, order.batch_sizes, trained))
    exported = TrialExport(
        trial=trial.id,
        at=time.time(),
        step=seal.step,
        weights=seal.files[WEIGHTS_FILE],
        target=workload.target.name,
        models=models,
    )
    write_atomically(folder.export_path, sealed_text(asdict(exported)))


def _export_to(
    name: FormatName,
    target: Path,
    batch_sizes: Sequence[int],
    trained: TrainedModel,
) -> ExportedModel:
    """Write the model's files, load them again, compare the two models, and time calls.

    Raises HarnessError for a file that computes something else than eager mode.
    """
    write, load = EXPORTERS[name]
    axes = trained.axes
    shape = probe_calls(trained.calls, len(trained.samples), axes.batch_size)
    target.mkdir(parents=True)
    with torch.no_grad():
        names = write(trained.model, shape, target)
    served = load(target, trained.device, axes.num_threads)
    parity = compare(trained, served)
    if parity.largest_difference > parity.tolerance:
        raise HarnessError(
            f"{name}: outputs differ from eager mode by up to {parity.largest_difference:.2g}, more than"
            f" {parity.tolerance:.2g}; nothing was exported"
        )
    hardware = describe_hardware()
    processor = hardware.cpu
    if trained.device.type == "cuda":
        processor = hardware.gpus[0]
    size = sum(path.stat().st_size for path in target.iterdir())
    inputs = []
    for index, input_name in enumerate(names):
        inputs.append(f"{input_name}: {shape.describe(index)}")
    latencies = [time_calls(served, trained, batch_size) for batch_size in batch_sizes]
    return ExportedModel(
        format=name,
        bytes=size,
        inputs=inputs,
        parity=parity,
        latencies=latencies,
        threads=axes.num_threads,
        processor=processor,
        packages=describe_packages(PACKAGES),
    )


def time_calls(served: Served, trained: TrainedModel, batch_size: int) -> Latency:
    """Call a model WARMUP times and then CALLS times; return the quantiles of the latter.

    Calls go through batches of the test set; one with fewer samples than a batch is repeated.
    """
    batches: list[Inputs] = []
    count = len(trained.samples)
    for start in range(0, BATCHES * batch_size, batch_size):
        indices = range(start, start + batch_size)
        calls = trained.calls([index % count for index in indices])
        batches.append(calls[0])
    milliseconds = []
    with torch.inference_mode():
        for number in range(WARMUP + CALLS):
            inputs = batches[number % BATCHES]
            started = time.perf_counter_ns()
            served(*inputs)
            if trained.device.type == "cuda":
                torch.cuda.synchronize()
            nanoseconds = time.perf_counter_ns() - started
            milliseconds.append(nanoseconds / 1e6)
    counted = milliseconds[WARMUP:]
    p50, p95 = np.quantile(counted, [0.5, 0.95]).tolist()
    return Latency(batch_size=batch_size, calls=CALLS, p50_ms=p50, p95_ms=p95)
