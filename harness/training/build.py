"""Builds all parts of a trial, from its axes.

This is the one place where axes, workload, strategy and device come together. It reads from top to
bottom in the order in which things happen, since that order decides who draws which random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from harness.core.errors import BadInput, NotApplied, one_line
from harness.core.paths import TrialFolder
from harness.measure.clock import step_clock
from harness.measure.flops import flops_per_sample
from harness.measure.memory import PeakMemory
from harness.measure.telemetry import TelemetrySampler, telemetry_for
from harness.records.assignment import Assignment
from harness.spec.axes import Axes, setting_that_needs_gpu
from harness.spec.cell import MAX_STEPS, Length
from harness.training.determinism import DeterministicMode
from harness.training.evaluate import check_metrics
from harness.training.execution import Compiler, uses_cuda_graphs
from harness.training.loader import Fetched, make_loader
from harness.training.loss_weights import weights_of
from harness.training.mesh import ParallelMesh
from harness.training.model import (
    build_model,
    check_training_mode,
    checkpoint_activations,
    place_batch,
)
from harness.training.optimization import make_optimizer, make_schedule
from harness.training.order import BatchOrder
from harness.training.precision import Scaler, apply_matmul_precision, under_autocast
from harness.training.ranks import derive_seed, generators_kept, seed_everything
from harness.training.state import TrainingState
from harness.training.step import TrainStep, TreeStep
from harness.training.stopping import check_validation_set
from harness.training.strategies import strategy_class
from harness.training.strategies.base import Strategy
from harness.training.workload_state import WorkloadState
from workloads.base import Batch, Samples, Splits, TensorSamples, Workload, load_splits

# Attributes of a workload that are too large to be copied, and that training does not change.
DATA = (Tensor, np.ndarray, Dataset, TensorSamples)


@dataclass(frozen=True, kw_only=True)
class TrialParts:
    """All parts that one rank of a trial trains with.

    The parts change while a trial trains; which parts it has does not.
    """

    assignment: Assignment  # which trial this is, and what else the worker is asked to do
    folder: TrialFolder  # where all files of the trial go
    mesh: ParallelMesh
    workload: Workload
    splits: Splits  # the samples to train, to test and perhaps to validate on
    order: BatchOrder  # which samples make up which batch
    # Iterated once an epoch: yields the batches from where `order` is to the end of its epoch.
    loader: Iterable[Fetched]
    # The model without the strategy's wrapper: the one that is evaluated, saved and digested.
    model: nn.Module
    parameter_count: int  # elements of all parameters
    flops_per_sample: float | None  # of training; None where unknown
    strategy: Strategy
    compiler: Compiler
    determinism: DeterministicMode
    telemetry: TelemetrySampler  # watches the device and the host while the rank trains
    memory: PeakMemory  # counts from just before the model was built
    train_step: TrainStep  # all that happens in the timed region, besides fetching
    workload_state: WorkloadState
    total_steps: int  # optimizer steps of the whole trial, over all attempts

    @property
    def axes(self) -> Axes:
        """Return the cell's axes."""
        return self.assignment.trial.cell.axes

    @property
    def optimizer(self) -> Optimizer:
        """Return the optimizer of the training step."""
        return self.train_step.optimizer


def build_trial(
    assignment: Assignment,
    workload: Workload,
    folder: TrialFolder,
    mesh: ParallelMesh,
    state: TrainingState,
) -> TrialParts:
    """Return all that a rank trains with, as it is before the first step.

    Every rank must call this, as ranks communicate. `state` gets the seconds of the phases "data" and
    "build". Raises BadInput and NotApplied for settings that are impossible with this workload or on
    this device.
    """
    cell, seed, device = assignment.trial.cell, assignment.trial.seed, mesh.device
    axes = cell.axes
    compiler = Compiler(axes, folder.compiler_cache(mesh.ranks.rank), state)
    with state.timed("data"):
        # The same at every rank, as splits may be drawn.
        seed_everything(seed)
        splits = _load_splits(workload)
    check_validation_set(cell.stop, workload, splits)
    order = BatchOrder(
        samples=len(splits.train),
        batch_size=axes.batch_size,
        seed=derive_seed(seed),
        dp_rank=mesh.rank,
        dp_size=mesh.size,
        micro_steps=axes.grad_accum_steps if axes.reduction == "tree" else 1,
        in_order=getattr(splits.train, "in_order", False),
    )
    with state.timed("build"):
        setting = setting_that_needs_gpu(axes)
        if setting is not None and device.type != "cuda":
            raise NotApplied(f"{setting}; needed: a GPU")
        # From here on memory counts: the data is loaded, the model is not built yet.
        memory = PeakMemory(device)
        apply_matmul_precision(axes, device)
        determinism = DeterministicMode(axes, device)
        total_steps = count_steps(cell.length, order.steps)
        # The same seed at every rank, as FSDP2 shards the model that each rank has built.
        seed_everything(seed)
        model = build_model(workload, axes, device)
        check_metrics(workload, model, splits.test, axes, device, cell.stop)
        flops = _flops_per_sample(workload, model, splits.train, axes, mesh)
        memory.forget_peak()  # of counting
        if axes.activation_checkpointing:
            checkpoint_activations(workload, model)
        parameter_count = sum(parameter.numel() for parameter in model.parameters())
        clock = step_clock(device)
        strategy = strategy_class(axes.strategy)(axes, mesh)
        training_module = strategy.prepare(model, workload, compiler, clock)
        optimizer = make_optimizer(workload, model, axes)
        schedule = make_schedule(workload, optimizer, axes, total_steps)
        check_training_mode(workload, model)
        # From here on ranks draw different numbers, for dropout on different samples.
        seed_everything(seed, mesh.rank)
        after_step = None
        if type(workload).after_step is not Workload.after_step:
            after_step = partial(workload.after_step, model)
        train_step_class = TreeStep if axes.reduction == "tree" else TrainStep
        train_step = train_step_class(
            axes=axes,
            mesh=mesh,
            seed=seed,
            model=model,
            module=training_module,
            loss=under_autocast(axes, device, workload.loss),
            loss_hook=strategy.loss_hook(clock),
            loss_weights=weights_of(workload, mesh, clock),
            copies_losses=uses_cuda_graphs(axes, device),
            strategy=strategy,
            optimizer=optimizer,
            schedule=schedule,
            scaler=Scaler(axes, device),
            clock=clock,
            after_step=after_step,
        )
        workload_state = WorkloadState(workload)
        parts = TrialParts(
            assignment=assignment,
            folder=folder,
            mesh=mesh,
            workload=workload,
            splits=splits,
            order=order,
            loader=make_loader(splits.train, order, axes, seed=seed, device=device),
            model=model,
            parameter_count=parameter_count,
            flops_per_sample=flops,
            strategy=strategy,
            compiler=compiler,
            determinism=determinism,
            telemetry=telemetry_for(device, warmup=cell.warmup, cores=assignment.lane.cores),
            memory=memory,
            train_step=train_step,
            workload_state=workload_state,
            total_steps=total_steps,
        )
    return parts


def _load_splits(workload: Workload) -> Splits:
    """Return the samples; raises BadInput for a set to evaluate without samples."""
    splits = load_splits(workload)
    for name, samples in (("test", splits.test), ("validation", splits.validation)):
        if samples is not None and not len(samples):
            raise BadInput(
                f"{type(workload).__name__}.splits(): found no sample in the {name} set;"
                " allowed: one or more"
            )
    return splits


def micro_batch(samples: Samples, axes: Axes, mesh: ParallelMesh) -> Batch:
    """Return the first samples, as many as a rank has in a forward and backward."""
    size = axes.batch_size // mesh.size // axes.grad_accum_steps
    return place_batch(samples.batch(range(size)), axes, mesh.device)


def _flops_per_sample(
    workload: Workload, model: nn.Module, samples: Samples, axes: Axes, mesh: ParallelMesh
) -> float | None:
    """Return the operations of training on a sample: what the workload says, else what is counted.

    They are counted in a forward and backward of a micro-batch, before any strategy has the model.
    What counting needs may fail for a workload that can be trained; the operations are unknown then.
    Model and workload are copies that share parameters and data, and generators are put back: a loss
    may count its calls, and training must not depend on the counting.
    """
    stated = workload.flops_per_sample()
    if stated is not None:
        return float(stated)  # it may be a number of NumPy or torch
    try:
        with generators_kept(mesh.device):
            batch = micro_batch(samples, axes, mesh)
            shared: list[object] = [*model.parameters()]
            shared += [value for value in vars(workload).values() if isinstance(value, DATA)]
            copies = deepcopy((workload, model), {id(value): value for value in shared})
            loss = under_autocast(axes, mesh.device, copies[0].loss)
            return flops_per_sample(loss, copies[1], batch)
    except Exception as error:
        print(f"the operations of a sample are unknown: {one_line(error)}", flush=True)
        return None


def count_steps(length: Length, steps_per_epoch: int) -> int:
    """Return how many steps a trial trains.

    Raises BadInput for more than a record can hold, which of epochs only the data can tell.
    """
    total = length.in_steps(steps_per_epoch)
    if total > MAX_STEPS:
        raise BadInput(
            f"length: found {length}, which with this data is {total:,} steps;"
            f" allowed: at most {MAX_STEPS:,} steps"
        )
    return total
