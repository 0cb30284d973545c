"""The weights of the best evaluation, for whoever uses the model; no trial resumes from them.

They are a folder with `model.safetensors`, the unsharded parameters and all buffers, and `rest.pt`, which
has what the model's state is beyond dense tensors, and the workload's own state.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from harness.core.errors import BadCheckpoint, BadFile, one_line
from harness.core.files import writing
from harness.core.paths import fsync_folder, write_atomically
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.training.build import TrialParts
from harness.training.checkpoint import file_digest
from harness.training.fingerprint import full_tensor
from harness.training.state import TrainingState

SCHEMA = 4
FORMAT = FileFormat(name="seal of the best weights", schema=SCHEMA, is_sealed=True)
WEIGHTS_FILE, REST_FILE, SEAL_FILE = "model.safetensors", "rest.pt", "seal.json"


@dataclass(frozen=True, kw_only=True)
class BestSeal:
    """The content of `seal.json`."""

    schema: int = SCHEMA
    trial: str
    step: int  # optimizer steps done
    files: Mapping[str, str]  # SHA-256 of each file


def save_best(parts: TrialParts, state: TrainingState) -> None:
    """Save the weights as the best so far; every rank must call this, and rank 0 writes.

    What can't be written costs a line and no trial.
    """
    is_writer = parts.mesh.is_rank_0
    weights: dict[str, Tensor] = {}
    rest: dict[str, Any] = {"workload": parts.workload_state.save(), "others": {}}
    # Shards are gathered one after the other, and ranks that do not write keep none.
    for name, value in {**dict(parts.model.named_buffers()), **parts.model.state_dict()}.items():
        whole = full_tensor(value) if isinstance(value, Tensor) else value
        if is_writer and isinstance(whole, Tensor) and whole.layout is torch.strided:
            weights[name] = whole.contiguous().clone()
        elif is_writer:
            rest["others"][name] = whole
    if not is_writer:
        return
    folder = parts.folder.best_checkpoints
    try:
        write_best(folder, parts.assignment.trial.id, state.step, weights, rest)
        state.best_saved_step = state.step
    except Exception as error:  # of the disk, or a tensor that safetensors does not know
        state.note_unsaved(f"the best model, step {state.step}, was not saved: {one_line(error)}")


def write_best(
    folder: Path, trial: str, step: int, weights: dict[str, Tensor], rest: dict[str, Any]
) -> None:
    """Write the weights in place of earlier ones; raises StorageError and OSError."""
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with writing(folder):
        aside.mkdir(parents=True)
        save_file(weights, aside / WEIGHTS_FILE)
        torch.save(rest, aside / REST_FILE)
        files = {name: file_digest(aside / name) for name in (WEIGHTS_FILE, REST_FILE)}
        seal = BestSeal(trial=trial, step=step, files=files)
        write_atomically(aside / SEAL_FILE, sealed_text(asdict(seal)))
        for path in aside.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
        fsync_folder(folder.parent)


def read_best(folder: Path, trial: str) -> BestSeal:
    """Return the seal of a trial's best weights, whose files are as they were written.

    Every file is read. Raises BadFile for a missing or damaged one, and for another trial's.
    """
    seal = decode_file(BestSeal, folder / SEAL_FILE, FORMAT)
    if seal.trial != trial:
        raise BadFile(f"{folder}: trial: found {seal.trial}; allowed: {trial}")
    for name, digest in seal.files.items():
        path = folder / name
        if not path.exists() or file_digest(path) != digest:
            raise BadFile(f"{path}: found another SHA-256 than its seal has: it is damaged")
    return seal


def load_best(folder: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights into an unsharded model; return the workload's own state.

    Raises BadCheckpoint for files that can't be read.
    """
    try:
        rest = torch.load(folder / REST_FILE, "cpu", weights_only=True)
        state = {**load_file(folder / WEIGHTS_FILE), **rest["others"]}
        in_state_dict = model.state_dict().keys()
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(state[name] if name in in_state_dict else state.pop(name))
        model.load_state_dict(state)
    except Exception as error:
        raise BadCheckpoint(f"{folder}: can't be read: {one_line(error)}") from error
    workload: dict[str, Any] = rest["workload"]
    return workload
