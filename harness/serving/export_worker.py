"""Exports one model and compares it with eager mode.

This is the task `export` of `harness.training.worker`, of one rank. It reads FOLDER/trial.json and
FOLDER/order.json, and leaves FOLDER/answer.json in addition to its result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from harness.core.errors import HarnessError, one_line
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment
from harness.records.record import RankResult
from harness.serving.calls import Inputs, inputs_of, probe_calls
from harness.serving.exporters import EXPORTERS, pretrained_name
from harness.serving.orders import (
    ExportAnswer,
    ExportOrder,
    answer_path,
    read_order,
    write_message,
)
from harness.serving.parity import compare
from harness.serving.record import ModelInput
from harness.serving.trained import load_trained
from harness.training.entry import joined, load_workload
from harness.training.ranks import Ranks, seed_everything
from harness.training.state import TrainingState
from workloads.base import Workload
from workloads.datasets import load_splits


def export_model(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Write the answer of an export; return a result without measurements."""
    with joined(folder, ranks) as (assignment, mesh):
        workload = load_workload(assignment)
        answer = export(read_order(folder, ExportOrder), assignment, workload, mesh.device)
    write_message(answer_path(folder), answer)
    return entered


def export(
    order: ExportOrder, assignment: Assignment, workload: Workload, device: torch.device
) -> ExportAnswer:
    """Export the model of a checkpoint, load the file again, and compare the two.

    An exporter may raise anything for a model that its format can't hold; the answer has its
    message, as it has for a model whose tolerance can't be measured.
    """
    cell, base_folder = assignment.trial.cell, Path(assignment.base_folder)
    seed_everything(assignment.trial.seed)  # as before training
    samples = load_splits(workload).test
    model = load_trained(workload, cell, base_folder, Path(order.checkpoint), device)
    exporter, target = EXPORTERS[order.format], Path(order.target)

    def calls_of(indices: Sequence[int]) -> list[Inputs]:
        return inputs_of(workload, model, samples, indices, cell.axes, device)

    refuse = partial(ExportAnswer, device=device.type)
    started = time.monotonic()
    try:
        shape = probe_calls(calls_of, len(samples), cell.axes.batch_size)
        target.mkdir(parents=True)
        with torch.no_grad():
            names = exporter.write(workload, model, shape, target)
        seconds = time.monotonic() - started
        served = exporter.load(target, model, cell.axes.num_threads)
        parity = compare(workload, model, served, samples, cell.axes, device, order.tolerance)
    except HarnessError as error:
        return refuse(problem=str(error))
    except Exception as error:
        return refuse(problem=one_line(f"{type(error).__name__}: {error}"))
    inputs = []
    for index, name in enumerate(names):
        dtype = str(shape.example[index].dtype).removeprefix("torch.")
        inputs.append(ModelInput(name=name, dtype=dtype, shape=shape.axes(index)))
    loader = None
    if order.format == "save_pretrained":
        loader = type(model.get_submodule(pretrained_name(model))).__name__
    return ExportAnswer(
        problem=None,
        device=device.type,
        seconds=seconds,
        parity=parity,
        inputs=inputs,
        loader=loader,
    )
