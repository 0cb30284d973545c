"""Checkpoints, from which a trial resumes to the same bits as if it had never stopped.

A checkpoint is a folder `step-N` with a file of each rank, `rank<R>.pt`: what `torch.save` makes of
the rank's own tensors and plain values. Next to it, a seal says its SHA-256 and the
conditions it was written under. The seal is written last, so a checkpoint is whole when all ranks have
theirs. Each rank reads and checks its own file, and the ranks agree on the newest step that all hold.

Nothing in a file is code: it is loaded with `weights_only=True`.

The weights of the best evaluation are no checkpoint, but for whoever uses the model (`save_best`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.errors import (
    BadCheckpoint,
    BadFile,
    BadInput,
    NotApplied,
    StorageError,
    one_line,
)
from harness.core.files import writing
from harness.core.paths import fsync_folder, write_atomically
from harness.records.format import FileFormat, decode_file, sealed_text
from harness.records.record import Interruption
from harness.sweep.cell import CheckpointRules
from harness.training.build import TrialParts
from harness.training.digests import full_tensor, plain_copy
from harness.training.ranks import (
    all_reduce_min,
    broadcast_from_rank_0,
    generator_states,
    restore_generators,
)
from harness.training.resuming import (
    describe_conditions,
    describe_unsaved,
    find_changes,
    find_mismatch,
)
from harness.training.state import COLUMNS, TrainingState

SEAL_SCHEMA = 6
SEAL_FORMAT = FileFormat(name="seal of saved tensors", schema=SEAL_SCHEMA, is_sealed=True)
OF_ANOTHER_RANK = "another rank could not write its part of a checkpoint"
END_SECONDS = 60.0  # that a file which is being written has to end
ROW_BYTES = 8 * COLUMNS  # of the series, float64
SHARD = "shard"  # the key of a dict that stands for this rank's part of a sharded tensor
# The best weights: unsharded parameters and buffers, other state, and the seal of both.
WEIGHTS_FILE, REST_FILE, SEAL_FILE = "model.safetensors", "rest.pt", "seal.json"


@dataclass(frozen=True, kw_only=True)
class Seal:
    """What was saved, and under which conditions."""

    schema: int = SEAL_SCHEMA
    step: int  # optimizer steps done
    files: Mapping[str, str]  # the SHA-256 of each, by its name in the folder of the seal
    conditions: Mapping[str, str]  # that must be the same, the trial among them


def write_seal(path: Path, step: int, names: Sequence[str], conditions: Mapping[str, str]) -> None:
    """Seal files that are in the same folder."""
    files = {name: file_digest(path.with_name(name)) for name in names}
    seal = Seal(step=step, files=files, conditions=conditions)
    write_atomically(path, sealed_text(asdict(seal)))


def read_seal(path: Path, conditions: Mapping[str, str]) -> Seal:
    """Return a seal; raises BadFile for other conditions, and for files that are not as they were."""
    seal = decode_file(Seal, path, SEAL_FORMAT)
    mismatch = find_mismatch(seal.conditions, conditions)
    if mismatch is not None:
        raise BadFile(f"{path.parent}: {mismatch}")
    for name, digest in seal.files.items():
        file = path.with_name(name)
        if not file.exists() or file_digest(file) != digest:
            raise BadFile(f"{file}: found another SHA-256 than its seal has: it is damaged")
    return seal


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checkpointer:
    """Saves and restores everything that a resumed trial depends on; every rank must call its methods.

    At intervals, each rank copies its part to memory between two segments, which is all that training
    waits for, and a thread writes the copy. Ranks agree in the reduction that ends a segment on when to
    begin, and on whether all have written theirs, so a rank that is slow to write holds up no other. A save
    that fails is a line in the log and in the record, and the next one is tried as if it had not.

    The numbers of each step are appended to a file next to the checkpoints, `rank<R>.series`, so that a
    save takes as long after a million steps as after ten. A resumed trial cuts off what is newer.
    """

    def __init__(self, parts: TrialParts) -> None:
        """Look at the parts as they are before training, and find the files of this rank."""
        self._parts = parts
        self._step = parts.train_step
        self._device = parts.device
        self._rank = parts.mesh.rank
        self._has_model = parts.strategy.shards_parameters or self._rank == 0
        self._folder = parts.folder.resume_checkpoints
        self._series_path = self._folder / f"rank{self._rank}.series"
        self._interval = parts.assignment.saves or CheckpointRules()
        self._before_training: dict[str, Any] | None = describe_unsaved(parts)  # until it saves
        # What training has changed by the first save and no checkpoint has: none is written then.
        self.unsaved: str | None = None
        # They must be the same for a trial to resume.
        self._conditions = describe_conditions(
            parts.assignment.trial.id, parts.assignment.packages, parts.device
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last = time.monotonic()  # when the last save began, or this attempt
        # Of the save that is under way.
        self._written: Future[tuple[int, float]] | None = None
        self.resumed_at = 0  # the steps done by earlier attempts
        # What a death would go back to, and when that was saved.
        self.saved_step, self.saved_at = 0, time.time()

    # Saving

    def votes(self, step: int) -> tuple[bool, bool, bool]:
        """Return what ranks agree on by their smallest numbers: `on_agreement` takes them."""
        written = self._written
        if written is None or not written.done():
            return not self._is_due(step), False, True
        return not self._is_due(step), True, written.exception() is None

    def _is_due(self, step: int) -> bool:
        """Return whether a save should begin. Of times, rank 0's clock decides."""
        if step == self._parts.total_steps or self.unsaved is not None:
            return False
        if self._interval.steps is not None:
            return step % self._interval.steps == 0
        if self._interval.seconds is None or self._rank != 0:
            return False
        return time.monotonic() - self._last >= self._interval.seconds

    def on_agreement(self, agreed: Sequence[int], state: TrainingState) -> bool:
        """End the save that all ranks have written, and begin one that is due.

        `agreed` are the smallest of all ranks' votes. Returns whether one was begun.
        """
        not_due, all_done, all_written = agreed
        if all_done and self._written is not None:
            written, self._written = self._written, None
            if all_written:
                self.saved_step, self.saved_at = written.result()
                self.remove_old(self.saved_step)
            else:
                state.note_unsaved(str(written.exception() or OF_ANOTHER_RANK))
        if not_due or self._written is not None:
            return False
        self._last = time.monotonic()
        with state.timed("checkpoint"):
            self._written = self._thread.submit(self.write, self.capture(state))
        return True

    def stop(self) -> None:
        """Wait for the file that is being written."""
        if self._written is not None:
            wait([self._written], END_SECONDS)
        self._written = None

    def save(self, state: TrainingState, *, interrupted_by: str | None = None) -> None:
        """Write a checkpoint of now and wait for it; remove old ones.

        `interrupted_by` is the name of the signal that asked for it. Raises StorageError at every
        rank if one of them can't write its part.
        """
        problem: StorageError | None = None
        try:
            self.write(self.capture(state, interrupted_by))
        except StorageError as error:
            problem = error
        (all_written,) = all_reduce_min(problem is None)
        if not all_written:
            raise problem or StorageError(OF_ANOTHER_RANK)
        self.remove_old(state.step)

    def capture(self, state: TrainingState, interrupted_by: str | None = None) -> dict[str, Any]:
        """Return a copy on the CPU of all that this rank saves of now.

        Where ranks have replicas, only rank 0 saves the model and its optimizer. Every rank must call
        this.
        """
        content: dict[str, Any] = {"at": time.time(), "by": interrupted_by}
        content["state"] = state.to_dict()
        first_row = self._rows_on_disk()
        content["rows"] = (first_row, state.rows(first_row))
        parts = self._state_of_parts()
        if self._before_training is not None:
            self.unsaved = find_changes(self._before_training, describe_unsaved(self._parts))
            self._before_training = None
        try:
            content |= plain_copy(parts, "checkpoint", _copy_to_host)
        except NotApplied as error:
            self.unsaved = str(error)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return content

    def _state_of_parts(self) -> dict[str, Any]:
        """Return what training changes of the parts: nested dicts of tensors and plain values."""
        step, model = self._step, self._parts.model
        schedule = {} if step.schedule is None else step.schedule.state_dict()
        # Without its functions, with which it is made again.
        schedule = {key: item for key, item in schedule.items() if not callable(item)}
        requires_grad = {name: part.requires_grad for name, part in model.named_parameters()}
        shared = {}
        if self._has_model:
            shared = {"model": model.state_dict(), "optimizer": step.optimizer.state_dict()}
        return {
            **shared,
            # Those that are in no state dict count too, and each rank may have its own.
            "buffers": dict(model.named_buffers()),
            "modes": {name: module.training for name, module in model.named_modules()},
            "requires_grad": requires_grad,
            "schedule": schedule,
            "scaler": step.scaler.state(),
            "workload": self._parts.workload_state.save(),
            "random": generator_states(self._device),
        }

    def write(self, content: dict[str, Any]) -> tuple[int, float]:
        """Write what `capture` returned and seal it; return its step and its moment.

        A thread may call it. Raises StorageError.
        """
        step, seal_path = content["state"]["step"], self._seal_path(content["state"]["step"])
        path = seal_path.with_suffix(".pt")
        try:
            if self.unsaved is not None:
                raise StorageError(f"{self.unsaved}; the next attempt starts from step 0")
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                seal_path.unlink(missing_ok=True)  # of another attempt
                self._append_rows(*content.pop("rows"))
                with path.open("wb") as file:
                    torch.save(content, file)
                    file.flush()
                    os.fsync(file.fileno())
                write_seal(seal_path, step, [path.name], self._conditions)
                fsync_folder(self._folder)
        except (StorageError, OSError) as error:  # OSError: a folder that may not be written to
            raise StorageError(f"step {step} was not saved: {error}") from error
        return step, content["at"]

    def _append_rows(self, start: int, rows: NDArray[np.float64]) -> None:
        """Write the numbers of the steps from `start` on as the last ones, flushed to the disk."""
        with self._series_path.open("ab") as file:
            file.truncate(start * ROW_BYTES)  # after what a crash has left of a row
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def _rows_on_disk(self) -> int:
        """Return of how many steps the numbers are written."""
        return self._series_path.stat().st_size // ROW_BYTES if self._series_path.exists() else 0

    def remove_old(self, step: int) -> None:
        """Remove all checkpoints but those to keep: that of `step`, which all ranks have written, and before.

        Later ones were passed over when the trial resumed.
        """
        if self._rank != 0:
            return
        checkpoints = self._newest_first()
        kept = [other for other in checkpoints if other <= step][: self._interval.keep]
        for other in checkpoints:
            if other not in kept:
                shutil.rmtree(self._step_folder(other), ignore_errors=True)

    # Resuming

    def resume(self, state: TrainingState) -> None:
        """Restore the trial's newest checkpoint that all ranks hold, if it has one.

        It goes into `state` and into all that this object was made with. `state` also gets the
        interruption that this puts an end to, and the checkpoints that were passed over.
        """
        faults: list[str] = []
        step = self._newest_common_step(faults)
        for fault in faults:
            print(f"not resumed from {fault}", flush=True)
        if self._series_path.exists():
            os.truncate(self._series_path, max(step, 0) * ROW_BYTES)
        if step >= 0:
            content = self._restore(step)
            rows = np.fromfile(self._series_path, dtype=np.float64).reshape(-1, COLUMNS)
            state.resume_from(content["state"], rows)
            self.resumed_at = self.saved_step = step
            lost_seconds = max(0.0, time.time() - content["at"])
            interruption = Interruption(
                step=step, at=content["at"], signal=content["by"], lost_seconds=lost_seconds
            )
            state.interruptions.append(interruption)
        if self._rank == 0:  # what one rank says is enough
            state.refused_checkpoints = [*dict.fromkeys([*state.refused_checkpoints, *faults])]

    def _newest_common_step(self, faults: list[str]) -> int:
        """Return the newest step whose files all ranks hold, -1 if there is none.

        `faults` gets why newer ones were passed over, a line each. They lose their seals: parts that this
        attempt writes must not be taken together with those of an earlier one.
        """
        steps: list[int] = broadcast_from_rank_0(self._newest_first())
        for step in steps:
            is_sound = self._is_sound(step, faults)
            (are_all_sound,) = all_reduce_min(is_sound)
            if are_all_sound:
                return step
            if is_sound:
                faults.append(f"{self._step_folder(step)}: another rank can't resume from it")
            self._seal_path(step).unlink(missing_ok=True)
        return -1

    def _is_sound(self, step: int, faults: list[str]) -> bool:
        """Return whether this rank can resume from its own file of a checkpoint; else say why not."""
        path = self._seal_path(step)
        if not path.exists():  # the save was never finished
            return False
        try:
            read_seal(path, self._conditions)
            rows = self._rows_on_disk()
            if rows < step:
                raise BadFile(f"{self._series_path}: found {rows} steps; needed: {step}")
        except (BadInput, OSError) as error:
            faults.append(one_line(error))
            return False
        return True

    def _restore(self, step: int) -> Mapping[str, Any]:
        """Restore all parts of the trial; return what this rank has saved."""
        path = self._seal_path(step).with_suffix(".pt")
        content: dict[str, Any] = torch.load(path, "cpu", weights_only=True)
        shared = content
        if not self._has_model:
            shared = torch.load(path.with_name("rank0.pt"), "cpu", weights_only=True)
        # A trial that had done fewer steps was still arranging itself.
        for _ in range(min(step, self._parts.strategy.arranging_steps)):
            self._rehearse_step()
        model, optimizer = self._parts.model, self._step.optimizer
        _load_model(model, shared["model"], content["buffers"])
        for name, module in model.named_modules():
            module.training = content["modes"][name]
        _load_optimizer(optimizer, shared["optimizer"])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(content["requires_grad"][name])
        if self._step.schedule is not None:
            self._step.schedule.load_state_dict(content["schedule"])
        self._step.scaler.restore(content["scaler"])
        self._parts.workload_state.load(content["workload"])
        restore_generators(content["random"], self._device)
        return content

    def _rehearse_step(self) -> None:
        """Compute the forward and backward of one micro-batch and drop the gradients.

        A strategy that arranges itself in its first steps needs this before a checkpoint is loaded.
        What it changes besides, random numbers and buffers, is then overwritten by the checkpoint.
        """
        loss = self._step.loss(self._step.module, self._parts.micro_batch())
        loss.backward()  # type: ignore[no-untyped-call]
        self._step.optimizer.zero_grad(set_to_none=True)

    # Folders

    def _step_folder(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self._folder / f"step-{step:09d}"

    def _seal_path(self, step: int) -> Path:
        """Return this rank's seal of a checkpoint."""
        return self._step_folder(step) / f"rank{self._rank}.seal"

    def _newest_first(self) -> list[int]:
        """Return the steps of all checkpoints, the greatest first."""
        folders = self._folder.glob("step-*")
        return sorted((int(path.name.removeprefix("step-")) for path in folders), reverse=True)


def _copy_to_host(tensor: Tensor) -> Any:
    """Return a copy of a tensor on the CPU; of a sharded one, this rank's part."""
    if hasattr(tensor, "to_local"):  # a DTensor
        return {SHARD: _copy_to_host(tensor.to_local())}
    if tensor.is_cuda:
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        return copy.copy_(tensor.detach(), non_blocking=True)
    return tensor.detach().clone()


@torch.no_grad()
def _load_model(model: nn.Module, saved: Mapping[str, Any], buffers: Mapping[str, Tensor]) -> None:
    """Restore a model's whole state, and the buffers that this rank had."""
    present = model.state_dict()
    model.load_state_dict({name: _sharded_like(present[name], saved[name]) for name in saved})
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def _load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Restore an optimizer's state, sharded as its parameters are."""
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    for number, values in saved["state"].items():
        for name, value in values.items():
            values[name] = _sharded_like(parameters[number], value)
    for group, present in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        for name, value in group.items():
            if isinstance(value, Tensor):  # such as a rate that CUDA graphs read
                group[name] = value.to(present[name].device)
    optimizer.load_state_dict(saved)


def _sharded_like(tensor: Any, saved: Any) -> Any:
    """Return a saved value as it was: a rank's part of a sharded tensor as a DTensor like `tensor`."""
    if not isinstance(saved, dict) or SHARD not in saved:
        return saved
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        saved[SHARD].to(tensor.to_local().device),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


# The best weights


def save_best(parts: TrialParts, state: TrainingState) -> None:
    """Save the weights as the best so far; every rank must call this, and rank 0 writes.

    What can't be written costs a line and no trial.
    """
    weights: dict[str, Tensor] = {}
    rest = {"workload": parts.workload_state.save(), "extra": {}}
    for name, value in {**dict(parts.model.named_buffers()), **parts.model.state_dict()}.items():
        if name.endswith("_extra_state"):  # what a module's get_extra_state() returns
            rest["extra"][name] = value
            continue
        whole = full_tensor(value)
        if parts.mesh.is_rank_0:  # others keep none of them
            weights[name] = whole.to_dense().clone(memory_format=torch.contiguous_format)
    if not parts.mesh.is_rank_0:
        return
    trial = parts.assignment.trial.id
    try:
        write_best(parts.folder.best_checkpoints, trial, state.step, weights, rest)
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
        write_seal(aside / SEAL_FILE, step, [WEIGHTS_FILE, REST_FILE], {"trial": trial})
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)


def load_best(folder: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights into an unsharded model; return the workload's own state.

    Raises BadCheckpoint for files that can't be read.
    """
    try:
        rest = torch.load(folder / REST_FILE, "cpu", weights_only=True)
        weights = load_file(folder / WEIGHTS_FILE)
        with torch.no_grad():
            for name, tensor in chain(model.named_parameters(), model.named_buffers()):
                tensor.copy_(weights[name])
        model.load_state_dict(rest["extra"], strict=False)
    except Exception as error:
        raise BadCheckpoint(f"{folder}: can't be read: {one_line(error)}") from error
    workload: dict[str, Any] = rest["workload"]
    return workload
