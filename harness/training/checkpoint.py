"""Checkpoints, from which a trial resumes to the same bits as if it had never stopped.

A checkpoint is a folder `step-N` with three files. `model.safetensors` has the unsharded weights,
for whoever wants to use the model. `state.pt` has the rest: the state of the optimizer and of the
schedule, and what differs between ranks, such as their random numbers. It contains
plain values and tensors only, so that torch loads it with `weights_only=True`, which runs no code.
`manifest.json` seals both.

A checkpoint is whole or not there at all: it is written aside and renamed. The one before it stays,
in case it is damaged later. Nothing in it depends on how parameters were sharded, but ranks must be
as many as they were.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.core.errors import BadCheckpoint, StorageError, one_line
from harness.core.paths import TrialFolder
from harness.core.storage import writing
from harness.records.record import Interruption
from harness.training.manifest import (
    STATE_FILE,
    WEIGHTS_FILE,
    CheckpointOrigin,
    checkpoint_name,
    find_fault,
    seal,
)
from harness.training.mesh import ParallelMesh
from harness.training.precision import Scaler
from harness.training.state import TrainingState
from harness.training.strategies.base import Strategy
from harness.training.workload_state import WorkloadState

KEPT = 2  # checkpoints of a folder


@dataclass(kw_only=True)
class Checkpointer:
    """Saves and restores everything that a resumed trial depends on; every rank must call both."""

    folder: TrialFolder  # where checkpoints are looked for
    mesh: ParallelMesh
    strategy: Strategy  # which knows how model and optimizer are sharded
    model: nn.Module  # without the strategy's wrapper
    optimizers: Sequence[Optimizer]  # of each turn of a step, in their order
    schedules: Sequence[LRScheduler | None]  # of each optimizer; None for a constant learning rate
    scaler: Scaler  # whose loss scale is saved too
    workload_state: WorkloadState
    origin: CheckpointOrigin  # of what this process saves; it resumes from nothing else

    def save(self, folder: Path, state: TrainingState, interrupted_by: str | None = None) -> None:
        """Write `folder/step-N`, and remove all but the one before it.

        `interrupted_by` is the name of the signal that asked for it, None for one taken in passing.
        Raises StorageError at every rank if the disk does not take it.
        """
        weights = self.strategy.full_weights(self.model)
        optimizers = []
        for optimizer in self.optimizers:
            optimizers.append(self.strategy.full_optimizer_state(self.model, optimizer))
        schedules = []
        for schedule in self.schedules:
            schedules.append(schedule.state_dict() if schedule else None)
        content = {
            "step": state.step,
            "optimizers": optimizers,
            "schedules": schedules,
            "ranks": self.mesh.gather(self._rank_content(state, interrupted_by)),
        }
        problem: str | None = None
        if self.mesh.ranks.is_rank_0:
            try:
                self._write(folder, state.step, weights, content)
            except StorageError as error:
                problem = str(error)
        # All ranks raise it, or the others would only report a lost connection to rank 0.
        problem = self.mesh.broadcast_from_rank_0(problem)
        if problem is not None:
            raise StorageError(problem)

    def _rank_content(self, state: TrainingState, interrupted_by: str | None) -> dict[str, Any]:
        """Return the part of a checkpoint that differs between ranks: plain values and tensors."""
        buffers = {}
        for name, buffer in self.model.named_buffers():
            buffers[name] = buffer.cpu()
        # A workload may thaw a part of its model while it trains.
        modes = {name: module.training for name, module in self.model.named_modules()}
        return {
            "state": state.to_dict(),
            "scaler": self.scaler.state(),
            "strategy": self.strategy.rank_state(),
            "workload": self.workload_state.save(),
            "at": time.time(),
            "by": interrupted_by,
            "random": _random_state(),
            "buffers": buffers,
            "modes": modes,
        }

    def _write(
        self, folder: Path, step: int, weights: dict[str, torch.Tensor], content: dict[str, Any]
    ) -> None:
        """Write a checkpoint aside and rename it into place; raises StorageError.

        It is flushed to the disk before that, or a loss of power could leave the new name without
        its content. The new name is flushed before others are removed: otherwise neither might be
        left.
        """
        path = folder / checkpoint_name(step)
        aside = folder / f".{path.name}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            with writing(path):
                aside.mkdir(parents=True)
                save_file(weights, aside / WEIGHTS_FILE)
                with (aside / STATE_FILE).open("wb") as file:
                    torch.save(content, cast(BinaryIO, _AsFile(file)))
                seal(aside, self.origin, step, self.workload_state.missing_from_checkpoints())
                for written in (*aside.iterdir(), aside):
                    _flush(written)
                _replace_folder(aside, path)
                _flush(folder)
        except StorageError:
            shutil.rmtree(aside, ignore_errors=True)  # what the disk has taken is of no use
            raise
        _keep_newest(folder, path)

    def resume(self, state: TrainingState, rehearse_step: Callable[[], None]) -> None:
        """Restore the trial's newest checkpoint that is sound, if it has one.

        It goes into `state` and into all that this object was made with.

        `state` also gets the interruption that this puts an end to, and at rank 0 the checkpoints
        that were passed over. `rehearse_step()` computes a
        forward and a backward, and drops the gradients: `Strategy.arranging_steps` says what for.
        Raises BadCheckpoint.
        """
        path: Path | None = None
        faults: list[str] = []
        if self.mesh.ranks.is_rank_0:
            path, faults = find_sound(
                self.origin, self.folder.best_checkpoints, self.folder.resume_checkpoints
            )
        # Ranks on other nodes may see another state of a shared file system, so rank 0 decides.
        name = self.mesh.broadcast_from_rank_0(None if path is None else str(path))
        for fault in faults:
            print(f"not resumed from {fault}")
        if name is None:
            state.refused_checkpoints = faults
            return
        rank_content = self._restore(Path(name), rehearse_step)
        state.resume_from(rank_content["state"])
        for fault in faults:
            if fault not in state.refused_checkpoints:
                state.refused_checkpoints.append(fault)
        saved_at = rank_content["at"]
        interruption = Interruption(
            step=state.step,
            at=saved_at,
            signal=rank_content["by"],
            lost_seconds=max(0.0, time.time() - saved_at),
        )
        state.interruptions.append(interruption)

    def restore_model(self, folder: Path, step: int) -> None:
        """Restore the model and the workload's own state as `save` wrote them at `step`.

        The optimizer and the random numbers stay as they are, so do not train after it.
        Raises BadCheckpoint at every rank if the checkpoint is missing or damaged.
        """
        path = folder / checkpoint_name(step)
        fault: str | None = None
        if self.mesh.ranks.is_rank_0:
            fault = find_fault(path, self.origin)
        fault = self.mesh.broadcast_from_rank_0(fault)
        if fault is not None:
            raise BadCheckpoint(f"the best parameters can't be restored: {fault}")
        weights, content = read_checkpoint(path)
        self._load_model(weights, content["ranks"][self.mesh.ranks.rank])

    def _load_model(
        self, weights: dict[str, torch.Tensor], rank_content: Mapping[str, Any]
    ) -> None:
        """Restore parameters, buffers, the modules' modes and the workload's own state."""
        self.strategy.load_full_weights(self.model, weights)
        # Buffers that are in no state dict count too, and each rank may have its own.
        for name, buffer in self.model.named_buffers():
            buffer.copy_(rank_content["buffers"][name])
        for name, module in self.model.named_modules():
            module.training = rank_content["modes"][name]
        self.workload_state.load(rank_content["workload"])

    def _restore(self, path: Path, rehearse_step: Callable[[], None]) -> dict[str, Any]:
        """Restore all parts of the trial; return this rank's part of the checkpoint."""
        weights, content = read_checkpoint(path)
        rank_content: dict[str, Any] = content["ranks"][self.mesh.ranks.rank]
        # A trial that had done fewer steps was still arranging itself.
        for _ in range(min(content["step"], self.strategy.arranging_steps)):
            rehearse_step()
        self._load_model(weights, rank_content)
        for optimizer, optimizer_state in zip(self.optimizers, content["optimizers"], strict=True):
            self.strategy.load_full_optimizer_state(self.model, optimizer, optimizer_state)
        for schedule, schedule_state in zip(self.schedules, content["schedules"], strict=True):
            if schedule:
                schedule.load_state_dict(schedule_state)
        self.strategy.load_rank_state(rank_content["strategy"])
        self.scaler.restore(rank_content["scaler"])
        _restore_random_state(rank_content["random"])
        return rank_content


def read_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the weights and the state of a checkpoint, on the CPU; raises BadCheckpoint."""
    try:
        weights = load_file(path / WEIGHTS_FILE)
        content = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise BadCheckpoint(f"{path}: can't be read: {one_line(error)}") from error
    return weights, content


def find_sound(origin: CheckpointOrigin, *folders: Path) -> tuple[Path | None, list[str]]:
    """Return the checkpoint with the most steps that `origin` can resume from, None if there is none.

    Also returns why those with more steps were passed over, a line for each.
    """
    faults: list[str] = []
    for path in _newest_first(*folders):
        fault = find_fault(path, origin)
        if fault is None:
            return path, faults
        faults.append(fault)
    return None, faults


def keep_only(folder: Path, step: int) -> Path | None:
    """Remove all checkpoints of a folder but that of `step`; return it, None if it is not there."""
    path = folder / checkpoint_name(step)
    if not path.is_dir():
        return None
    _keep([path], folder)
    return path


def _keep_newest(folder: Path, path: Path) -> None:
    """Remove all checkpoints of a folder but `path`, which is new, and those just before it.

    Those after it were passed over when the trial resumed.
    """
    earlier = [other for other in _newest_first(folder) if other.name <= path.name]
    _keep(earlier[:KEPT], folder)


def _keep(paths: Sequence[Path], folder: Path) -> None:
    """Remove all checkpoints of a folder but some, and half-written ones."""
    for path in folder.glob("*step-*"):
        if path not in paths:
            shutil.rmtree(path)


def _newest_first(*folders: Path) -> list[Path]:
    """Return the checkpoints of all folders, those with the most steps first."""
    paths: list[Path] = []
    for folder in folders:
        paths += folder.glob("step-*")
    return sorted(paths, key=lambda path: path.name, reverse=True)


def _replace_folder(new: Path, path: Path) -> None:
    """Rename a folder to `path`, where a checkpoint may be that was passed over as damaged."""
    if path.exists():
        old = path.with_name(f".old-{path.name}")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    new.rename(path)


class _AsFile:
    """A file as torch.save writes to it through Python.

    Otherwise it hides the error of a full disk behind one of its own.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write
        self.flush = file.flush


def _flush(path: Path) -> None:
    """Flush to the disk a file's content, or which files a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _random_state() -> dict[str, Any]:
    """Return the states of all generators of this process, as values that torch may load."""
    algorithm, keys, *position = np.random.get_state()
    cuda_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {
        "python": random.getstate(),
        # A NumPy array would need pickle, which `weights_only=True` refuses.
        "numpy": [algorithm, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *position],
        "torch": torch.get_rng_state(),
        "cuda": cuda_state,
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    """Restore the states that `_random_state` returned."""
    algorithm, keys, *position = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *position))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
