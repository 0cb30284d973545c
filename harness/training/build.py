"""Builds all parts of a trial, from its axes.

This is the one place where axes, workload, strategy and device come together. It reads from top to
bottom in the order in which things happen, since that order decides who draws which random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import InitVar, asdict, dataclass
from pkgutil import resolve_name

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from harness.core.errors import BadInput, NotApplied, one_line
from harness.core.paths import TrialFolder
from harness.measure.clock import StepClock
from harness.measure.flops import flops_per_sample
from harness.measure.memory import PeakMemory
from harness.measure.telemetry import TelemetrySampler
from harness.records.assignment import Assignment
from harness.records.record import TargetMetric
from harness.sweep.axes import STRATEGIES, setting_that_needs_gpu
from harness.training.digests import workload_state
from harness.training.execution import (
    Compiler,
    apply_deterministic_mode,
    apply_matmul_precision,
    under_autocast,
)
from harness.training.loader import make_loader
from harness.training.model import (
    build_model,
    check_training_mode,
    checkpoint_activations,
    place_batch,
    undisturbed,
)
from harness.training.order import BatchOrder
from harness.training.ranks import Ranks, derive_seed, generators_kept, seed_everything
from harness.training.state import TrainingState
from harness.training.step import TrainStep, TreeStep
from harness.training.strategies import Strategy
from workloads.base import Batch, Samples, TensorSamples, Workload, load_splits

# Attributes of a workload that are too large to be copied, and that training does not change.
DATA = (Tensor, np.ndarray, Dataset, TensorSamples)


@dataclass(eq=False)
class TrialParts:
    """All parts that one rank of a trial trains with, built as they are before the first step.

    The parts change while a trial trains; which parts it has does not. Every rank must build them, as
    ranks communicate. `state` gets the seconds of the phases "data" and "build". Raises BadInput and
    NotApplied for settings that are impossible with this workload or on this device.
    """

    assignment: Assignment
    workload: Workload
    folder: TrialFolder
    mesh: Ranks
    state: InitVar[TrainingState]

    def __post_init__(self, state: TrainingState) -> None:
        workload = self.workload
        mesh = self.mesh
        self.device = device = mesh.device
        cell = self.assignment.trial.cell
        seed = self.assignment.trial.seed
        self.axes = axes = cell.axes
        self.target = TargetMetric(**asdict(workload.target))
        self.compiler = Compiler(axes, self.folder.compiler_cache(mesh.rank), state)
        with state.timed("data"):
            # The same at every rank, as splits may be drawn.
            seed_everything(seed)
            self.splits = load_splits(workload)
        if cell.stop is not None and self.splits.validation is None:
            raise BadInput(
                f"stop: {type(workload).__name__}.splits(): found no validation set; allowed:"
                " Splits(train, test, validation), so that the test set does not decide when training"
                " ends"
            )
        self.order = BatchOrder(
            samples=len(self.splits.train),
            batch_size=axes.batch_size,
            seed=derive_seed(seed),
            dp_rank=mesh.rank,
            dp_size=mesh.world_size,
            micro_steps=axes.grad_accum_steps if axes.reduction == "tree" else 1,
            in_order=getattr(self.splits.train, "in_order", False),
        )
        with state.timed("build"):
            setting = setting_that_needs_gpu(axes)
            if setting is not None and device.type != "cuda":
                raise NotApplied(f"{setting}; needed: a GPU")
            # From here on memory counts: the data is loaded, the model is not built yet.
            self.memory = PeakMemory(device)
            apply_matmul_precision(axes, device)
            self.deterministic_settings = apply_deterministic_mode(axes)
            self.total_steps = cell.length.in_steps(self.order.steps)  # over all attempts
            # The same seed at every rank, as FSDP2 shards the model that each rank has built.
            seed_everything(seed)
            # Without the strategy's wrapper: the model that is evaluated, saved and digested.
            self.model = build_model(workload, axes, device)
            check_metrics(self)
            self.flops_per_sample = _flops_per_sample(self)  # None where unknown
            self.memory.forget_peak()  # of counting
            if axes.activation_checkpointing:
                checkpoint_activations(workload, self.model)
            strategy_class = resolve_name(STRATEGIES[axes.strategy])
            self.strategy: Strategy = strategy_class(axes, mesh, StepClock(device))
            step_class = TreeStep if axes.reduction == "tree" else TrainStep
            self.train_step = step_class(
                workload=workload,
                model=self.model,
                strategy=self.strategy,
                compiler=self.compiler,
                seed=seed,
                total_steps=self.total_steps,
            )
            self.optimizer = self.train_step.optimizer
            check_training_mode(workload, self.model)
            # From here on ranks draw different numbers, for dropout on different samples.
            seed_everything(seed, mesh.rank)
            workload_state(workload)  # it raises for a state that no checkpoint can have
            # Iterated once an epoch: yields the batches from where `order` is to the end of its epoch.
            self.loader = make_loader(self.splits.train, self.order, axes, seed=seed, device=device)
            cores = self.assignment.lane.cores
            self.telemetry = TelemetrySampler(device, warmup=cell.warmup, cores=cores)

    def micro_batch(self) -> Batch:
        """Return the first training samples, as many as a rank has in a forward and backward."""
        size = self.axes.batch_size // self.mesh.world_size // self.axes.grad_accum_steps
        batch = self.splits.train.batch(range(size))
        return place_batch(batch, self.axes, self.device)

    def result_rows(self, samples: Samples, indices: Sequence[int]) -> Tensor:
        """Evaluate some samples; return a row of float64 for each, on the CPU."""
        batch = place_batch(samples.batch(indices), self.axes, self.device)
        evaluate = under_autocast(self.axes, self.device, self.workload.evaluate)
        return evaluate(self.model, batch).double().cpu()


def check_metrics(parts: TrialParts) -> None:
    """Raise BadInput if the workload's metrics lack its target.

    The model is the one that was just built, before a strategy has it. Two samples are evaluated, which
    leaves everything as it was.
    """
    workload = parts.workload
    samples = parts.splits.test
    indices = range(min(2, len(samples)))
    with undisturbed(parts.model, parts.device):
        rows = parts.result_rows(samples, indices)
        try:
            metrics = workload.metrics(rows)
        except Exception:
            return  # some metrics, such as an area under a curve, are not defined over two samples
    name = parts.target.name
    if name not in metrics:
        raise BadInput(
            f"{type(workload).__name__}.metrics(): found {', '.join(metrics) or 'nothing'};"
            f" allowed: metrics with {name!r} among them, which the target names"
        )


def _flops_per_sample(parts: TrialParts) -> float | None:
    """Return the operations of training on a sample: what the workload says, else what is counted.

    They are counted in a forward and backward of a micro-batch, before any strategy has the model.
    What counting needs may fail for a workload that can be trained; the operations are unknown then.
    Model and workload are copies that share parameters and data, and generators are put back: a loss
    may count its calls, and training must not depend on the counting.
    """
    stated = parts.workload.flops_per_sample()
    if stated is not None:
        return float(stated)  # it may be a number of NumPy or torch
    try:
        with generators_kept(parts.device):
            batch = parts.micro_batch()
            memo = {}  # which deepcopy takes for copied
            for value in [*parts.model.parameters(), *vars(parts.workload).values()]:
                if isinstance(value, DATA):
                    memo[id(value)] = value
            workload, model = deepcopy((parts.workload, parts.model), memo)
            loss = under_autocast(parts.axes, parts.device, workload.loss)
            return flops_per_sample(loss, model, batch)
    except Exception as error:
        print(f"the operations of a sample are unknown: {one_line(error)}", flush=True)
        return None
