"""Writes a rank's trace while it trains; see `trace`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
import xxhash
from safetensors.torch import save_file
from torch import Tensor

from harness.reproduce.trace import (
    AFTER_MICRO_STEPS,
    Mark,
    Recording,
    encode,
    trace_path,
    value_name,
    values_path,
)
from harness.training.build import TrialParts
from harness.training.fingerprint import full_tensor
from harness.training.state import TrainingState
from harness.training.step import StepObserver
from harness.training.train import Hooks, Segment
from workloads.base import Batch


class Recorder(StepObserver, Hooks):
    """Writes the trace of one rank. To be used as a context, around the training."""

    def __init__(self, folder: Path, parts: TrialParts, recording: Recording) -> None:
        self._parts = parts
        self._recording = recording
        self._rank = parts.mesh.ranks.rank
        self._file = trace_path(folder, self._rank).open("w", encoding="utf-8")
        self._values_path = values_path(folder, self._rank)
        self._values: dict[str, Tensor] = {}
        self._micro_step = 0  # that is under way, counted from 1
        self._step = 0  # that is under way, counted from 1
        self._evaluations = 0  # that are recorded
        self._local_gradients: list[tuple[str, Tensor]] = []
        parts.strategy.watch_local_gradients(parts.model, self._on_local_gradient)

    def __enter__(self) -> Recorder:
        self._parts.train_step.observer = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parts.train_step.observer = None
        self._file.close()
        if self._recording.values:
            save_file(self._values, self._values_path)

    # What the training step calls

    def before_forward(self, step: int, micro_step: int, batch: Batch) -> None:
        self._step, self._micro_step = step + 1, micro_step + 1
        self._local_gradients.clear()
        if not self._is_recorded():
            return
        if micro_step == 0:
            self._write("parameters", self._parameters())
        tensors = [(f"batch[{number}]", tensor) for number, tensor in enumerate(batch)]
        self._write("data", tensors)
        self._write("random", random_states(self._parts.mesh.device))

    def after_forward(self, step: int, micro_step: int, loss: Tensor) -> None:
        if self._is_recorded():
            self._write("forward", [("loss", loss)])

    def after_backward(self, step: int, micro_step: int) -> None:
        if self._is_recorded():
            self._write("backward", self._local_gradients)

    def before_optimizer(self, step: int) -> None:
        self._micro_step = AFTER_MICRO_STEPS
        if not self._is_recorded():
            return
        gradients = []
        for name, parameter in self._parts.model.named_parameters():
            if parameter.grad is not None:
                gradients.append((name, full_tensor(parameter.grad)))
        self._write("all-reduce", gradients)

    def after_optimizer(self, step: int) -> None:
        if self._is_recorded():
            self._write("optimizer", self._trained_state())

    def _on_local_gradient(self, name: str, gradient: Tensor) -> None:
        """Keep a gradient of the backward that is under way; they arrive in no fixed order."""
        self._local_gradients.append((name, gradient.detach().clone()))

    # What the loop calls

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        self.record_evaluations(state)

    def record_evaluations(self, state: TrainingState) -> None:
        """Record the evaluations that have taken place since the last call."""
        for evaluation in state.evaluations[self._evaluations :]:
            self._step, self._micro_step = evaluation.step, AFTER_MICRO_STEPS
            metrics = []
            for name, value in sorted(evaluation.metrics.items()):
                metrics.append((name, torch.tensor(value, dtype=torch.float64)))
            if self._is_recorded():
                self._write("evaluation", metrics)
        self._evaluations = len(state.evaluations)

    # Marks

    def _is_recorded(self) -> bool:
        """Return whether the step that is under way is one of those to record."""
        return self._recording.first_step <= self._step <= self._recording.last_step

    def _parameters(self) -> list[tuple[str, Tensor]]:
        """Return the parameters, unsharded, by name."""
        named = self._parts.model.named_parameters()
        return [(name, full_tensor(parameter)) for name, parameter in named]

    def _trained_state(self) -> list[tuple[str, Tensor]]:
        """Return parameters, buffers and the optimizer's state, unsharded, by name."""
        parts = self._parts
        tensors = []
        for name, parameter in parts.model.named_parameters():
            tensors.append((name, full_tensor(parameter)))
            for key, value in sorted(parts.optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor):
                    tensors.append((f"{name} ({key})", full_tensor(value)))
        for name, buffer in parts.model.named_buffers():
            tensors.append((f"{name} (buffer)", full_tensor(buffer)))
        return tensors

    def _write(self, phase: str, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Write the marks of a moment: one for each tensor, or one for all of them."""
        digests = []
        for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
            digests.append((name, digest_tensor(tensor)))
            if self._recording.values and self._step == self._recording.last_step:
                self._keep(phase, name, tensor)
        if not self._recording.tensors:
            digests = [_combine(digests)]
        for name, digest in digests:
            self._file.write(encode(self._mark(phase, name, digest)))

    def _keep(self, phase: str, name: str, tensor: Tensor) -> None:
        """Keep a tensor for the file of values."""
        mark = self._mark(phase, name, "")
        self._values[value_name(mark)] = tensor.detach().cpu().contiguous().clone()

    def _mark(self, phase: str, name: str, digest: str) -> Mark:
        """Return a mark of the moment that is under way."""
        return Mark(
            step=self._step, micro_step=self._micro_step, phase=phase, name=name, digest=digest
        )


def _combine(digests: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return one name and one digest for all tensors of a moment.

    The name depends on the tensors' names: moments of other tensors are not to be compared.
    """
    names = repr([name for name, _ in digests])
    return (
        f"{len(digests)} tensors {xxhash.xxh3_64_hexdigest(names.encode())}",
        xxhash.xxh3_128_hexdigest(repr(digests).encode()),
    )


def digest_tensor(tensor: Tensor) -> str:
    """Return the 128 bits of xxh3 over type, shape and bytes of a tensor, as hexadecimal digits.

    It is as fast as memory can be read, and sees what norms and sums miss: signs, swapped elements
    and permuted rows. NaNs are compared by their bits.
    """
    values = tensor.detach().cpu().contiguous()
    digest = xxhash.xxh3_128(f"{values.dtype}\0{tuple(values.shape)}\0".encode())
    if values.numel():
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def random_states(device: torch.device) -> list[tuple[str, Tensor]]:
    """Return the states of all generators that a forward on this device may draw from, as bytes."""
    numpy_state = np.random.get_state(legacy=False)
    states = [
        ("python", _as_bytes(repr(random.getstate()))),
        ("numpy", torch.from_numpy(numpy_state["state"]["key"].astype(np.int64))),
        ("numpy (position)", torch.tensor(numpy_state["state"]["pos"])),
        ("torch", torch.get_rng_state()),
    ]
    if device.type == "cuda":
        states.append(("cuda", torch.cuda.get_rng_state(device)))
    return states


def _as_bytes(text: str) -> Tensor:
    """Return a text as a tensor of its bytes."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
