"""Checkpoints: weights as safetensors, the rest loadable with `weights_only=True`; whole or not there at all."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
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
from harness.training.fingerprint import whole_state
from harness.training.ranks import Ranks, gather


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
    rest: dict[str, Any],
    ranks: Ranks,
) -> None:
    """Leave `folder/step-N` as the only checkpoint in `folder`; every rank must take part.

    `rest` is each rank's own: plain Python values and tensors.
    """
    weights = {name: value.contiguous().clone() for name, value in whole_state(model)}
    optimizer_state = _optimizer_state(model, optimizer)
    buffers = {
        name: buffer.cpu() for name, buffer in model.named_buffers()
    }  # each rank may have its own
    everyone = gather(rest | {"random": _random_state(), "buffers": buffers}, ranks)
    if not ranks.is_rank_0:
        return
    state = {
        "step": step,
        "optimizer": optimizer_state,
        "schedule": schedule.state_dict() if schedule else None,
        "ranks": everyone,
    }
    aside, place = folder / f".step-{step:09d}", folder / f"step-{step:09d}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(weights, aside / "model.safetensors")
    torch.save(state, aside / "state.pt")
    for written in (*aside.iterdir(), aside):
        _flush(written)
    aside.rename(place)
    _flush(folder)
    for old in folder.glob("*step-*"):
        if old != place:
            shutil.rmtree(old)


def newest(*folders: Path) -> Path | None:
    """The checkpoint with the most steps in any of `folders`, if there is one; what is not whole is passed over."""
    places = [place for folder in folders for place in folder.glob("step-*") if _is_whole(place)]
    return max(places, key=lambda place: place.name, default=None)


def _is_whole(place: Path) -> bool:
    """Told by both files' indices, one at the start and one at the end: a file system that lost power may cut files
    off or fill them with zeros."""
    try:
        with safe_open(place / "model.safetensors", framework="pt"):
            return zipfile.is_zipfile(place / "state.pt")
    except (OSError, SafetensorError):
        return False


def load(
    place: Path,
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
    ranks: Ranks,
) -> tuple[int, dict[str, Any]]:
    """Put a checkpoint's state back; returns its step and this rank's `rest`. Raises BadCheckpoint."""
    from torch.distributed.checkpoint.state_dict import (
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    try:
        weights = load_file(place / "model.safetensors")
        state = torch.load(place / "state.pt", map_location="cpu", weights_only=True)
        rest = state["ranks"][ranks.rank]
    except Exception as error:
        raise BadCheckpoint(f"{place}: can't be read: {one_line(error)}") from error
    set_model_state_dict(model, dict(weights), options=_whole())
    for name, buffer in model.named_buffers():
        buffer.copy_(rest["buffers"][name])
    if state["optimizer"]["state"]:
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=_whole())
    else:
        optimizer.load_state_dict(state["optimizer"])
    if schedule:
        schedule.load_state_dict(state["schedule"])
    _restore_random_state(rest["random"])
    return int(state["step"]), rest


def _whole() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True)


def _optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    if not optimizer.state:  # torch would take a step to have one, and count it
        return optimizer.state_dict()
    return get_optimizer_state_dict(model, optimizer, options=_whole())


def _flush(path: Path) -> None:
    """To the disk: a file's content, or which files a folder has."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _random_state() -> dict[str, Any]:
    name, keys, *position = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *position],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    name, keys, *position = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), *position))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
