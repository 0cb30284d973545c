"""Checkpoints, from which a trial resumes to the same bits as if it had never stopped.

A checkpoint is a folder `step-N` with a file of each rank, `rank<R>.pt`: what `torch.save` makes of
the rank's own tensors and plain values. Next to it, a seal says its SHA-256 and the
conditions it was written under. The seal is written last, so a checkpoint is whole when all ranks have
theirs. Each rank reads and checks its own file, and the ranks agree on the newest step that all hold.

Nothing in a file is code: it is loaded with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.errors import BadInput, NotApplied, StorageError, one_line
from harness.core.files import writing
from harness.core.paths import fsync_folder, write_atomically
from harness.records.decode import FileFormat, decode_file
from harness.records.record import Interruption
from harness.records.seal import sealed_text
from harness.sweep.saving import CheckpointRules
from harness.training.build import TrialParts
from harness.training.conditions import describe_conditions, find_mismatch
from harness.training.fingerprint import plain_copy
from harness.training.ranks import all_reduce_min, generator_states, restore_generators
from harness.training.state import COLUMNS, TrainingState
from harness.training.unsaved import describe_unsaved, find_changes

SEAL_SCHEMA = 5
SEAL_FORMAT = FileFormat(name="checkpoint's seal", schema=SEAL_SCHEMA, is_sealed=True)
END_SECONDS = 60.0  # that a file which is being written has to end
ROW_BYTES = 8 * COLUMNS  # of the series, float64
SHARD = "shard"  # the key of a dict that stands for this rank's part of a sharded tensor


@dataclass(frozen=True, kw_only=True)
class RankSeal:
    """The content of `rank<R>.seal`."""

    schema: int = SEAL_SCHEMA
    sha256: str  # of the rank's file
    conditions: Mapping[str, str] = field(default_factory=dict)
    # Why no attempt can resume from it although it is whole; None if one can.
    unsaved: str | None = None


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
        self._parts, self._step, self._mesh = parts, parts.train_step, parts.mesh
        self._rank = parts.mesh.rank
        self._has_model = parts.strategy.shards_parameters or self._rank == 0
        self._folder = parts.folder.resume_checkpoints
        self._series_path = self._folder / f"rank{self._rank}.series"
        self._interval = parts.assignment.saves or CheckpointRules()
        self._before_training = describe_unsaved(parts)
        # They must be the same for a trial to resume.
        self._conditions = describe_conditions(
            parts.assignment.trial.id, parts.assignment.packages, parts.mesh.device
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last = time.monotonic()  # when the last save began, or this attempt
        self._saving = (0, 0.0)  # the step of the save that is under way, and its moment
        self._written: Future[None] | None = None

    # Saving

    def votes(self, step: int) -> tuple[int, int, int]:
        """Return what ranks agree on by their smallest numbers: `on_agreement` takes them."""
        written = self._written
        is_done = written is not None and written.done()
        has_failed = written is not None and is_done and written.exception() is not None
        return int(not self._is_due(step)), int(is_done), int(not has_failed)

    def _is_due(self, step: int) -> bool:
        """Return whether a save should begin. Of times, rank 0's clock decides."""
        if step == self._parts.total_steps:
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
            self._finish(self._written, state, is_whole=bool(all_written))
        if not_due or self._written is not None:
            return False
        self._last = time.monotonic()
        self._saving = (state.step, time.time())
        with state.timed("checkpoint"):
            self._written = self._thread.submit(self.write, self.capture(state))
        return True

    def _finish(self, written: Future[None], state: TrainingState, *, is_whole: bool) -> None:
        """Note what became of the save; `is_whole` says whether all ranks have written it."""
        self._written = None
        step, begun_at = self._saving
        if is_whole:
            state.saved_step, state.saved_at = step, begun_at
            self.remove_old(step)
        else:
            problem = written.exception() or "another rank could not write its part"
            state.note_unsaved(f"step {step} was not saved: {problem}")

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
        problem: str | None = None
        try:
            self.write(self.capture(state, interrupted_by))
        except (StorageError, OSError) as error:  # OSError: a folder that may not be written to
            problem = str(error)
        (all_written,) = all_reduce_min(self._mesh.device, problem is None)
        if not all_written:
            raise StorageError(problem or "another rank could not write its part")
        self.remove_old(state.step)

    def capture(self, state: TrainingState, interrupted_by: str | None = None) -> dict[str, Any]:
        """Return a copy on the CPU of all that this rank saves of now.

        Where ranks have replicas, only rank 0 saves the model and its optimizer. Every rank must call
        this.
        """
        content: dict[str, Any] = {"step": state.step, "at": time.time(), "by": interrupted_by}
        content |= {"state": state.to_dict(), "unsaved": self.unsaved}
        parts = self._state_of_parts()  # of all ranks, also if this one has something unsaved
        if self.unsaved is None:
            content |= plain_copy(parts, "checkpoint", _copy_to_host)
        if self._mesh.device.type == "cuda":
            torch.cuda.synchronize()
        content["first_row"] = self._rows_on_disk()
        content["rows"] = state.rows(content["first_row"])
        return content

    def _state_of_parts(self) -> dict[str, Any]:
        """Return what training changes of the parts: nested dicts of tensors and plain values."""
        step, model = self._step, self._parts.model
        schedule = {} if step.schedule is None else step.schedule.state_dict()
        shared = {}
        if self._has_model:
            shared = {"model": model.state_dict(), "optimizer": step.optimizer.state_dict()}
        return {
            **shared,
            # Those that are in no state dict count too, and each rank may have its own.
            "buffers": dict(model.named_buffers()),
            "modes": {name: module.training for name, module in model.named_modules()},
            "requires_grad": {name: part.requires_grad for name, part in model.named_parameters()},
            # Without its functions, with which it is made again.
            "schedule": {key: item for key, item in schedule.items() if not callable(item)},
            "scaler": step.scaler.state(),
            "workload": self._parts.workload_state.save(),
            "random": generator_states(self._mesh.device),
        }

    def write(self, content: dict[str, Any]) -> None:
        """Write what `capture` returned and seal it.

        A thread may call it. Raises StorageError and OSError.
        """
        folder = self._step_folder(content["step"])
        path, seal_path = folder / f"rank{self._rank}.pt", self._seal_path(content["step"])
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            seal_path.unlink(missing_ok=True)  # of another attempt
            self._append_rows(content.pop("first_row"), content.pop("rows"))
            with path.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            seal = RankSeal(
                sha256=file_digest(path), conditions=self._conditions, unsaved=content["unsaved"]
            )
            write_atomically(seal_path, sealed_text(asdict(seal)))
            fsync_folder(self._folder)

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

    @cached_property
    def unsaved(self) -> str | None:
        """What training has changed by the first save and no checkpoint has; None if trials can resume."""
        problem = find_changes(self._before_training, describe_unsaved(self._parts))
        try:
            plain_copy(self._state_of_parts(), "checkpoint", lambda tensor: tensor)
        except NotApplied as error:
            problem = problem or str(error)
        if problem is not None:
            print(f"an attempt that is stopped starts again from step 0: {problem}", flush=True)
        return problem

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
            lost_seconds = max(0.0, time.time() - content["at"])
            interruption = Interruption(
                step=step, at=content["at"], signal=content["by"], lost_seconds=lost_seconds
            )
            state.interruptions.append(interruption)
        if self._rank == 0:  # what one rank says is enough
            state.refused_checkpoints = [*dict.fromkeys([*state.refused_checkpoints, *faults])]

    def _newest_common_step(self, faults: list[str]) -> int:
        """Return the newest step whose files all ranks hold, -1 if there is none.

        `faults` gets why this rank has passed over newer ones, a line each.
        """
        checkpoints = self._newest_first()
        while True:
            step = next((step for step in checkpoints if self._is_sound(step, faults)), -1)
            lowest, negated_highest = all_reduce_min(self._mesh.device, step, -step)
            if lowest == -negated_highest:
                # Of a newer one, a part of this attempt would be taken together with parts of an earlier.
                for newer in (step for step in self._newest_first() if step > lowest):
                    self._seal_path(newer).unlink(missing_ok=True)
                return lowest
            if step > lowest:
                faults.append(f"{self._step_folder(step)}: another rank can't resume from it")
            checkpoints = [step for step in checkpoints if step <= lowest]

    def _is_sound(self, step: int, faults: list[str]) -> bool:
        """Return whether this rank can resume from its own file of a checkpoint; else say why not."""
        folder, name = self._step_folder(step), f"rank{self._rank}.pt"
        seal_path = self._seal_path(step)
        if not seal_path.exists():  # the save was never finished
            return False
        try:
            seal = decode_file(RankSeal, seal_path, SEAL_FORMAT)
            fault = seal.unsaved or find_mismatch(seal.conditions, self._conditions)
            if fault is None and file_digest(folder / name) != seal.sha256:
                fault = f"{name}: found another SHA-256 than its seal has: it is damaged"
            if fault is None and self._rows_on_disk() < step:
                fault = f"{self._series_path.name}: found {self._rows_on_disk()} steps"
        except (BadInput, OSError) as error:
            fault = one_line(error)
        if fault is not None:
            faults.append(f"{folder}: {fault}")
        return fault is None

    def _restore(self, step: int) -> Mapping[str, Any]:
        """Restore all parts of the trial; return what this rank has saved."""
        folder = self._step_folder(step)
        content = torch.load(folder / f"rank{self._rank}.pt", "cpu", weights_only=True)
        shared = content
        if not self._has_model:
            shared = torch.load(folder / "rank0.pt", "cpu", weights_only=True)
        # A trial that had done fewer steps was still arranging itself.
        for _ in range(min(step, self._parts.strategy.arranging_steps)):
            self._rehearse_step()
        model, optimizer = self._parts.model, self._step.optimizer
        _load_model(model, shared["model"], content["buffers"])
        for name, module in model.named_modules():
            module.training = content["modes"][name]
        optimizer.load_state_dict(_placed(optimizer, shared["optimizer"]))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(content["requires_grad"][name])
        if self._step.schedule is not None:
            self._step.schedule.load_state_dict(content["schedule"])
        self._step.scaler.restore(content["scaler"])
        self._parts.workload_state.load(content["workload"])
        restore_generators(content["random"], self._mesh.device)
        restored: Mapping[str, Any] = content
        return restored

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


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    sharded = {name: _sharded_like(present[name], value) for name, value in saved.items()}
    model.load_state_dict(sharded)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def _sharded_like(tensor: Any, saved: Any) -> Any:
    """Return a saved value as it was: a rank's part of a sharded tensor as a DTensor like `tensor`."""
    if not (isinstance(saved, dict) and set(saved) == {SHARD}):
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


def _placed(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state of an optimizer with its tensors sharded and placed as the optimizer's are."""
    parameters = [part for group in optimizer.param_groups for part in group["params"]]
    states = {}
    for number, values in saved["state"].items():
        like = parameters[number]
        states[number] = {key: _sharded_like(like, value) for key, value in values.items()}
    groups = [dict(group) for group in saved["param_groups"]]
    for group, present in zip(groups, optimizer.param_groups, strict=True):
        for key, value in group.items():
            if isinstance(value, Tensor):  # such as a rate that CUDA graphs read
                group[key] = value.to(present[key].device)
    return {"state": states, "param_groups": groups}
