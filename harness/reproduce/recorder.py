"""Records the values that a rank computes in training: the trace of a trial that is not measured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import xxhash
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.records.trace import (
    AFTER_MICRO_STEPS,
    Mark,
    Recording,
    combine,
    encode,
    trace_path,
    value_name,
    values_path,
)
from harness.training.build import TrialParts
from harness.training.digests import (
    Named,
    add_tensor,
    dense_copy,
    full_tensor,
    named_tensors,
    random_states,
    workload_state,
)
from harness.training.state import TrainingState
from harness.training.step import observe_nothing
from harness.training.train import Hooks
from workloads.base import Workload

# What says how an optimizer computes and not what, and what schedules add to its settings.
NO_SETTINGS = (
    "params", "foreach", "fused", "capturable", "differentiable",
    "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum",
)  # fmt: skip


@dataclass(eq=False)
class Recorder(Hooks):
    """Writes the trace of one rank. To be used as a context, around the training."""

    parts: TrialParts
    state: TrainingState
    recording: Recording

    def __post_init__(self) -> None:
        self._folder = self.parts.folder.path
        self._file = trace_path(self._folder, self.parts.mesh.rank).open("wb")
        self._values: dict[str, Tensor] = {}
        self._step = self._micro_step = 0  # that are under way, counted from 1
        self._local_gradients: list[Mark] = []  # of the backward under way, in no fixed order

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        for evaluation in self.state.evaluations:
            self._step, self._micro_step = evaluation.step, AFTER_MICRO_STEPS
            metrics = []
            for name, value in evaluation.all_metrics.items():
                metrics.append((name, torch.tensor(value, dtype=torch.float64)))
            self._write("evaluation", metrics)
        self._file.close()
        if self.recording.values:
            save_file(self._values, values_path(self._folder, self.parts.mesh.rank))

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Return the step up to which all steps are recorded, or none is."""
        parts = self.parts
        recording = self.recording
        step_before_last = recording.last_step - 1
        if not recording.all_steps and state.step < step_before_last:
            return min(stop, step_before_last)
        if parts.train_step.observe is observe_nothing:
            parts.train_step.observe = self._observe
            # Of what this rank computes, before ranks share it; FSDP2's parameters have no such moment.
            for name, parameter in parts.model.named_parameters():
                if parameter.requires_grad:
                    hook = partial(self._on_local_gradient, name)
                    parameter.register_hook(hook)  # type: ignore[no-untyped-call]
        return stop

    def _observe(self, moment: str, micro_step: int, value: Any) -> None:
        """Write the values of a moment of a training step, see `harness.training.step.Observer`."""
        parts = self.parts
        model, optimizer = parts.model, parts.optimizer
        match moment:
            case "indices":
                self._step, self._micro_step = parts.train_step.step + 1, 1
                self._write("parameters", model.named_parameters())
                if parts.mesh.rank == 0:  # DDP's other ranks get its buffers in the forward
                    self._write("buffers before", model.named_buffers())
                self._write("samples", [("sample ids", torch.tensor(value))])
            case "batch":
                self._micro_step = micro_step + 1
                self._local_gradients.clear()
                self._write("data", named_tensors(value, "batch"))
                self._write("random", random_states(parts.device))
            case "loss":
                self._write("forward", [("loss", value)])
                self._write("buffers", model.named_buffers())
            case "backward":
                self._write_marks(self._local_gradients)
            case "gradients":
                self._micro_step = AFTER_MICRO_STEPS
                self._write("all-reduce", gradients(model))
                self._write("optimizer settings", optimizer_settings(optimizer))
            case "optimizer":
                self._write("optimizer state", optimizer_state(model, optimizer))
                self._write("optimizer", model.named_parameters())
            case "after_step":
                if type(parts.workload).after_step is not Workload.after_step:
                    self._write("after_step", model.named_parameters())
                self._write("workload state", named_tensors(workload_state(parts.workload)))
                self._file.flush()

    def _on_local_gradient(self, name: str, gradient: Tensor) -> None:
        """Digest a gradient of the backward under way."""
        self._local_gradients.append(self._mark("backward", name, gradient))

    def _write(self, phase: str, tensors: Named) -> None:
        """Write the marks of a moment; sharded tensors are gathered, one at a time, as they may not fit."""
        marks = []
        for name, tensor in tensors:
            marks.append(self._mark(phase, name, full_tensor(tensor)))
        self._write_marks(marks)

    def _write_marks(self, marks: Sequence[Mark]) -> None:
        """Write the marks of a moment: one for each tensor, or one for all of them."""
        kept = [mark for mark in marks if mark.tensor not in self.recording.left_out]
        kept.sort(key=lambda mark: mark.name)
        if kept and not self.recording.tensors:
            digests = sorted((mark.name, mark.digest) for mark in kept)
            name, digest = combine(digests)
            kept = [replace(kept[0], name=name, digest=digest)]
        for mark in kept:
            self._file.write(encode(mark).encode())

    def _mark(self, phase: str, name: str, tensor: Tensor) -> Mark:
        """Return the mark of a tensor at this moment, and keep the tensor if that is asked for."""
        digest = xxhash.xxh3_128()
        add_tensor(digest.update, tensor)
        mark = Mark(self._step, self._micro_step, phase, name, digest.hexdigest())
        if self.recording.values:
            self._values[value_name(mark)] = dense_copy(tensor)
        return mark


def gradients(model: nn.Module) -> Named:
    """Yield the gradients that all ranks have summed up, by name."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield name, parameter.grad


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> Named:
    """Yield the tensors and numbers of the optimizer's state by name."""
    for name, parameter in model.named_parameters():
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, int | float):  # as optimizers of one's own keep their step
                value = torch.tensor(value, dtype=torch.float64)
            if isinstance(value, Tensor):
                yield f"{name} ({key})", value


def optimizer_settings(optimizer: Optimizer) -> Named:
    """Yield the numbers and switches that an optimizer computes with, by name.

    A number is the same whatever its type, and a switch is 0 or 1.
    """
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key not in NO_SETTINGS:
                with suppress(RuntimeError, TypeError, ValueError):  # texts and None
                    yield f"group {number} ({key})", torch.as_tensor(value, dtype=torch.float64)
