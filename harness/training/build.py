"""Builds all that a trial trains with, from what its axes say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from harness.core.errors import NotApplied
from harness.core.paths import TrialFolder
from harness.measure.clock import StepClock, step_clock
from harness.measure.memory import PeakMemory
from harness.measure.telemetry import Telemetry, telemetry_for
from harness.records.assignment import Assignment
from harness.spec.axes import Axes, setting_that_needs_gpu
from harness.training.checkpoint import Checkpointer
from harness.training.execution import Compiler
from harness.training.loader import Fetched, make_loader
from harness.training.mesh import ParallelMesh
from harness.training.model import build_model, place_batch
from harness.training.optimization import make_optimizer, make_schedule
from harness.training.order import BatchOrder
from harness.training.precision import Scaler, apply_matmul_precision, under_autocast
from harness.training.ranks import derive_seed, seed_everything
from harness.training.state import TrainingState
from harness.training.step import TrainStep
from harness.training.strategies import strategy_class
from harness.training.strategies.base import Strategy
from workloads.base import Splits, Workload


@dataclass(frozen=True, kw_only=True)
class TrialParts:
    """What one rank of a trial trains with. Only what the parts hold changes, never which they are."""

    assignment: Assignment
    folder: TrialFolder
    mesh: ParallelMesh
    workload: Workload
    splits: Splits
    order: BatchOrder
    loader: Iterable[Fetched]  # batches from where `order` is to the end of its epoch
    strategy: Strategy
    model: nn.Module  # without the strategy's wrapper: what is evaluated, saved and digested
    parameter_count: int
    compiler: Compiler
    optimizer: Optimizer
    scaler: Scaler
    train_step: TrainStep
    clock: StepClock
    telemetry: Telemetry
    memory: PeakMemory
    checkpointer: Checkpointer
    total_steps: int  # optimizer steps of the whole trial

    @property
    def axes(self) -> Axes:
        """Return the cell's axes."""
        return self.assignment.trial.cell.axes


def build_trial(
    assignment: Assignment,
    workload: Workload,
    folder: TrialFolder,
    mesh: ParallelMesh,
    state: TrainingState,
) -> TrialParts:
    """Return all that a rank trains with, in the state of the trial's newest checkpoint if it has one.

    `state` gets the checkpoint's content, and the seconds of the phases "data" and "build". Raises BadInput
    and NotApplied for settings that can't be had with this workload or on this device, and BadCheckpoint.

    The order of what happens here is part of the result: it decides who draws which random numbers.
    """
    cell, seed = assignment.trial.cell, assignment.trial.seed
    axes = cell.axes
    compiler = Compiler(axes, folder.compiler_cache(mesh.ranks.rank))
    with state.timed("data"):
        splits = workload.splits()
    order = BatchOrder(
        samples=len(splits.train),
        batch_size=axes.batch_size,
        seed=derive_seed(seed),
        dp_rank=mesh.dp_rank,
        dp_size=mesh.dp_size,
    )
    with state.timed("build"):
        _check_device(axes, mesh)
        memory = PeakMemory(mesh.device)
        apply_matmul_precision(axes, mesh.device)
        seed_everything(seed)  # the same at every rank: FSDP2 shards what each rank has built
        model = build_model(workload, axes, mesh.device)
        # Counted now, as a sharded parameter counts its own rank's elements only.
        parameter_count = sum(parameter.numel() for parameter in model.parameters())
        clock = step_clock(mesh.device)
        strategy = strategy_class(axes.strategy)(axes, mesh)
        training_module = strategy.prepare(model, workload, compiler, clock)
        total_steps = cell.length.in_steps(order.steps)
        optimizer = make_optimizer(workload, model, axes)
        schedule = make_schedule(workload, optimizer, axes, total_steps)
        scaler = Scaler(axes, mesh.device)
        loader = make_loader(splits.train, order, axes, seed=seed, device=mesh.device)
        seed_everything(seed, mesh.dp_rank)
        train_step = TrainStep(
            module=training_module,
            loss=under_autocast(axes, mesh.device, workload.loss),
            loss_hook=strategy.loss_hook(clock),
            strategy=strategy,
            optimizer=optimizer,
            schedule=schedule,
            scaler=scaler,
            clock=clock,
            grad_accum_steps=axes.grad_accum_steps,
            max_grad_norm=axes.max_grad_norm,
        )
        checkpointer = Checkpointer(
            folder=folder,
            mesh=mesh,
            strategy=strategy,
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            scaler=scaler,
        )
    parts = TrialParts(
        assignment=assignment,
        folder=folder,
        mesh=mesh,
        workload=workload,
        splits=splits,
        order=order,
        loader=loader,
        strategy=strategy,
        model=model,
        parameter_count=parameter_count,
        compiler=compiler,
        optimizer=optimizer,
        scaler=scaler,
        train_step=train_step,
        clock=clock,
        telemetry=telemetry_for(mesh.device, warmup=cell.warmup),
        memory=memory,
        checkpointer=checkpointer,
        total_steps=total_steps,
    )
    with state.timed("build"):
        checkpointer.resume(state, rehearse=lambda: _rehearse(parts, state))
    return parts


def _check_device(axes: Axes, mesh: ParallelMesh) -> None:
    setting = setting_that_needs_gpu(axes)
    if setting is not None and mesh.device.type != "cuda":
        raise NotApplied(f"{setting}; needed: a GPU")


def _rehearse(parts: TrialParts, state: TrainingState) -> None:
    """Compute the forward and backward of one micro-batch and drop the gradients.

    It runs before a checkpoint is loaded, and what it changes (random numbers, buffers) is overwritten then.
    """
    share = range(parts.mesh.micro_batch_size(parts.axes))
    batch = place_batch(parts.splits.train.batch(share), parts.axes, parts.mesh.device)
    loss = parts.train_step.loss(parts.train_step.module, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    parts.optimizer.zero_grad(set_to_none=True)
    # The first forward has compiled the model, in the time of "build".
    state.add_seconds("compile", parts.compiler.seconds)
    state.add_seconds("build", -parts.compiler.seconds)
