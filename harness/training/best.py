"""The weights of the best evaluation, for whoever uses the model; no trial resumes from them.

They are a folder with `model.safetensors`, the unsharded parameters and persistent buffers, and `rest.pt`,
which has what the model's state is beyond tensors, its other buffers and the workload's own state.
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
from harness.core.paths import fsync_folder, write_atomically
from harness.core.storage import writing
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.training.checkpoint import describe_file, make_buffers
from harness.training.fingerprint import full_tensor

SCHEMA = "4.0"
FORMAT = FileFormat(name="seal of the best weights", schema=SCHEMA, is_sealed=True)
WEIGHTS_FILE, REST_FILE, SEAL_FILE = "model.safetensors", "rest.pt", "seal.json"


@dataclass(frozen=True, kw_only=True)
class BestSeal:
    """The content of `seal.json`."""

    schema: str = SCHEMA
    trial: str
    step: int  # optimizer steps done
    files: Mapping[str, str]  # SHA-256 of each file


def gather_state(model: nn.Module, *, keeps: bool) -> dict[str, Any]:
    """Return a copy of the model's whole state on the CPU; every rank must take part.

    Shards are gathered one after the other, and ranks that do not keep them return none.
    """
    state: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        whole = full_tensor(value) if isinstance(value, Tensor) else value
        if keeps:
            state[name] = whole.contiguous().clone() if isinstance(whole, Tensor) else whole
    return state


def write_best(
    folder: Path,
    trial: str,
    step: int,
    state: Mapping[str, Any],
    model: nn.Module,
    workload: Mapping[str, Any],
) -> None:
    """Write the weights in place of earlier ones; raises StorageError and OSError."""
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    tensors: dict[str, Tensor] = {}
    others: dict[str, Any] = {}
    for name, value in state.items():
        is_weight = isinstance(value, Tensor) and value.layout is torch.strided
        if is_weight:
            tensors[name] = value
        else:
            others[name] = value
    buffers = {name: buffer.detach().cpu() for name, buffer in model.named_buffers()}
    rest = {
        "others": others,
        "buffers": {name: buffer for name, buffer in buffers.items() if name not in state},
        "workload": dict(workload),
    }
    with writing(folder):
        aside.mkdir(parents=True)
        save_file(tensors, aside / WEIGHTS_FILE)
        torch.save(rest, aside / REST_FILE)
        files = {name: describe_file(aside / name)[1] for name in (WEIGHTS_FILE, REST_FILE)}
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
        try:
            _, present = describe_file(folder / name)
        except OSError as error:
            raise BadFile(f"{folder / name}: can't be read: {error.strerror}") from error
        if present != digest:
            raise BadFile(
                f"{folder / name}: found SHA-256 {present[:12]}; allowed: {digest[:12]}: it is damaged"
            )
    return seal


def best_step(folder: Path) -> int | None:
    """Return the step of the weights in a folder, None where there are none."""
    try:
        return decode_file(BestSeal, folder / SEAL_FILE, FORMAT).step
    except BadFile:
        return None


def load_best(folder: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights into an unsharded model; return the workload's own state.

    Raises BadCheckpoint for files that can't be read.
    """
    try:
        weights = load_file(folder / WEIGHTS_FILE)
        rest = torch.load(folder / REST_FILE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise BadCheckpoint(f"{folder}: can't be read: {one_line(error)}") from error
    state = {**weights, **rest["others"]}
    present = {name for name, _ in model.named_parameters()}
    buffers = {**rest["buffers"]}
    for name, value in weights.items():
        if name not in present:
            buffers[name] = value
    make_buffers(model, buffers, state)
    model.load_state_dict(state)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in rest["buffers"]:
                buffer.copy_(rest["buffers"][name])
    workload: dict[str, Any] = rest["workload"]
    return workload
