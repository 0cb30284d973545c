"""Forecasts the memory of a rank: trains two steps with tensors that have shapes and no values.

This is the task `forecast-memory` of `harness.training.worker`, of one process. It reads
FOLDER/trial.json and FOLDER/cells.json and writes FOLDER/forecasts.json. Model, strategy, optimizer
and step are built as for training (`build_step`), by a rank of a process group whose other ranks do
not exist: torch's backend `fake`, which does nothing.

What is computed differently from training:

- torch.compile does nothing, fp16 is bf16, which has as many bytes, and TensorFloat-32 is fp32.
- fp64 is the default type of a new model, and channels-last is left out: a model of fake tensors can't
  be converted.
- DDP takes no fake tensors, and is replaced by what takes as much memory (`strategies.ddp`).
- Kernels are those of CPUs. Their own workspace is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode

from harness.core.errors import HarnessError, one_line
from harness.core.paths import TrialFolder
from harness.measure.storages import (
    BATCH,
    COPIED_BY_GLOO,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    LiveStorages,
)
from harness.preflight.memory import (
    FORECASTS_FILE,
    REQUEST_FILE,
    MemoryForecast,
    Remedy,
    read_request,
    write_forecasts,
)
from harness.records.record import RankResult
from harness.spec.axes import Axes, find_conflict
from harness.spec.cell import Cell
from harness.training.build import BuiltStep, build_step
from harness.training.entry import load_workload, prepare_rank
from harness.training.execution import Compiler
from harness.training.mesh import ParallelMesh
from harness.training.model import evaluation_mode
from harness.training.precision import autocast
from harness.training.ranks import Ranks, seed_everything
from harness.training.state import TrainingState
from harness.training.step import StepObserver
from harness.training.strategies import strategy_class
from harness.training.tree_reduction import local_part
from workloads.base import Batch, TensorSamples, Workload
from workloads.datasets import load_splits

CPU = torch.device("cpu")
STEPS = 2  # of which the second is counted: the first has no state of the optimizer yet
# Samples whose shapes are looked at. Texts are padded to the longest of them.
LOOKED_AT = 256
# What fills in for a precision: as many bytes, and no loss scale that would have to be read.
STAND_INS: dict[str, Any] = {"fp16": "bf16", "tf32": "fp32", "fp64": "fp32"}
LARGEST_BATCH = 2**24  # samples of a global batch; more are not tried
TRIES = 12  # forecasts on the way to the largest batch
CLOSE_ENOUGH = 1.01  # between the largest batch that fits and the smallest that does not


def forecast_memory(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Write the forecasts of all cells that are asked for; return a result without measurements."""
    assignment = prepare_rank(folder)
    request = read_request(folder.path / REQUEST_FILE)
    base_folder = Path(assignment.base_folder)
    workload = load_workload(assignment)
    seed_everything(assignment.trial.seed)
    splits = load_splits(workload)
    count = min(LOOKED_AT, len(splits.train))
    forecaster = Forecaster(
        workload, splits.train.batch(range(count)), base_folder, folder, request.on_gpu
    )
    forecasts = []
    for cell, limit in zip(request.cells, request.limits, strict=True):
        forecasts.append(forecaster.describe(cell, limit))
    write_forecasts(folder.path / FORECASTS_FILE, forecasts)
    return entered


@dataclass(frozen=True)
class Forecaster:
    """Forecasts cells of one workload."""

    workload: Workload
    samples: Batch  # some of the training set, whose shapes all batches have
    base_folder: Path
    folder: TrialFolder
    on_gpu: bool = False  # whether the ranks will communicate by NCCL

    def describe(self, cell: Cell, limit: int | None) -> MemoryForecast:
        """Return the forecast of a cell; with a limit, also what fits into that many bytes."""
        try:
            forecast = MemoryForecast(parts=self.parts(cell))
        except Exception as error:  # of the user's code, or of an operator that needs values
            text = str(error) if isinstance(error, HarnessError) else f"{error!r}"
            return MemoryForecast(problem=one_line(text))
        if limit is None or forecast.bytes is None:
            return forecast
        largest_batch = self._largest_batch(cell, forecast.bytes, limit)
        remedies: Sequence[Remedy] = ()
        if forecast.bytes > limit:
            remedies = self._remedies(cell, limit, can_cut=largest_batch is not None)
        return replace(forecast, largest_batch=largest_batch, remedies=remedies)

    def parts(self, cell: Cell) -> Mapping[str, int]:
        """Return the bytes at its peak of the rank that needs the most, by part."""
        axes = cell.axes
        faked_cell = replace(
            cell,
            axes=replace(
                axes,
                execution="eager",
                dynamic="auto",
                fullgraph=False,
                channels_last=False,
                precision=STAND_INS.get(axes.precision, axes.precision),
            ),
            stop=None,
        )
        # The stages of a pipeline differ; all other ranks are alike.
        ranks = range(axes.world_size) if axes.strategy == "pp" else range(1)
        peaks = []
        for rank in ranks:
            with faked_rank(axes, rank) as mesh, default_type(axes):
                peaks.append(self._train(faked_cell, mesh))
        return max(peaks, key=lambda parts: sum(parts.values()))

    def _train(self, cell: Cell, mesh: ParallelMesh) -> Mapping[str, int]:
        """Train and evaluate under fake tensors; return the bytes at the peak, by part."""
        axes = cell.axes
        storages = LiveStorages(() if self.on_gpu else COPIED_BY_GLOO)
        compiler = Compiler(
            axes,
            self.folder.compiler_cache(0),
            workload=cell.workload.uses,
            device=CPU,
            state=TrainingState(),
        )
        # What a workload makes of its own arrays has values, and is taken for its shape.
        with FakeTensorMode(allow_non_fake_inputs=True), storages:
            two = TensorSamples(self._batch(2))
            built = build_step(cell, 0, self.workload, two, mesh, compiler, STEPS, self.base_folder)
            storages.claim(PARAMETERS, map(local_part, built.model.parameters()))
            storages.claim(PARAMETERS, built.model.buffers())
            built.train_step.observer = _PartObserver(storages, built)
            del two
            for is_watching in (False, True):
                storages.is_watching = is_watching
                batch = self._step_batch(axes, mesh)
                storages.claim(BATCH, batch)
                built.train_step.run(batch)
                del batch
                self._evaluate(built, axes, mesh, storages)
        return storages.peak()

    @torch.no_grad()
    def _evaluate(
        self, built: BuiltStep, axes: Axes, mesh: ParallelMesh, storages: LiveStorages
    ) -> None:
        """Evaluate one batch."""
        batch = self._batch(max(1, mesh.rank_batch_size(axes)))
        storages.claim(BATCH, batch)
        built.strategy.before_evaluation(built.model)
        with (
            built.strategy.gathered(built.model),
            evaluation_mode(built.model),
            autocast(axes, CPU),
        ):
            self.workload.evaluate(built.model, batch)

    def _step_batch(self, axes: Axes, mesh: ParallelMesh) -> Batch:
        """Return what a step of this rank trains on."""
        if axes.reduction == "tree":  # whose step takes the tensors of all its micro-batches
            batch: Batch = ()
            for _ in range(axes.grad_accum_steps):
                batch += self._batch(mesh.micro_batch_size(axes))
            return batch
        return self._batch(mesh.rank_batch_size(axes))

    def _batch(self, count: int) -> Batch:
        """Return a batch of so many samples, without values."""
        batch = []
        for tensor in self.samples:
            dtype = torch.get_default_dtype() if tensor.is_floating_point() else tensor.dtype
            batch.append(torch.empty((count, *tensor.shape[1:]), dtype=dtype))
        return tuple(batch)

    # What fits

    def _total(self, cell: Cell, **axes: Any) -> int | None:
        """Return the bytes of a cell with other axes, None for axes that make no sense."""
        changed = replace(cell.axes, **axes)
        if find_conflict(changed) is not None:
            return None
        try:
            return sum(self.parts(replace(cell, axes=changed)).values())
        except Exception:  # the cell as it is could be forecast
            return None

    def _largest_batch(self, cell: Cell, size: int, limit: int) -> int | None:
        """Return the largest global batch that fits, to about a hundredth; None if none does.

        What a step needs is affine in its batch as long as the peak is at the same operator, and
        steeper from where it is at another. So a line through two forecasts nearly says the batch,
        and others verify it: one that fits, and a slightly larger one that does not.
        """
        unit = cell.axes.data_parallel_size * cell.axes.grad_accum_steps
        totals = {cell.axes.batch_size // unit: size}  # by units
        if 1 not in totals and size > limit:
            totals[1] = self._total(cell, batch_size=unit) or limit + 1
        for number in range(TRIES):
            fits = max((count for count, total in totals.items() if total <= limit), default=0)
            larger = [count for count, total in totals.items() if total > limit]
            too_large = min(larger, default=LARGEST_BATCH // unit + 1)
            if not fits and 1 in totals:
                return None
            if too_large - fits <= 1 or (larger and too_large <= fits * CLOSE_ENOUGH):
                break
            count = _next_try(totals, limit, fits, too_large, halve=number % 2 == 1)
            totals[count] = self._total(cell, batch_size=count * unit) or limit + 1
        return fits * unit or None

    def _remedies(self, cell: Cell, limit: int, *, can_cut: bool) -> Sequence[Remedy]:
        """Return the settings that make a cell fit: checkpointed activations, or smaller parts of a batch.

        If neither does, both together. Smaller parts are not tried unless a smaller batch fits
        (`can_cut`).
        """
        remedies: list[Remedy] = []
        checkpointing: list[dict[str, Any]] = []
        if not cell.axes.activation_checkpointing:
            checkpointing.append({"activation_checkpointing": True})
            remedies += self._first_that_fits(cell, limit, checkpointing)
        counts: list[dict[str, Any]] = []
        count = cell.axes.grad_accum_steps * 2
        while can_cut and count * cell.axes.data_parallel_size <= cell.axes.batch_size:
            counts.append({"grad_accum_steps": count})
            count *= 2
        remedies += self._first_that_fits(cell, limit, counts)
        if not remedies:
            both = [first | second for first in checkpointing for second in counts]
            remedies += self._first_that_fits(cell, limit, both)
        return remedies

    def _first_that_fits(
        self, cell: Cell, limit: int, choices: Sequence[dict[str, Any]]
    ) -> list[Remedy]:
        """Return the first of some settings with which a cell fits, if there is one."""
        for axes in choices:
            total = self._total(cell, **axes)
            if total is not None and total <= limit:
                return [Remedy(axes=axes, bytes=total)]
        return []


def _next_try(
    totals: Mapping[int, int], limit: int, fits: int, too_large: int, *, halve: bool
) -> int:
    """Return the next batch to try, between the largest that fits and the smallest that does not.

    `totals` are bytes by batch. A line through two of them says where the limit is met: through the
    two nearest to it, or, as long as all fit, through the two largest. With `halve` it is the middle,
    because the line of a curve that gets steeper comes near from below only.
    """
    if too_large in totals and (halve or fits not in totals):
        return (fits + too_large) // 2
    low, high = fits, too_large
    if too_large not in totals:
        low, high = sorted([0, *totals])[-2:]
    if low not in totals or totals[high] == totals[low]:
        guess = 2 * high
    else:
        slope = (totals[high] - totals[low]) / (high - low)
        guess = int(low + (limit - totals[low]) / slope)
    return min(max(guess, fits + 1), too_large - 1)


class _PartObserver(StepObserver):
    """Says of the tensors of a step what they are for, as soon as that is known."""

    def __init__(self, storages: LiveStorages, built: BuiltStep) -> None:
        self._storages = storages
        self._built = built

    def after_backward(self, step: int, micro_step: int) -> None:
        """Take what a backward leaves for gradients; FSDP2's are not in the parameters yet."""
        self._storages.claim_rest(GRADIENTS)

    def before_optimizer(self, step: int) -> None:
        """Note the gradients, which may be in buffers of a collective."""
        gradients = [parameter.grad for parameter in self._built.model.parameters()]
        self._storages.claim(
            GRADIENTS, [local_part(grad) for grad in gradients if grad is not None]
        )

    def after_optimizer(self, step: int) -> None:
        """Note the state of the optimizers."""
        for turn in self._built.turns:
            for state in turn.optimizer.state.values():
                values = [value for value in state.values() if isinstance(value, Tensor)]
                self._storages.claim(OPTIMIZER, map(local_part, values))


@contextmanager
def faked_rank(axes: Axes, rank: int) -> Iterator[ParallelMesh]:
    """Be one of a cell's ranks for a block; the others do not exist."""
    ranks = Ranks(rank=rank, local_rank=rank, world_size=axes.world_size)
    mesh = ParallelMesh(ranks, CPU, axes.ranks_per_share, axes.shard_size, is_faked=True)
    strategy = strategy_class(axes.strategy)
    if not strategy.needs_process_group:
        yield mesh
        return
    dist.init_process_group("fake", rank=rank, world_size=axes.world_size)
    try:
        if strategy.shards_parameters:
            _ = mesh.device_mesh  # which has values, and so is made before fake tensors are
        yield mesh
    finally:
        dist.destroy_process_group()


@contextmanager
def default_type(axes: Axes) -> Iterator[None]:
    """Have new tensors of floats be fp64 for a block if the axes ask for that."""
    before = torch.get_default_dtype()
    if axes.precision == "fp64":
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
