"""Checkpoints, from which a trial resumes to the same bits as if it had never stopped.

A checkpoint is a folder `step-N` with a file of each rank, `rank<R>.pt`: what `torch.save` makes of
the rank's own tensors and plain values. Next to it, a seal says how large it is, its SHA-256 and the
conditions it was written under. The seal is written last, so a checkpoint is whole when all ranks have
theirs. Each rank reads and checks its own file, and the ranks agree on the newest step that all hold.

Nothing in a file is code: it is loaded with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.errors import BadInput, StorageError, one_line
from harness.core.paths import fsync_folder, write_atomically
from harness.core.storage import writing
from harness.records.decode import FileFormat, decode_file
from harness.records.record import Interruption
from harness.records.seal import sealed_text
from harness.training.build import TrialParts, micro_batch
from harness.training.conditions import describe_conditions, find_mismatch
from harness.training.series import SeriesFile
from harness.training.state import TrainingState
from harness.training.unsaved import UnsavedState

SEAL_SCHEMA = 4
SEAL_FORMAT = FileFormat(name="checkpoint's seal", schema=SEAL_SCHEMA, is_sealed=True)
KEPT = 2  # checkpoints of a folder, where nothing else is said
SHARD = "shard"  # the key of a dict that stands for this rank's part of a sharded tensor
PLAIN_TYPES = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, kw_only=True)
class RankSeal:
    """The content of `rank<R>.seal`."""

    schema: int = SEAL_SCHEMA
    size: int  # bytes of the rank's file
    sha256: str
    conditions: Mapping[str, str] = field(default_factory=dict)
    # Why no attempt can resume from it although it is whole; None if one can.
    unsaved: str | None = None


class Checkpointer:
    """Saves and restores everything that a resumed trial depends on; every rank must call both."""

    def __init__(self, parts: TrialParts) -> None:
        """Look at the parts as they are before training, and find the files of this rank."""
        self.mesh, self.model = parts.mesh, parts.model
        self._parts, self._step = parts, parts.train_step
        self._rank = parts.mesh.ranks.rank
        self._has_model = parts.strategy.shards_parameters or self._rank == 0
        self._checkpoints = parts.folder.resume_checkpoints
        self._series = SeriesFile(self._checkpoints / f"rank{self._rank}.series")
        # What training changes and no checkpoint has.
        self._unsaved_state = UnsavedState(
            parts.workload,
            parts.splits.train,
            parts.model,
            self._step.optimizer,
            uses_workers=parts.axes.num_workers > 0,
        )
        assignment = parts.assignment  # the conditions must be the same for a trial to resume
        self._conditions = describe_conditions(
            assignment.trial.id, assignment.packages, parts.mesh.device
        )

    # Saving

    def save(
        self, state: TrainingState, *, interrupted_by: str | None = None, keep: int = KEPT
    ) -> None:
        """Write a checkpoint of now and wait for it; remove all but the newest `keep`.

        `interrupted_by` is the name of the signal that asked for it. Raises StorageError at every
        rank if one of them can't write its part.
        """
        problem: str | None = None
        try:
            self.write(self.capture(state, interrupted_by))
        except (StorageError, OSError) as error:  # OSError: a folder that may not be written to
            problem = str(error)
        (all_written,) = self.mesh.all_reduce_min(problem is None)
        if not all_written:
            raise StorageError(problem or "another rank could not write its part")
        self.remove_old(state.step, keep)

    def capture(self, state: TrainingState, interrupted_by: str | None = None) -> dict[str, Any]:
        """Return a copy on the CPU of all that this rank saves of now.

        Where ranks have replicas, only rank 0 saves the model and its optimizer. Every rank must call
        this.
        """
        modules, parameters = self.model.named_modules(), self.model.named_parameters()
        schedule = self._step.schedule
        schedule_state = {} if schedule is None else schedule.state_dict()
        content = {
            "step": state.step,
            "at": time.time(),
            "by": interrupted_by,
            "state": state.to_dict(),
            "model": self.model.state_dict() if self._has_model else {},
            # Those that are in no state dict count too, and each rank may have its own.
            "buffers": dict(self.model.named_buffers()),
            "modes": {name: module.training for name, module in modules},
            "requires_grad": {name: parameter.requires_grad for name, parameter in parameters},
            "optimizer": self._step.optimizer.state_dict() if self._has_model else {},
            # Without its functions, with which it is made again.
            "schedule": {key: item for key, item in schedule_state.items() if not callable(item)},
            "scaler": self._step.scaler.state(),
            "workload": self._parts.workload_state.save(),
            "random": _random_state(),
            "unsaved": self.unsaved,
        }
        copied: dict[str, Any] = _copied(content)
        if self.mesh.device.type == "cuda":
            torch.cuda.synchronize()
        copied["first_row"] = self._series.written
        copied["rows"] = state.rows(self._series.written)
        return copied

    def write(self, content: dict[str, Any]) -> int:
        """Write what `capture` returned and seal it; return its size in bytes.

        A thread may call it. Raises StorageError and OSError.
        """
        folder = self._step_folder(content["step"])
        path, seal_path = folder / f"rank{self._rank}.pt", self._seal_path(content["step"])
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            seal_path.unlink(missing_ok=True)  # of another attempt
            self._series.append(content.pop("first_row"), content.pop("rows"))
            with path.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            size, digest = describe_file(path)
            unsaved = content["unsaved"]
            seal = RankSeal(size=size, sha256=digest, conditions=self._conditions, unsaved=unsaved)
            write_atomically(seal_path, sealed_text(asdict(seal)))
            fsync_folder(self._checkpoints)
        return size

    def remove_old(self, step: int, keep: int) -> None:
        """Remove all checkpoints but that of `step`, which all ranks have written, and those before it.

        Later ones were passed over when the trial resumed.
        """
        if self._rank != 0:
            return
        checkpoints = self._newest_first()
        kept = [other for other in checkpoints if other <= step][:keep]
        for other in checkpoints:
            if other not in kept:
                shutil.rmtree(self._step_folder(other), ignore_errors=True)

    @cached_property
    def unsaved(self) -> str | None:
        """What training has changed by the first save and no checkpoint has; None if trials can resume."""
        problem = self._unsaved_state.find()
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
        if step >= 0:
            content = self._restore(step, state)
            state.resume_from(content["state"], self._series.read(step))
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
            lowest, negated_highest = self.mesh.all_reduce_min(step, -step)
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
            if fault is None and describe_file(folder / name) != (seal.size, seal.sha256):
                fault = f"{name}: found another size or SHA-256 than its seal has: it is damaged"
            if fault is None and self._series.steps() < step:
                fault = f"{self._series.path.name}: found {self._series.steps()} steps"
        except (BadInput, OSError) as error:
            fault = one_line(error)
        if fault is not None:
            faults.append(f"{folder}: {fault}")
        return fault is None

    def _restore(self, step: int, state: TrainingState) -> Mapping[str, Any]:
        """Restore all parts of the trial; return what this rank has saved."""
        folder = self._step_folder(step)
        content = torch.load(folder / f"rank{self._rank}.pt", "cpu", weights_only=True)
        shared = content
        if not self._has_model:
            shared = torch.load(folder / "rank0.pt", "cpu", weights_only=True)
        # A trial that had done fewer steps was still arranging itself.
        for _ in range(min(step, self._parts.strategy.arranging_steps)):
            self._rehearse_step(state)
        self._load_model(shared["model"], content["buffers"])
        for name, module in self.model.named_modules():
            module.training = content["modes"][name]
        self._step.optimizer.load_state_dict(_placed(self._step.optimizer, shared["optimizer"]))
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(content["requires_grad"][name])
        if self._step.schedule is not None:
            self._step.schedule.load_state_dict(content["schedule"])
        self._step.scaler.restore(content["scaler"])
        self._parts.workload_state.load(content["workload"])
        _restore_random_state(content["random"])
        restored: Mapping[str, Any] = content
        return restored

    def _rehearse_step(self, state: TrainingState) -> None:
        """Compute the forward and backward of one micro-batch and drop the gradients.

        A strategy that arranges itself in its first steps needs this before a checkpoint is loaded.
        What it changes besides, random numbers and buffers, is then overwritten by the checkpoint.
        """
        parts = self._parts
        seconds_before = parts.compiler.seconds
        batch = micro_batch(parts.splits.train, parts.axes, parts.mesh)
        self._step.loss(self._step.module, batch).backward()  # type: ignore[no-untyped-call]
        self._step.optimizer.zero_grad(set_to_none=True)
        # The first forward has compiled the model, in the time of "build".
        compile_seconds = parts.compiler.seconds - seconds_before
        if compile_seconds:
            state.add_seconds("compile", compile_seconds)
            state.add_seconds("build", -compile_seconds)

    @torch.no_grad()
    def _load_model(self, saved: Mapping[str, Any], buffers: Mapping[str, Tensor]) -> None:
        """Restore the model's whole state, and the buffers that this rank had."""
        make_buffers(self.model, buffers, saved)
        present = self.model.state_dict()
        for name, value in saved.items():
            present[name] = _sharded_like(present.get(name), value)
        self.model.load_state_dict(present)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])

    # Folders

    def _step_folder(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self._checkpoints / f"step-{step:09d}"

    def _seal_path(self, step: int) -> Path:
        """Return this rank's seal of a checkpoint."""
        return self._step_folder(step) / f"rank{self._rank}.seal"

    def _newest_first(self) -> list[int]:
        """Return the steps of all checkpoints, the greatest first."""
        folders = self._checkpoints.glob("step-*")
        return sorted((int(path.name.removeprefix("step-")) for path in folders), reverse=True)


def make_buffers(model: nn.Module, buffers: Mapping[str, Tensor], saved: Mapping[str, Any]) -> None:
    """Give a model the buffers that training has made or has changed in their shape.

    `saved` is the model's state, by which they are persistent or not.
    """
    present = dict(model.named_buffers())
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    for path, buffer in buffers.items():
        if path in present and present[path].shape == buffer.shape:
            continue
        parent, _, name = path.rpartition(".")
        made = buffer.to(device, copy=True)
        model.get_submodule(parent).register_buffer(name, made, persistent=path in saved)


def describe_file(path: Path) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _copied(value: Any) -> Any:
    """Return a copy of a state on the CPU, of what `torch.load` reads without running any code.

    Of a sharded tensor it is this rank's part. Functions and other objects are left out: `UnsavedState`
    says what that means for the trial.
    """
    if hasattr(value, "to_local"):  # a DTensor
        return {SHARD: _copied(value.to_local())}
    if isinstance(value, Tensor) and value.is_cuda:
        copy = torch.empty_like(value, device="cpu", pin_memory=True)
        return copy.copy_(value.detach(), non_blocking=True)
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_copied(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, PLAIN_TYPES) else None


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


def _random_state() -> dict[str, Any]:
    """Return the states of all generators of this process, as values that torch may load."""
    algorithm, keys, *position = np.random.get_state()
    return {
        "python": random.getstate(),
        # A NumPy array would need pickle, which `weights_only=True` refuses.
        "numpy": [algorithm, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *position],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    """Restore the states that `_random_state` returned."""
    algorithm, keys, *position = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *position))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
