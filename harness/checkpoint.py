"""Checkpoints: weights as safetensors, the rest loadable with `weights_only=True`; whole or not there at all."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.dist import Ranks, gather, share_buffers
from harness.errors import BadCheckpoint, one_line
from harness.fingerprint import whole_state


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
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    share_buffers(model)
    weights = {name: value.contiguous().clone() for name, value in whole_state(model)}
    optimizer_state = get_optimizer_state_dict(model, optimizer, options=whole)
    everyone = gather(rest | {"random": _random_state()}, ranks)
    if not ranks.first:
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
    aside.rename(place)
    for old in folder.glob("*step-*"):
        if old != place:
            shutil.rmtree(old)


def newest(folder: Path) -> Path | None:
    """The checkpoint in `folder`, if there is one."""
    return max(folder.glob("step-*"), default=None)


def load(
    place: Path,
    model: nn.Module,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
    ranks: Ranks,
) -> tuple[int, dict[str, Any]]:
    """Put a checkpoint's state back; returns its step and this rank's `rest`. Raises BadCheckpoint."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    try:
        weights = load_file(place / "model.safetensors")
        state = torch.load(place / "state.pt", map_location="cpu", weights_only=True)
        rest = state["ranks"][ranks.rank]
    except Exception as error:
        raise BadCheckpoint(f"{place}: can't be read: {one_line(error)}") from error
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    set_model_state_dict(model, dict(weights), options=whole)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=whole)
    if schedule:
        schedule.load_state_dict(state["schedule"])
    _restore_random_state(rest.pop("random"))
    return int(state["step"]), rest


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
