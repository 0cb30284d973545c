"""Checkpoints, from which a trial resumes to the same bits as if it had never stopped.

A checkpoint is a folder `step-N` with a file of each rank (see `harness.training.shards`), and
`manifest.json`, which seals them. That of the best evaluation also has `model.safetensors`, the
unsharded weights, for whoever wants to use the model.

A checkpoint is whole or not there at all: it is written aside and renamed. The one before it stays,
in case it is damaged later. Nothing in it depends on how parameters were sharded.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from harness.core.errors import BadCheckpoint, BadFile, StorageError
from harness.core.paths import TrialFolder, fsync_folder
from harness.core.storage import writing
from harness.records.decode import decode_file
from harness.records.record import Interruption
from harness.training.manifest import (
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    WEIGHTS_FILE,
    CheckpointManifest,
    CheckpointOrigin,
    SealedFile,
    checkpoint_name,
    describe_file,
    find_fault,
    part_name,
    write_manifest,
)
from harness.training.mesh import ParallelMesh
from harness.training.precision import Scaler
from harness.training.shards import (
    CheckpointPart,
    Offsets,
    SavedParts,
    SharedTensor,
    Staging,
    block_of,
    pack,
    write_part,
)
from harness.training.state import TrainingState, join_states
from harness.training.strategies.base import Strategy
from harness.training.workload_state import WorkloadState

# Returns values of a parameter: its name, where the block begins, and its shape.
ReadBlock = Callable[[str, Offsets, Sequence[int]], Tensor]
KEPT = 2  # checkpoints of a folder, where nothing else is said


@dataclass(frozen=True, kw_only=True)
class ModelCopy:
    """A model and its workload's own state in memory, as one rank has them."""

    blocks: Mapping[str, Tensor]  # of the parameters
    buffers: Mapping[str, Tensor]
    modes: Mapping[str, bool]
    workload: dict[str, Any]


@dataclass(kw_only=True)
class Checkpointer:
    """Saves and restores everything that a resumed trial depends on; every rank must call both."""

    folder: TrialFolder  # where checkpoints are looked for
    mesh: ParallelMesh
    strategy: Strategy  # which knows what ranks must agree on
    model: nn.Module  # without the strategy's wrapper
    optimizers: Sequence[Optimizer]  # of each turn of a step, in their order
    schedules: Sequence[LRScheduler | None]  # of each optimizer; None for a constant learning rate
    scaler: Scaler  # whose loss scale is saved too
    workload_state: WorkloadState
    origin: CheckpointOrigin  # of what this process saves
    resumes_from: CheckpointOrigin  # and no other: its own, if not another trial's
    # Of the best model, where the disk did not take it. An attempt that resumes from a later step
    # would do without it, so nothing is saved meanwhile.
    best_copy: ModelCopy | None = None

    # Saving

    def save(
        self,
        folder: Path,
        state: TrainingState,
        *,
        interrupted_by: str | None = None,
        with_weights: bool = False,
        keep: int = KEPT,
    ) -> None:
        """Write `folder/step-N`, and remove all but the newest `keep`.

        `interrupted_by` is the name of the signal that asked for it, None for one taken in passing.
        `with_weights` writes the whole weights too. Raises StorageError at every rank if it
        can't be written at one of them.
        """
        weights = self.strategy.full_weights(self.model) if with_weights else None
        not_resumable = self.workload_state.missing_from_checkpoints()
        part = Staging(self.mesh.device).copy(self.capture(state, interrupted_by, with_weights))
        aside = folder_aside(folder, state.step)
        outcome: dict[str, Any] | str
        try:
            outcome = asdict(self.write(aside, part))
            if weights is not None and self.mesh.ranks.is_rank_0:
                with writing(aside / WEIGHTS_FILE):
                    save_file(weights, aside / WEIGHTS_FILE)
        except (StorageError, OSError) as error:  # OSError: a folder that may not be written to
            outcome = str(error)
        outcomes = self.mesh.gather(outcome)
        problem: str | None = None
        if self.mesh.ranks.is_rank_0:
            try:
                self.commit(folder, state.step, outcomes, keep=keep, not_resumable=not_resumable)
            except (StorageError, OSError) as error:
                problem = str(error)
        # All ranks raise it, or the others would only report a lost connection to rank 0.
        problem = self.mesh.broadcast_from_rank_0(problem)
        if problem is not None:
            raise StorageError(problem)

    def capture(
        self, state: TrainingState, interrupted_by: str | None = None, with_weights: bool = False
    ) -> CheckpointPart:
        """Return this rank's part of a checkpoint of now, whose tensors training goes on to change.

        It has no parameters `with_weights`, as another file has them then.
        """
        parameters = {}
        if not with_weights:
            names = {name for name, _ in self.model.named_parameters()}
            values = self.model.state_dict()
            for name, value in values.items():
                if name in names:
                    parameters[name] = SharedTensor(name, value)
        optimizers = []
        for number, optimizer in enumerate(self.optimizers):
            content = self.strategy.optimizer_state(self.model, optimizer)
            content["state"] = _share(content["state"], f"optimizer {number}")
            optimizers.append(content)
        schedules: list[dict[str, Any] | None] = []
        for schedule in self.schedules:
            if schedule is None:
                schedules.append(None)
                continue
            kept = {}
            for name, value in schedule.state_dict().items():
                if not callable(value):  # functions are those that the schedule is made with again
                    kept[name] = value
            schedules.append(kept)
        content = {
            "step": state.step,
            "parameters": parameters,
            "optimizers": optimizers,
            "schedules": schedules,
            **self._rank_content(state, interrupted_by),
        }
        return pack(content, self.mesh)

    def _rank_content(self, state: TrainingState, interrupted_by: str | None) -> dict[str, Any]:
        """Return the part of a checkpoint that differs between ranks: plain values and tensors."""
        # A workload may thaw a part of its model while it trains.
        modes = {name: module.training for name, module in self.model.named_modules()}
        requires_grad = {
            name: parameter.requires_grad for name, parameter in self.model.named_parameters()
        }
        return {
            "state": state.to_dict(),
            "scaler": self.scaler.state(),
            "workload": self.workload_state.capture(),
            "at": time.time(),
            "by": interrupted_by,
            "random": _random_state(),
            "buffers": dict(self.model.named_buffers()),
            "modes": modes,
            "requires_grad": requires_grad,
        }

    def write(
        self, aside: Path, part: CheckpointPart, is_cancelled: Callable[[], bool] = lambda: False
    ) -> SealedFile:
        """Write this rank's part to a folder aside, and return its size and digest.

        Raises StorageError and SavingCancelled.
        """
        path = aside / part_name(self.mesh.ranks.rank)
        with writing(path):
            aside.mkdir(parents=True, exist_ok=True)
        return write_part(path, part, is_cancelled)

    def commit(
        self,
        folder: Path,
        step: int,
        outcomes: Sequence[Mapping[str, Any] | str],
        *,
        keep: int,
        not_resumable: str | None,
    ) -> None:
        """Seal the parts of all ranks and rename them into place, then remove all but `keep`.

        `outcomes` are what `write` returned at each rank, as mappings, or why it failed. Raises
        StorageError for the first of these. `not_resumable` is why no attempt can resume from it, if
        none can. For rank 0 alone.

        Everything is flushed to the disk before that, or a loss of power could leave the new name
        without its content. The new name is flushed before others are removed: otherwise neither
        might be left.
        """
        path, aside = folder / checkpoint_name(step), folder_aside(folder, step)
        try:
            files = {}
            for rank, outcome in enumerate(outcomes):
                if isinstance(outcome, str):
                    raise StorageError(outcome)
                files[part_name(rank)] = SealedFile(**outcome)
            with writing(path):
                if (aside / WEIGHTS_FILE).exists():
                    files[WEIGHTS_FILE] = describe_file(aside / WEIGHTS_FILE)
                manifest = CheckpointManifest(
                    step=step,
                    ranks=len(outcomes),
                    origin=self.origin,
                    files=files,
                    not_resumable=not_resumable,
                )
                write_manifest(aside, manifest)
                for written in aside.iterdir():
                    _flush(written)
                fsync_folder(aside)
                _replace_folder(aside, path)
                fsync_folder(folder)
        except (StorageError, OSError):
            shutil.rmtree(aside, ignore_errors=True)  # what the disk has taken is of no use
            raise
        _keep_newest(folder, path, keep)

    # Resuming

    def resume(self, state: TrainingState, rehearse_step: Callable[[], None]) -> None:
        """Restore the trial's newest checkpoint that is sound, if it has one.

        It goes into `state` and into all that this object was made with. `state` also gets the
        interruption that this puts an end to, and at rank 0 the checkpoints that were passed over.
        `rehearse_step()` computes a forward and a backward, and drops the gradients:
        `Strategy.arranging_steps` says what for. Raises BadCheckpoint.
        """
        path: Path | None = None
        faults: list[str] = []
        if self.mesh.ranks.is_rank_0:
            folders = self.folder.best_checkpoints, self.folder.resume_checkpoints
            for folder in folders:
                # What an attempt that was killed had not finished to write.
                for aside in folder.glob(".*step-*"):
                    shutil.rmtree(aside, ignore_errors=True)
            path, faults = find_sound(self.resumes_from, *folders)
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
        parts = open_checkpoint(path)
        self._load_model(parts, parts.content(self.mesh.ranks.rank))

    def copy_model(self) -> ModelCopy:
        """Return a copy of what `restore_model` restores, for where no disk takes it."""
        blocks = {name: block.clone() for name, block, _ in self._parameter_blocks()}
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        modes = {name: module.training for name, module in self.model.named_modules()}
        workload = self.workload_state.save()
        return ModelCopy(blocks=blocks, buffers=buffers, modes=modes, workload=workload)

    def restore_copy(self, copy: ModelCopy) -> None:
        """Restore what `copy_model` has returned; do not train after it."""
        self._fill_model(lambda name, *_: copy.blocks[name], copy.buffers, copy.modes)
        self.workload_state.load(copy.workload)

    def _load_model(self, parts: SavedParts, content: Mapping[str, Any]) -> None:
        """Restore parameters, buffers, the modules' modes and the workload's own state.

        `content` is what this rank has saved.
        """
        self._fill_model(parts.block, content["buffers"], content["modes"])
        self.workload_state.load(parts.with_values(content["workload"]))

    @torch.no_grad()
    def _fill_model(
        self, block_by: ReadBlock, buffers: Mapping[str, Tensor], modes: Mapping[str, bool]
    ) -> None:
        """Restore parameters, buffers and the modules' modes; `block_by` returns values of a block."""
        for name, block, offsets in self._parameter_blocks():
            block.copy_(block_by(name, offsets, block.shape))
        # Buffers that are in no state dict count too, and each rank may have its own.
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])
        for name, module in self.model.named_modules():
            module.training = modes[name]

    def _parameter_blocks(self) -> Iterator[tuple[str, Tensor, Offsets]]:
        """Yield each parameter's name, the block of it that this rank has, and where that begins."""
        names = {name for name, _ in self.model.named_parameters()}
        for name, value in self.model.state_dict().items():  # as ranks shard them
            if name in names:
                yield name, *block_of(value)

    def _content(self, parts: SavedParts) -> dict[str, Any]:
        """Return what this rank has saved, or its share of what another number of ranks have.

        Raises BadCheckpoint for a strategy with a state that can't be shared out in another way.
        """
        rank, saved_ranks = self.mesh.ranks.rank, parts.ranks
        if saved_ranks == self.mesh.ranks.world_size:
            return parts.content(rank)
        contents = [parts.content(saved_rank) for saved_rank in range(saved_ranks)]
        if any(content["strategy"] for content in contents):
            raise BadCheckpoint(
                f"{parts.folder}: ranks: found {saved_ranks}; allowed: {self.mesh.ranks.world_size}:"
                " the strategy has a state of each rank"
            )
        # What a rank keeps for itself is rank 0's then, as a forward of DDP has all ranks take it.
        shared = contents[0]
        shared["state"] = join_states([content["state"] for content in contents], rank)
        shared["random"] = contents[rank % saved_ranks]["random"]
        return shared

    def _restore(self, path: Path, rehearse_step: Callable[[], None]) -> dict[str, Any]:
        """Restore all parts of the trial; return what this rank has saved."""
        parts = open_checkpoint(path)
        content = self._content(parts)
        # A trial that had done fewer steps was still arranging itself.
        for _ in range(min(content["step"], self.strategy.arranging_steps)):
            rehearse_step()
        self._load_model(parts, content)
        parameters = dict(self.model.named_parameters())
        for optimizer, saved in zip(self.optimizers, content["optimizers"], strict=True):
            if saved["state"]:
                _check_parameters(path, parameters, optimizer, saved)
            for name, values in saved["state"].items():
                parameters[name].requires_grad_(True)  # or torch would drop its state
                for key, value in values.items():
                    if isinstance(value, SharedTensor):
                        values[key] = _read_like(parameters[name], parts, value.name)
            self.strategy.load_optimizer_state(self.model, optimizer, saved)
        for name, requires_grad in content["requires_grad"].items():
            parameters[name].requires_grad_(requires_grad)
        for schedule, schedule_state in zip(self.schedules, content["schedules"], strict=True):
            if schedule:
                schedule.load_state_dict(schedule_state)
        self.scaler.restore(content["scaler"])
        _restore_random_state(content["random"])
        return content


def _check_parameters(
    path: Path, parameters: Mapping[str, Tensor], optimizer: Optimizer, saved: Mapping[str, Any]
) -> None:
    """Raise BadCheckpoint if an optimizer has parameters that the saved one did not have."""
    trained = {part for group in optimizer.param_groups for part in group["params"]}
    names = {name for name, parameter in parameters.items() if parameter in trained}
    saved_names = {name for group in saved["param_groups"] for name in group["params"]}
    missing = sorted(names - saved_names)
    if missing:
        raise BadCheckpoint(
            f"{path}: found an optimizer without {missing[0]}; needed: all that train"
        )


def _share(state: Mapping[Any, Any], prefix: str) -> dict[Any, Any]:
    """Return an optimizer's state with its tensors as those that all ranks share, by their names."""
    shared: dict[Any, Any] = {}
    for name, values in state.items():
        shared[name] = {}
        for key, value in values.items():
            if isinstance(value, Tensor):
                value = SharedTensor(f"{prefix}: {name} ({key})", value)
            shared[name][key] = value
    return shared


def _read_like(parameter: Tensor, parts: SavedParts, name: str) -> Tensor:
    """Return a tensor of an optimizer's state, on the CPU unless it is sharded.

    If it has its parameter's shape, it is sharded as that is, and has its memory format: fused
    optimizers pair elements by their addresses.
    """
    if parts.shape(name) != tuple(parameter.shape):
        return parts.whole(name)
    block, offsets = block_of(parameter)
    values = parts.block(name, offsets, block.shape)
    local = torch.empty_like(block, dtype=values.dtype, device="cpu").copy_(values)
    if not hasattr(parameter, "to_local"):
        return local
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local.to(block.device),
        parameter.device_mesh,  # type: ignore[attr-defined]
        parameter.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def open_checkpoint(path: Path) -> SavedParts:
    """Return the parts of a checkpoint that was found sound; raises BadCheckpoint."""
    try:
        manifest = decode_file(CheckpointManifest, path / MANIFEST_FILE, MANIFEST_FORMAT)
    except BadFile as error:
        raise BadCheckpoint(str(error)) from error
    whole = path / WEIGHTS_FILE if WEIGHTS_FILE in manifest.files else None
    return SavedParts([path / part_name(rank) for rank in range(manifest.ranks)], whole)


def folder_aside(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step is written before it is whole."""
    return folder / f".{checkpoint_name(step)}"


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


def _keep_newest(folder: Path, path: Path, keep: int) -> None:
    """Remove all checkpoints of a folder but `path`, which is new, and those just before it.

    Those after it were passed over when the trial resumed.
    """
    earlier = [other for other in _newest_first(folder) if other.name <= path.name]
    _keep(earlier[:keep], folder)


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


def _flush(path: Path) -> None:
    """Flush a file's content to the disk."""
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
