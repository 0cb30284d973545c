"""Builds all parts of a trial, from its axes.

This is the one place where axes, workload, strategy and device come together. It reads from top to
bottom in the order in which things happen, since that order decides who draws which random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.errors import BadInput, NotApplied
from harness.core.paths import TrialFolder
from harness.measure.clock import StepClock, step_clock
from harness.measure.memory import PeakMemory
from harness.measure.page_cache import PageCacheWatch, prepare_page_cache
from harness.measure.telemetry import TelemetrySampler, telemetry_for
from harness.records.assignment import Assignment
from harness.spec.axes import Axes, setting_that_needs_gpu
from harness.spec.cell import MAX_STEPS, Cell, Length
from harness.spec.custom import active_axes
from harness.training.checkpoint import Checkpointer
from harness.training.compiled_code import take_compiled_code
from harness.training.determinism import DeterministicMode
from harness.training.evaluate import check_metrics
from harness.training.execution import Compiler, uses_cuda_graphs
from harness.training.loader import Fetched, epoch_order, make_loader
from harness.training.loss_weights import weights_of
from harness.training.manifest import describe_origin
from harness.training.mesh import ParallelMesh
from harness.training.model import build_model, check_training_mode, place_batch
from harness.training.optimization import PreparedTurn, check_parameters, prepare_turns
from harness.training.order import BatchOrder
from harness.training.precision import Scaler, apply_matmul_precision, under_autocast
from harness.training.ranks import derive_seed, seed_everything
from harness.training.state import TrainingState
from harness.training.step import PipelineStep, TrainStep, TreeStep, TurnStep
from harness.training.stopping import check_validation_set
from harness.training.strategies import strategy_class
from harness.training.strategies.base import Strategy
from harness.training.workload_state import WorkloadState
from workloads.axis import CustomAxis
from workloads.base import Batch, Samples, Splits, Workload
from workloads.datasets import load_splits

Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True, kw_only=True)
class BuiltStep:
    """A training step with the parts that it works on."""

    # The model without the strategy's wrapper: the one that is evaluated, saved and digested.
    model: nn.Module
    training_module: nn.Module  # with the wrapper
    parameter_count: int  # elements of all parameters
    strategy: Strategy
    turns: Sequence[PreparedTurn]  # one, unless the workload has several
    scaler: Scaler
    clock: StepClock  # times the steps and their phases
    custom: Mapping[str, CustomAxis]  # axes of the user's own that are not at their defaults
    train_step: TrainStep  # all that happens in the timed region, besides fetching


@dataclass(frozen=True, kw_only=True)
class TrialParts(BuiltStep):
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
    compiler: Compiler
    determinism: DeterministicMode
    optimizers: Sequence[Optimizer]  # of the turns
    telemetry: TelemetrySampler  # watches the device and the host while the rank trains
    memory: PeakMemory  # counts from just before the model was built
    workload_state: WorkloadState
    checkpointer: Checkpointer
    page_cache: PageCacheWatch | None  # None for samples in memory, and at most ranks of a machine
    total_steps: int  # optimizer steps of the whole trial, over all attempts

    @property
    def axes(self) -> Axes:
        """Return the cell's axes."""
        return self.assignment.trial.cell.axes

    def micro_batch(self) -> Batch:
        """Return the first samples of the training set, as many as a micro-batch has, on the device."""
        samples = self.splits.train.batch(range(self.mesh.micro_batch_size(self.axes)))
        return place_batch(samples, self.axes, self.mesh.device)


def build_trial(
    assignment: Assignment,
    workload: Workload,
    folder: TrialFolder,
    mesh: ParallelMesh,
    state: TrainingState,
) -> TrialParts:
    """Return all that a rank trains with, in the state of the trial's newest checkpoint.

    Every rank must call this, as ranks communicate. `state` is filled from the checkpoint, if the
    trial has one, and gets the seconds of the phases "data" and "build". Raises BadInput and
    NotApplied for settings that are impossible with this workload or on this device, and
    BadCheckpoint.
    """
    cell, seed = assignment.trial.cell, assignment.trial.seed
    axes = cell.axes
    compiler = Compiler(
        axes,
        folder.compiler_cache(mesh.ranks.rank),
        workload=cell.workload.uses,
        device=mesh.device,
        state=state,
    )
    if axes.cache == "once":
        with state.timed("compile"):
            take_compiled_code(folder, assignment, mesh)
    with state.timed("data"):
        # The same at every rank, as splits may be drawn.
        seed_everything(seed)
        splits, page_cache = _load_splits(workload, axes, mesh)
    check_validation_set(cell.stop, workload, splits)
    order = BatchOrder(
        samples=len(splits.train),
        batch_size=axes.batch_size,
        seed=derive_seed(seed),
        dp_rank=mesh.dp_rank,
        dp_size=mesh.dp_size,
        micro_steps=axes.grad_accum_steps if axes.reduction == "tree" else 1,
        epoch_order=epoch_order(splits.train, axes.order),
    )
    with state.timed("build"):
        setting = setting_that_needs_gpu(axes)
        if setting is not None and mesh.device.type != "cuda":
            raise NotApplied(f"{setting}; needed: a GPU")
        # From here on memory counts: the data is loaded, the model is not built yet.
        memory = PeakMemory(mesh.device)
        apply_matmul_precision(axes, mesh.device)
        determinism = DeterministicMode(axes, mesh.device)
        total_steps = count_steps(cell.length, order.steps)
        built = build_step(
            cell,
            seed,
            workload,
            splits.test,
            mesh,
            compiler,
            total_steps,
            Path(assignment.base_folder),
        )
        model, turns = built.model, built.turns
        loader = make_loader(splits.train, order, axes, seed=seed, device=mesh.device)
        optimizers = [turn.optimizer for turn in turns]
        schedules = [turn.schedule for turn in turns]
        # All objects that a checkpoint restores.
        restored: list[object] = [built.training_module, *optimizers, *schedules]
        restored += [*model.modules(), *model.parameters(), *model.buffers()]
        workload_state = WorkloadState(workload, restored)
        checkpointer = Checkpointer(
            origin=describe_origin(assignment.trial.id),
            resumes_from=describe_origin(assignment.continues or assignment.trial.id),
            folder=folder,
            mesh=mesh,
            strategy=built.strategy,
            model=model,
            optimizers=optimizers,
            schedules=schedules,
            scaler=built.scaler,
            workload_state=workload_state,
        )
    parts = TrialParts(
        **vars(built),
        assignment=assignment,
        folder=folder,
        mesh=mesh,
        workload=workload,
        splits=splits,
        order=order,
        loader=loader,
        compiler=compiler,
        determinism=determinism,
        optimizers=optimizers,
        telemetry=telemetry_for(mesh.device, warmup=cell.warmup, cores=assignment.lane.cores),
        memory=memory,
        workload_state=workload_state,
        checkpointer=checkpointer,
        page_cache=page_cache,
        total_steps=total_steps,
    )
    with state.timed("build"):
        checkpointer.resume(state, rehearse_step=lambda: _rehearse_step(parts, state))
    return parts


def build_step(
    cell: Cell,
    seed: int,
    workload: Workload,
    test_samples: Samples,
    mesh: ParallelMesh,
    compiler: Compiler,
    total_steps: int,
    base_folder: Path,
) -> BuiltStep:
    """Return a rank's training step, with model and optimizer as they are before the first one.

    `total_steps` are those of the whole trial. Every rank must call this. Raises BadInput and
    NotApplied.
    """
    axes = cell.axes
    # The same seed at every rank, as FSDP2 shards the model that each rank has built.
    seed_everything(seed)
    model = build_model(workload, axes, mesh.device)
    custom = active_axes(cell.workload, base_folder)
    for axis in custom.values():
        axis.change_model(model)
    check_metrics(workload, model, test_samples, axes, mesh.device, cell.stop)
    parameter_count = sum(parameter.numel() for parameter in model.parameters())
    clock = step_clock(mesh.device)
    strategy = strategy_class(axes.strategy)(axes, mesh)
    training_module = strategy.prepare(model, workload, compiler, clock)
    turns = prepare_turns(
        workload,
        model,
        axes,
        total_steps,
        partial(_change_loss, custom, axes, mesh.device),
        change_optimizers=[axis.change_optimizer for axis in custom.values()],
        can_freeze=not strategy.shards_parameters,
    )
    check_parameters(workload, model, turns)
    check_training_mode(workload, model)
    scaler = Scaler(axes, mesh.device)
    # From here on ranks draw different numbers, for dropout on different samples, or in other layers.
    seed_everything(seed, mesh.ranks.rank if axes.strategy == "pp" else mesh.dp_rank)
    step_parts: dict[str, Any] = {
        "module": training_module,
        "loss": turns[-1].loss,
        "loss_hook": strategy.loss_hook(clock),
        "strategy": strategy,
        "optimizer": turns[-1].optimizer,
        "schedule": turns[-1].schedule,
        "scaler": scaler,
        "clock": clock,
        "grad_accum_steps": axes.grad_accum_steps,
        "max_grad_norm": axes.max_grad_norm,
        "loss_weights": weights_of(workload, mesh, clock),
        "copies_losses": uses_cuda_graphs(axes, mesh.device),
    }
    if type(workload).after_step is not Workload.after_step:
        step_parts["after_step"] = partial(workload.after_step, model)
    train_step = TrainStep(**step_parts)
    if len(turns) > 1:
        train_step = TurnStep(**step_parts, turns=turns)
    if axes.reduction == "tree":
        train_step = TreeStep(
            **step_parts,
            model=model,
            device=mesh.device,
            seed=seed,
            dp_rank=mesh.dp_rank,
            dp_size=mesh.dp_size,
        )
    if axes.strategy == "pp":
        train_step = PipelineStep(**step_parts)
    return BuiltStep(
        model=model,
        training_module=training_module,
        parameter_count=parameter_count,
        strategy=strategy,
        turns=turns,
        scaler=scaler,
        clock=clock,
        custom=custom,
        train_step=train_step,
    )


def _load_splits(
    workload: Workload, axes: Axes, mesh: ParallelMesh
) -> tuple[Splits, PageCacheWatch | None]:
    """Return the samples, with the files of their data as the axis `page_cache` asks for.

    Also what watches these files, at one rank of each machine, if they are read while training.
    Raises NotApplied if the axis has no effect, BadInput for a set to evaluate without samples.
    """
    is_first_on_machine = mesh.ranks.local_rank == 0
    files = [*workload.data.files(), *workload.options.files()]
    if axes.page_cache != "any":
        if is_first_on_machine:
            prepare_page_cache(files, axes.page_cache)
        mesh.barrier()
    splits = load_splits(workload)
    for name in ("test", "validation"):
        samples: Samples | None = getattr(splits, name)
        if samples is not None and not len(samples):
            raise BadInput(
                f"{type(workload).__name__}.splits(): found no sample in the {name} set;"
                " allowed: one or more"
            )
    if getattr(splits.train, "reads_files", False):
        if axes.page_cache != "any" and not files:
            raise NotApplied(
                f"page_cache={axes.page_cache} had no effect: found no file in the settings of"
                f" {type(workload).__name__}; needed: the path of what it reads, as an option"
            )
        if not is_first_on_machine:
            return splits, None
        return splits, PageCacheWatch(files)
    if axes.page_cache != "any":
        raise NotApplied(
            f"page_cache={axes.page_cache} had no effect: {type(splits.train).__name__} are in"
            " memory while training"
        )
    return splits, None


def _change_loss(
    custom: Mapping[str, CustomAxis], axes: Axes, device: torch.device, loss: Loss
) -> Loss:
    """Return a workload's loss as axes of the user's own change it, under autocast if asked for."""
    for axis in custom.values():
        loss = axis.change_loss(loss)
    return under_autocast(axes, device, loss)


def _rehearse_step(parts: TrialParts, state: TrainingState) -> None:
    """Compute the forward and backward of one micro-batch and drop the gradients.

    A strategy that arranges itself in its first steps needs this before a checkpoint is loaded.
    What it changes besides, random numbers and buffers, is then overwritten by the checkpoint.
    """
    seconds_before = parts.compiler.seconds
    loss = parts.train_step.loss(parts.train_step.module, parts.micro_batch())
    loss.backward()  # type: ignore[no-untyped-call]
    for optimizer in parts.optimizers:
        optimizer.zero_grad(set_to_none=True)
    compile_seconds = parts.compiler.seconds - seconds_before
    if compile_seconds:
        # The first forward has compiled the model, in the time of "build".
        state.add_seconds("compile", compile_seconds)
        state.add_seconds("build", -compile_seconds)


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
