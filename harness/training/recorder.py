"""Records the values that a rank computes in training: the trace of a trial that is not measured.

Recorded steps are segments of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.records.trace import (
    AFTER_MICRO_STEPS,
    Mark,
    Recording,
    combine,
    encode,
    value_name,
    values_path,
)
from harness.training.build import TrialParts
from harness.training.digests import add_tensor, full_tensor
from harness.training.ranks import random_states
from harness.training.state import TrainingState
from harness.training.step import observe_nothing
from harness.training.train import Hooks
from workloads.base import Workload

# What says how an optimizer computes and not what, and what schedules add to its settings.
NO_SETTINGS = (
    "params", "foreach", "fused", "capturable", "differentiable",
    "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum",
)  # fmt: skip
Named = Iterable[tuple[str, Tensor]]  # tensors and what the model or the optimizer calls them


class Recorder(Hooks):
    """Writes the trace of one rank. To be used as a context, around the training."""

    def __init__(
        self, parts: TrialParts, state: TrainingState, recording: Recording, path: Path
    ) -> None:
        """Record to the file `path`, and next to it the values if `recording` asks for them."""
        self._parts = parts
        self._state = state
        self._recording = recording
        self._rank = parts.mesh.rank
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._values: dict[str, Tensor] = {}
        self._micro_step = 0  # that is under way, counted from 1
        self._step = 0  # that is under way, counted from 1
        self._local_gradients: list[tuple[str, str]] = []  # names and digests

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._record_evaluations()
        self._file.close()
        if self._recording.values:
            from safetensors.torch import save_file

            save_file(self._values, values_path(self._path.parent, self._rank))

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Return the step up to which all steps are recorded, or none is."""
        parts, last_step = self._parts, self._recording.last_step
        if not self._recording.all_steps and state.step + 1 < last_step:
            return min(stop, last_step - 1)
        if parts.train_step.observe is observe_nothing:
            parts.train_step.observe = self._observe
            parts.strategy.watch_local_gradients(parts.model, self._on_local_gradient)
        return stop

    def _observe(self, moment: str, micro_step: int, value: Any) -> None:
        """Write the values of a moment of a training step, see `harness.training.step.Observer`."""
        model, optimizer = self._parts.model, self._parts.optimizer
        match moment:
            case "indices":
                self._step, self._micro_step = self._parts.train_step.step + 1, 1
                self._write("parameters", model.named_parameters())
                if self._rank == 0:  # DDP's other ranks get its buffers in the forward
                    self._write("buffers before", model.named_buffers())
                self._write("samples", [("sample ids", torch.tensor(value))])
            case "batch":
                self._micro_step = micro_step + 1
                self._local_gradients.clear()
                self._write("data", ((f"batch[{n}]", part) for n, part in enumerate(value)))
                self._write("random", random_states(self._parts.device))
            case "loss":
                self._write("forward", [("loss", value)])
                self._write("buffers", model.named_buffers())
            case "backward":
                self._write_digests("backward", self._local_gradients)
            case "gradients":
                self._micro_step = AFTER_MICRO_STEPS
                self._write("all-reduce", gradients(model))
                settings = optimizer_settings(optimizer)
                self._write("optimizer settings", [*settings, *parameter_groups(model, optimizer)])
            case "optimizer":
                self._write("optimizer state", optimizer_state(model, optimizer))
                self._write("optimizer", model.named_parameters())
            case "after_step":
                if type(self._parts.workload).after_step is not Workload.after_step:
                    self._write("after_step", model.named_parameters())
                self._write("workload state", self._parts.workload_state.tensors())
                self._file.flush()

    def _on_local_gradient(self, name: str, gradient: Tensor) -> None:
        """Digest a gradient of the backward under way; they arrive in no fixed order."""
        self._local_gradients.append((name, self._digest("backward", name, gradient)))

    def _record_evaluations(self) -> None:
        """Record all evaluations, at the end: no checkpoint has those of the trace."""
        for evaluation in self._state.evaluations:
            self._step, self._micro_step = evaluation.step, AFTER_MICRO_STEPS
            metrics = []
            for name, value in evaluation.all_metrics.items():
                metrics.append((name, torch.tensor(value, dtype=torch.float64)))
            self._write("evaluation", metrics)

    # Marks

    def _write(self, phase: str, tensors: Named) -> None:
        """Write the marks of a moment; sharded tensors are gathered."""
        digests = []
        for name, tensor in tensors:
            digests.append((name, self._digest(phase, name, full_tensor(tensor))))
        self._write_digests(phase, digests)

    def _write_digests(self, phase: str, digests: Sequence[tuple[str, str]]) -> None:
        """Write the marks of a moment that has tensors: one for each, or one for all of them."""
        left_out = self._recording.left_out
        digests = sorted(entry for entry in digests if f"{phase} {entry[0]}" not in left_out)
        if not digests:
            return
        if not self._recording.tensors:
            digests = [combine(digests)]
        for name, digest in digests:
            self._file.write(encode(self._mark(phase, name, digest)).encode())

    def _digest(self, phase: str, name: str, tensor: Tensor) -> str:
        """Return a tensor's digest, and keep the tensor if that is asked for."""
        if self._recording.values and self._step == self._recording.last_step:
            key = value_name(self._mark(phase, name, ""))
            values = tensor.detach().cpu()
            if values.layout is not torch.strided:
                values = values.to_dense()
            self._values[key] = values.contiguous().clone()
        return digest_tensor(tensor)

    def _mark(self, phase: str, name: str, digest: str) -> Mark:
        """Return a mark of the moment that is under way."""
        return Mark(
            step=self._step, micro_step=self._micro_step, phase=phase, name=name, digest=digest
        )


def digest_tensor(tensor: Tensor) -> str:
    """Return the digest of a tensor on any device, as `harness.records.trace` defines it."""
    digest = xxhash.xxh3_128()
    add_tensor(digest.update, tensor.detach().cpu())
    return digest.hexdigest()


# Tensors, one at a time: all of them unsharded would not fit where FSDP2 is needed


def gradients(model: nn.Module) -> Named:
    """Yield the gradients that all ranks have summed up, by name."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield name, parameter.grad


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> Named:
    """Yield the tensors of the optimizer's state by name."""
    for name, parameter in model.named_parameters():
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, int | float):  # as optimizers of one's own keep their step
                value = torch.tensor(value, dtype=torch.float64)
            if isinstance(value, Tensor):
                yield f"{name} ({key})", value


def optimizer_settings(optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """Return the numbers and switches that an optimizer computes with, by name.

    A number is the same whatever its type, and a switch is 0 or 1.
    """
    settings = []
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key in NO_SETTINGS:
                continue
            name = f"group {number} ({key})"
            values = value if isinstance(value, tuple | list) else (value,)  # lists, after a resume
            if isinstance(value, Tensor):
                settings.append((name, value.double()))
            elif values and all(isinstance(entry, int | float) for entry in values):
                settings.append((name, torch.tensor(values, dtype=torch.float64)))
    return settings


def parameter_groups(model: nn.Module, optimizer: Optimizer) -> Named:
    """Yield the number of the optimizer's group that each parameter is in, by the parameter's name."""
    numbers = {}
    for number, group in enumerate(optimizer.param_groups):
        numbers.update(dict.fromkeys(group["params"], number))
    for name, parameter in model.named_parameters():
        if parameter in numbers:
            yield f"{name} (group)", torch.tensor(numbers[parameter])
