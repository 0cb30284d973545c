"""Checkpoints, from which a trial resumes to the same bits as if it had never stopped.

A checkpoint is a folder `step-N` with a file of each rank, `rank<R>.pt`: what `torch.save` makes of
the rank's own tensors and plain values, and of its share of the tensors that all ranks have. Next to it,
a seal says its SHA-256 and the conditions it was written under. The seal is written last, so a checkpoint
is whole when all ranks have theirs. Each rank checks its own file, and the ranks agree on the newest step
that all hold.

Nothing in a file is code: it is loaded with `weights_only=True`.

The weights of the best evaluation are no checkpoint, but for whoever uses the model (`save_best`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.errors import BadFile, BadInput, NotApplied, one_line
from harness.core.files import storage_error
from harness.core.paths import fsync_folder, write_atomically
from harness.records.format import FileFormat, decode_file, sealed_text
from harness.records.record import Interruption
from harness.sweep.cell import CheckpointRules
from harness.sweep.files import file_digest
from harness.training.build import TrialParts
from harness.training.digests import (
    Named,
    State,
    dense_copy,
    local_part,
    plain_copy,
    workload_state,
)
from harness.training.ranks import (
    all_reduce_min,
    broadcast_from_rank_0,
    generator_states,
    restore_generators,
)
from harness.training.resuming import describe_conditions, describe_unsaved, find_changes
from harness.training.state import COLUMNS, TrainingState

SEAL_SCHEMA = 6
SEAL_FORMAT = FileFormat(name="seal of saved tensors", schema=SEAL_SCHEMA, is_sealed=True)
END_SECONDS = 60.0  # that a file which is being written has to end
ROW_BYTES = 8 * len(COLUMNS)  # of the series, float64
SHARD = "shard"  # the key of a dict that stands for this rank's part of a sharded tensor
ROWS = "rows"  # and of one that stands for this rank's rows of a tensor that every rank has
EXTRA = "_extra_state"  # how names in a state dict end that are of a module's get_extra_state()
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
    for name in {**conditions, **seal.conditions}:
        present, expected = seal.conditions.get(name), conditions.get(name)
        if present != expected:
            raise BadFile(f"{path.parent}: {name}: found {present}; allowed: {expected}")
    for name, digest in seal.files.items():
        file = path.with_name(name)
        if not file.exists() or file_digest(file) != digest:
            raise BadFile(f"{file}: found another SHA-256 than its seal has: it is damaged")
    return seal


class Checkpointer:
    """Saves and restores everything that a resumed trial depends on; every rank must call its methods.

    At intervals, each rank copies its part to memory between two segments, which is all that training
    waits for, and a thread writes the copy. Ranks agree in the reduction that ends a segment on when to
    begin, and on whether all have written theirs, so a rank that is slow to write holds up no other. A save
    that fails is a line in the log and in the record, and the next one is tried as if it had not.

    The numbers of each step are appended to a file next to the checkpoints, `rank<R>.series`, so that a
    save takes as long after a million steps as after ten. What is newer than a checkpoint is written over.
    """

    def __init__(self, parts: TrialParts) -> None:
        """Look at the parts as they are before training, and find the files of this rank."""
        self._parts = parts
        self._step = parts.train_step
        self._rank = parts.mesh.rank
        # How many ranks have all parameters, of which each saves some rows.
        self._replicas = 1 if parts.strategy.shards_parameters else parts.mesh.world_size
        self._folder = parts.folder.resume_checkpoints
        self._series_path = self._folder / f"rank{self._rank}.series"
        self._rules = parts.assignment.saves or CheckpointRules()
        self._before_training = describe_unsaved(parts)
        # What training has changed and no checkpoint has: from then on, none is written.
        self._unsaved: str | None = None
        # They must be the same for a trial to resume.
        self._conditions = describe_conditions(parts)
        self._writer = Thread()  # of the save that is under way
        self._copies: list[Tensor] = []  # that it writes
        self._memory: Iterator[Tensor] = iter(())  # for the copies that are made now
        self._last = time.monotonic()  # when the last save, or this attempt, began
        self._written_step = 0  # by this rank; 0 while it writes, and if it could not
        self.saved_step = 0  # by all ranks: what a death would go back to

    # Saving

    def votes(self, step: int) -> tuple[bool, int]:
        """Return what ranks agree on by their smallest numbers: `on_agreement` takes them."""
        return self._may_begin(step), self._written_step

    def _may_begin(self, step: int) -> bool:
        """Return whether a save may begin for all that this rank knows. Of times, rank 0's clock decides."""
        is_last = step == self._parts.total_steps
        if is_last or self._unsaved is not None or self._writer.is_alive():
            return False
        if self._rules.steps is not None:
            return step % self._rules.steps == 0
        if self._rules.seconds is None:
            return False
        return self._rank != 0 or time.monotonic() - self._last >= self._rules.seconds

    def on_agreement(self, agreed: Sequence[int], state: TrainingState) -> bool:
        """Take note of a save that all ranks have written, and begin one that is due.

        `agreed` are the smallest of all ranks' votes. Returns whether one was begun.
        """
        begins, written_step = agreed
        self._keep(written_step)
        if not begins:
            return False
        with state.timed("checkpoint"):
            content = self._capture(state)
        self._writer = Thread(target=self._write, args=(content, state))
        self._writer.start()
        return True

    def stop(self) -> None:
        """Wait for the file that is being written."""
        if self._writer.is_alive():
            self._writer.join(END_SECONDS)

    def save(self, state: TrainingState, *, interrupted_by: str | None = None) -> bool:
        """Write a checkpoint of now and wait for it; return whether all ranks have written theirs.

        `interrupted_by` is the name of the signal that asked for it.
        """
        self._write(self._capture(state, interrupted_by), state)
        (written_step,) = all_reduce_min(self._written_step)
        self._keep(written_step)
        return written_step == state.step

    def _capture(self, state: TrainingState, interrupted_by: str | None = None) -> State:
        """Return a copy on the CPU of all that this rank saves of now.

        Every rank must call this.
        """
        self._last = time.monotonic()
        self._written_step = 0
        saved = {"step": state.step, "at": time.time(), "signal": interrupted_by}
        content: State = {"saved": saved, "state": state.to_dict()}
        self._unsaved = find_changes(self._before_training, describe_unsaved(self._parts))
        # What ranks have together: each all of it, or its shards.
        model = self._parts.model.state_dict()
        shared = {"model": model, "optimizer": self._step.optimizer.state_dict()}
        # A writer that has not ended still needs its copies.
        self._memory = iter(() if self._writer.is_alive() else self._copies)
        self._copies = []
        try:
            own = {**self._own_state(), "extra": _extra_state(model)}
            content |= plain_copy(own, "checkpoint", self._copy)
            content["shared"] = plain_copy(shared, "checkpoint", self._copy_rows)
        except NotApplied as error:
            self._unsaved = str(error)
        return content

    def _copy(self, tensor: Tensor) -> Any:
        """Return a copy of a tensor on the CPU; of a sharded one, this rank's part.

        It is made in the memory of the save before: the system takes longer to give new memory than the
        copy takes.
        """
        part = local_part(tensor).detach()
        copy = next(self._memory, None)
        if copy is None or not _are_alike(copy, part):
            # Into page-locked memory a GPU copies several times as fast.
            copy = torch.empty_like(part, device="cpu", pin_memory=part.is_cuda)
        self._copies.append(copy.copy_(part))
        return copy if tensor is local_part(tensor) else {SHARD: copy}

    def _copy_rows(self, tensor: Tensor) -> Any:
        """Return a copy on the CPU of this rank's share of a tensor."""
        # The rows of others are joined in the order of their addresses.
        has_rows = tensor.dim() > 0 and tensor.is_contiguous()
        if self._replicas == 1 or not has_rows:
            return self._copy(tensor)
        return {ROWS: self._copy(tensor.tensor_split(self._replicas)[self._rank])}

    def _own_state(self) -> State:
        """Return what else training changes of the parts: nested dicts of tensors and plain values."""
        step, model = self._step, self._parts.model
        content: State = {
            "scaler": step.scaler.grad_scaler.state_dict(),
            "skipped": step.scaler.skipped_steps,
        }
        # Each rank may have its own, and those that are in no state dict count too.
        content["buffers"] = dict(model.named_buffers())
        content["modes"] = {name: module.training for name, module in model.named_modules()}
        trained = [name for name, tensor in model.named_parameters() if tensor.requires_grad]
        content["trained"] = trained
        if step.schedule is not None:
            schedule = step.schedule.state_dict()
            # Without its functions, with which it is made again.
            content["schedule"] = {
                key: schedule[key] for key in schedule if not callable(schedule[key])
            }
        content["workload"] = workload_state(self._parts.workload)
        content["random"] = generator_states(self._parts.device)
        return content

    def _write(self, content: State, state: TrainingState) -> None:
        """Write what `_capture` returned and seal it; a failure is a line of the record.

        A thread may call it.
        """
        step = content["saved"]["step"]
        if self._unsaved is not None:
            state.note_unsaved(
                f"step {step} was not saved: {self._unsaved}; the next attempt starts from step"
                f" {self.saved_step}"
            )
            return
        rows = [values[self.saved_step : step] for values in state.series.values()]
        seal_path = self._seal_path(step)
        path = seal_path.with_suffix(".pt")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._series_path.touch()
            with self._series_path.open("r+b") as series, path.open("wb") as file:
                # Over those that an attempt, or a save that failed, has left.
                series.seek(self.saved_step * ROW_BYTES)
                series.write(np.column_stack(rows).tobytes())
                series.truncate()
                torch.save(content, file)
                for written in (series, file):
                    written.flush()
                    os.fsync(written.fileno())
            write_seal(seal_path, step, [path.name], self._conditions)
            fsync_folder(self._folder)
            self._written_step = step
        except Exception as error:  # of any kind: training goes on
            problem = storage_error(error, path) or one_line(error)
            state.note_unsaved(f"step {step} was not saved: {problem}")

    def _keep(self, step: int) -> None:
        """Count on a checkpoint that all ranks have written, and remove old ones; 0 is none."""
        if step <= self.saved_step:
            return
        self.saved_step = step
        if self._rank == 0:
            # Another rank may have begun a later one.
            whole = [step for step in self._newest_first() if step <= self.saved_step]
            for step in whole[self._rules.keep :]:
                shutil.rmtree(self._seal_path(step).parent, ignore_errors=True)

    # Resuming

    def resume(self, state: TrainingState) -> None:
        """Restore the trial's newest checkpoint that all ranks hold, if it has one.

        It goes into `state` and into all that this object was made with. `state` also gets the
        interruption that this puts an end to, and the checkpoints that were passed over.
        """
        for step in broadcast_from_rank_0(self._newest_first()):
            fault = self._find_fault(step)
            (are_all_sound,) = all_reduce_min(fault is None)
            if are_all_sound:
                self._resume_at(step, state)
                break
            if fault:
                print(f"not resumed from {fault}", flush=True)
                state.refused_checkpoints.append(fault)
            if self._rank == 0:
                # Parts that this attempt writes must not be taken together with those of an earlier one.
                shutil.rmtree(self._seal_path(step).parent, ignore_errors=True)

    def _resume_at(self, step: int, state: TrainingState) -> None:
        """Restore a checkpoint that all ranks hold."""
        content = self._restore(step)
        saved = content["saved"]
        rows = np.fromfile(self._series_path, count=step * len(COLUMNS))
        state.resume_from(content["state"], rows.reshape(step, -1))
        self.saved_step = step
        lost_seconds = max(0.0, time.time() - saved["at"])
        state.interruptions.append(Interruption(**saved, lost_seconds=lost_seconds))

    def _find_fault(self, step: int) -> str | None:
        """Return why this rank can't resume from its own file of a checkpoint, None if it can.

        The reason is empty for a save that was never finished.
        """
        path = self._seal_path(step)
        if not path.exists():
            return ""
        try:
            read_seal(path, self._conditions)
            rows = self._series_path.stat().st_size // ROW_BYTES
            if rows < step:
                raise BadFile(f"{self._series_path}: found {rows} steps; needed: {step}")
        except (BadInput, OSError) as error:
            return one_line(error)
        return None

    def _restore(self, step: int) -> Mapping[str, Any]:
        """Restore all parts of the trial; return what this rank has saved."""
        path = self._seal_path(step).with_suffix(".pt")
        content: State = torch.load(path, "cpu", weights_only=True)
        shares = [content["shared"]]
        if self._replicas > 1:
            files = [path.with_name(f"rank{rank}.pt") for rank in range(self._replicas)]
            shares = [torch.load(file, "cpu", weights_only=True)["shared"] for file in files]
        shared = _joined(shares)
        # A strategy that arranges itself in its first steps, in a way that results depend on, does so in a
        # forward and backward of one micro-batch. What that changes besides is then overwritten.
        for _ in range(min(step, self._parts.strategy.arranging_steps)):
            loss = self._step.loss(self._step.module, self._parts.micro_batch())
            loss.backward()  # type: ignore[no-untyped-call]
            self._step.optimizer.zero_grad(set_to_none=True)
        model = self._parts.model
        present = model.state_dict()
        saved = {name: _restored(value, present[name]) for name, value in shared["model"].items()}
        model.load_state_dict(saved | content["extra"])
        _load_tensors(model.named_buffers(), content["buffers"])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in content["trained"])
        for name, module in model.named_modules():
            module.training = content["modes"][name]
        _load_optimizer(self._step.optimizer, shared["optimizer"])
        if self._step.schedule is not None:
            self._step.schedule.load_state_dict(content["schedule"])
        self._step.scaler.grad_scaler.load_state_dict(content["scaler"])
        self._step.scaler.skipped_steps = content["skipped"]
        if content["workload"]:
            self._parts.workload.load_state_dict(content["workload"])
        restore_generators(content["random"], self._parts.device)
        return content

    # Folders

    def _seal_path(self, step: int) -> Path:
        """Return this rank's seal of a checkpoint."""
        return self._folder / f"step-{step:09d}" / f"rank{self._rank}.seal"

    def _newest_first(self) -> list[int]:
        """Return the steps of all checkpoints, the greatest first."""
        folders = self._folder.glob("step-*")
        return sorted((int(path.name.removeprefix("step-")) for path in folders), reverse=True)


def _extra_state(state: State) -> State:
    """Return what of a model's state dict is from get_extra_state() of modules, which each rank may have
    its own of.
    """
    return {name: state[name] for name in state if name.endswith(EXTRA)}


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether the elements of two dense tensors have the same type and places in memory."""
    if not (one.layout is other.layout is torch.strided):
        return False
    return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def _joined(shares: Sequence[Any]) -> Any:
    """Return a state of which each rank has saved some rows."""
    first = shares[0]
    if isinstance(first, dict):
        if ROWS in first:
            return torch.cat([share[ROWS] for share in shares])
        return {key: _joined([share[key] for share in shares]) for key in first}
    if type(first) in (list, tuple):
        return type(first)(_joined(items) for items in zip(*shares, strict=True))
    return first


def _restored(value: Any, like: Tensor) -> Any:
    """Return a saved value as it was: a rank's part as a tensor that is sharded as `like` is."""
    if not isinstance(value, dict) or SHARD not in value:
        return value
    sharded = torch.empty_like(like, dtype=value[SHARD].dtype)
    local_part(sharded).copy_(value[SHARD])
    return sharded


def _load_optimizer(optimizer: Optimizer, saved: State) -> None:
    """Restore an optimizer's state, sharded as its parameters are."""
    for group, present in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        for number, parameter in zip(group["params"], present["params"], strict=True):
            values = saved["state"].get(number, {})
            for name, value in values.items():
                values[name] = _restored(value, parameter)
        for name, value in group.items():
            if isinstance(value, Tensor):  # a rate: a GPU divides by one on the CPU in other bits
                group[name] = value.to(present[name].device)
    optimizer.load_state_dict(saved)


@torch.no_grad()
def _load_tensors(tensors: Named, saved: State) -> None:
    """Give tensors the values that were saved under their names."""
    for name, tensor in tensors:
        tensor.copy_(saved[name])


# The best weights


def save_best(parts: TrialParts, state: TrainingState) -> str | None:
    """Save the weights as the best so far; every rank must call this, and rank 0 writes.

    Returns rank 0's path of them, relative to the trial's folder. What can't be written costs a line
    and no trial.
    """
    state_dict = parts.model.state_dict()
    tensors = dict(parts.model.named_buffers())  # those that are in no state dict count too
    rest = {"workload": workload_state(parts.workload), "extra": _extra_state(state_dict)}
    weights: dict[str, Tensor] = {}
    for name, value in {**tensors, **state_dict}.items():
        if name in rest["extra"]:
            continue
        copy = dense_copy(value)
        if parts.mesh.rank == 0:  # others keep none of them
            weights[name] = copy
    if parts.mesh.rank != 0:
        return None
    folder = parts.folder.best_checkpoints
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_file(weights, folder / WEIGHTS_FILE)
        torch.save(rest, folder / REST_FILE)
        of_trial = {"trial": parts.assignment.trial.id}
        write_seal(folder / SEAL_FILE, state.step, [WEIGHTS_FILE, REST_FILE], of_trial)
        return str(folder.relative_to(parts.folder.path))
    except Exception as error:  # of the disk, or a tensor that safetensors does not know
        shutil.rmtree(folder, ignore_errors=True)
        problem = storage_error(error, folder) or one_line(error)
        state.note_unsaved(f"the best model, step {state.step}, was not saved: {problem}")
        return None


def load_best(folder: Path, model: nn.Module) -> State:
    """Load the weights into an unsharded model; return the workload's own state."""
    rest: State = torch.load(folder / REST_FILE, "cpu", weights_only=True)
    weights = load_file(folder / WEIGHTS_FILE)
    _load_tensors(chain(model.named_parameters(), model.named_buffers()), weights)
    model.load_state_dict(rest["extra"], strict=False)
    workload: State = rest["workload"]
    return workload
