"""Checkpoints, from which a trial goes on to the same bits as if it had never stopped.

A checkpoint is a folder `step-N` with two files. `model.safetensors` has the unsharded weights, for
whoever wants to use the model. `state.pt` has all else: the optimizer's and the schedule's state,
and for each rank what that rank has of its own, its random numbers among them. It contains plain
values and tensors only, so that torch loads it with `weights_only=True`, which runs no code.

A checkpoint is whole or not there at all: it is written aside and renamed. Nothing in it depends on
how parameters were sharded, but ranks must be as many as they were.
"""

from __future__ import annotations

import os
import random
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.core.errors import BadCheckpoint, one_line
from harness.core.paths import TrialFolder
from harness.records.record import Interruption
from harness.training.mesh import ParallelMesh
from harness.training.precision import Scaler
from harness.training.state import TrainingState
from harness.training.strategies.base import Strategy

WEIGHTS_FILE = "model.safetensors"
STATE_FILE = "state.pt"


@dataclass(kw_only=True)
class Checkpointer:
    """Saves and restores all that decides how a trial goes on; every rank must call both."""

    folder: TrialFolder  # where checkpoints are looked for
    mesh: ParallelMesh
    strategy: Strategy  # which knows how model and optimizer are sharded
    model: nn.Module  # without the strategy's wrapper
    optimizer: Optimizer
    schedule: LRScheduler | None  # None for a constant learning rate
    scaler: Scaler  # whose loss scale goes on from where it was

    def save(self, folder: Path, state: TrainingState, interrupted_by: str | None = None) -> None:
        """Leave `folder/step-N` as the only checkpoint in `folder`.

        `interrupted_by` is the name of the signal that asked for it, None for one taken in passing.
        """
        weights = self.strategy.full_weights(self.model)
        content = {
            "step": state.step,
            "optimizer": self.strategy.full_optimizer_state(self.model, self.optimizer),
            "schedule": self.schedule.state_dict() if self.schedule else None,
            "ranks": self.mesh.gather(self._rank_content(state, interrupted_by)),
        }
        if self.mesh.ranks.is_rank_0:
            _write(folder, f"step-{state.step:09d}", weights, content)

    def _rank_content(self, state: TrainingState, interrupted_by: str | None) -> dict[str, Any]:
        """Return what each rank has of its own: plain Python values and tensors."""
        buffers = {}
        for name, buffer in self.model.named_buffers():
            buffers[name] = buffer.cpu()
        return {
            "state": state.to_dict(),
            "scaler": self.scaler.state(),
            "at": time.time(),
            "by": interrupted_by,
            "random": _random_state(),
            "buffers": buffers,
        }

    def resume(self, state: TrainingState, rehearse: Callable[[], None]) -> None:
        """Restore the trial's newest checkpoint, if it has one.

        It goes into `state` and into all that this object was made with.

        `state` also gets the interruption that this puts an end to. `rehearse()` computes a forward
        and a backward, and drops the gradients: `Strategy.needs_rehearsal` says what for. Raises
        BadCheckpoint.
        """
        newest_path = newest(self.folder.best_checkpoints, self.folder.resume_checkpoints)
        # Ranks on other nodes may see another state of a shared file system, so rank 0 decides.
        path = self.mesh.broadcast_from_rank_0(newest_path)
        if path is None:
            return
        if self.strategy.needs_rehearsal:
            rehearse()
        rank_content = self._restore(path)
        state.resume_from(rank_content["state"])
        saved_at = rank_content["at"]
        interruption = Interruption(
            step=state.step,
            at=saved_at,
            signal=rank_content["by"],
            lost_seconds=max(0.0, time.time() - saved_at),
        )
        state.interruptions.append(interruption)

    def _restore(self, path: Path) -> dict[str, Any]:
        """Put back all that was built as it was; return what this rank has of its own."""
        try:
            weights = load_file(path / WEIGHTS_FILE)
            content = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
            rank_content: dict[str, Any] = content["ranks"][self.mesh.ranks.rank]
        except Exception as error:
            raise BadCheckpoint(f"{path}: can't be read: {one_line(error)}") from error
        self.strategy.load_full_weights(self.model, weights)
        # Buffers that are in no state dict count too, and each rank may have its own.
        for name, buffer in self.model.named_buffers():
            buffer.copy_(rank_content["buffers"][name])
        self.strategy.load_full_optimizer_state(self.model, self.optimizer, content["optimizer"])
        if self.schedule:
            self.schedule.load_state_dict(content["schedule"])
        self.scaler.restore(rank_content["scaler"])
        _restore_random_state(rank_content["random"])
        return rank_content


def newest(*folders: Path) -> Path | None:
    """Return the checkpoint with the most steps in any of `folders`, None if there is none.

    A checkpoint that is not whole is passed over.
    """
    checkpoints = []
    for folder in folders:
        checkpoints += [path for path in folder.glob("step-*") if _is_whole(path)]
    return max(checkpoints, key=lambda path: path.name, default=None)


def _is_whole(path: Path) -> bool:
    """Return whether both files of a checkpoint can be opened.

    A file system that lost power may cut files off, or fill them with zeros. The index of a
    safetensors file is at its start and says how long the file is. That of a zip file, which is
    what `torch.save` writes, is at its end.
    """
    try:
        with safe_open(path / WEIGHTS_FILE, framework="pt"):
            return zipfile.is_zipfile(path / STATE_FILE)
    except (OSError, SafetensorError):
        return False


def _write(
    folder: Path, name: str, weights: dict[str, torch.Tensor], content: dict[str, Any]
) -> None:
    """Write a checkpoint aside and rename it into place, then remove all others of the folder.

    It is flushed to the disk first, or a loss of power could leave the new name without its content
    after the old checkpoint is gone.
    """
    aside, path = folder / f".{name}", folder / name
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(weights, aside / WEIGHTS_FILE)
    torch.save(content, aside / STATE_FILE)
    for written in (*aside.iterdir(), aside):
        _flush(written)
    aside.rename(path)
    _flush(folder)
    for other in folder.glob("*step-*"):
        if other != path:
            shutil.rmtree(other)


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
    """Put back what `_random_state` returned."""
    algorithm, keys, *position = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *position))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
