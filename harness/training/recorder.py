"""Records the values that a rank computes in training: a trace, and the digests of a trial's record.

`harness diff` traces trials that it measures nothing of. A trial that is measured is recorded at
the steps that its sweep names (`fingerprints`). Either way, recorded steps are segments of their
own, and nothing is left in the model, the strategy or the training step between them.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.paths import TrialFolder, write_atomically
from harness.records.record import RankFingerprints, StepFingerprint
from harness.records.trace import (
    AFTER_MICRO_STEPS,
    Mark,
    Recording,
    combine,
    decode,
    digest_bytes,
    encode,
    value_name,
    values_path,
)
from harness.spec.cell import Fingerprints
from harness.training.build import TrialParts
from harness.training.epoch import Indices
from harness.training.fingerprint import full_tensors
from harness.training.state import TrainingState
from harness.training.step import StepObserver
from harness.training.train import Hooks, Segment
from workloads.base import Batch

# What says how an optimizer computes and not what, and what schedules add to its settings.
NO_SETTINGS = (
    "params", "foreach", "fused", "capturable", "differentiable",
    "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum",
)  # fmt: skip
Named = Iterable[tuple[str, Tensor]]  # tensors and what the model or the optimizer calls them


class Recorder(StepObserver, Hooks):
    """Writes the trace of one rank. To be used as a context, around the training.

    A trial that was resumed continues its trace from its checkpoint.
    """

    def __init__(
        self, parts: TrialParts, state: TrainingState, recording: Recording, path: Path
    ) -> None:
        """Record to the file `path`, and next to it the values if `recording` asks for them."""
        self._parts = parts
        self._state = state
        self._recording = recording
        self._rank = parts.mesh.ranks.rank
        self._path = path
        _keep_marks_before(path, state.step)
        self._file = path.open("a", encoding="utf-8")
        self._values: dict[str, Tensor] = {}
        self._micro_step = 0  # that is under way, counted from 1
        self._step = 0  # that is under way, counted from 1
        self._evaluations = 0  # that are recorded
        self._local_gradients: list[tuple[str, str]] = []  # names and digests
        self._phase_digests: dict[str, xxhash.xxh3_128] = {}  # of the step that is under way
        self._stop_watching: Callable[[], None] | None = None  # the strategy's local gradients

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._detach()
        if error is None:
            self._record_evaluations()
        self._file.close()
        if self._recording.values:
            from safetensors.torch import save_file

            save_file(self._values, values_path(self._path.parent, self._rank))

    # What the loop calls

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Return the step up to which all steps are recorded, or none is."""
        if self._recording.includes(state.step + 1):
            parts = self._parts
            parts.train_step.observer = self
            if self._stop_watching is None:
                self._stop_watching = parts.strategy.watch_local_gradients(
                    parts.model, self._on_local_gradient
                )
        else:
            self._detach()
        return self._recording.end_of_run(state.step, stop)

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        """Record the evaluations since the last segment."""
        self._record_evaluations()

    def _detach(self) -> None:
        """Have the coming steps run as if there were no recorder."""
        self._parts.train_step.observer = None
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    # What the training step calls

    def before_step(self, step: int, indices: Indices) -> None:
        self._step, self._micro_step = step + 1, 1
        self._phase_digests.clear()
        self._write("parameters", self._parameters())
        if self._rank == 0:  # DDP's other ranks get its buffers in the forward
            self._write_if_any("buffers before", self._parts.model.named_buffers())
        self._write("samples", [("sample ids", torch.tensor(indices))])

    def before_forward(self, step: int, micro_step: int, batch: Batch) -> None:
        self._micro_step = micro_step + 1
        self._local_gradients.clear()
        self._write("data", ((f"batch[{number}]", part) for number, part in enumerate(batch)))
        self._write("random", random_states(self._parts.mesh.device))

    def after_forward(self, step: int, micro_step: int, loss: Tensor) -> None:
        self._write("forward", [("loss", loss)])
        self._write("buffers", self._parts.model.named_buffers())

    def after_backward(self, step: int, micro_step: int) -> None:
        self._write_digests("backward", self._local_gradients)

    def before_optimizer(self, step: int) -> None:
        self._micro_step = AFTER_MICRO_STEPS
        self._write("all-reduce", self._gradients())
        settings = optimizer_settings(self._parts.optimizer)
        groups = parameter_groups(self._parts.model, self._parts.optimizer)
        self._write("optimizer settings", [*settings, *groups])

    def after_optimizer(self, step: int) -> None:
        self._write("optimizer state", self._optimizer_state())
        self._write("optimizer", self._parameters())

    def after_step(self, step: int) -> None:
        if self._parts.train_step.after_step is not None:
            self._write("after_step", self._parameters())
        self._write_if_any("workload state", self._parts.workload_state.tensors())
        self._file.flush()
        digests = {phase: digest.hexdigest() for phase, digest in self._phase_digests.items()}
        self._state.fingerprints.append(StepFingerprint(step=self._step, digests=digests))

    def _on_local_gradient(self, name: str, gradient: Tensor) -> None:
        """Digest a gradient of the backward under way; they arrive in no fixed order."""
        self._local_gradients.append((name, self._digest("backward", name, gradient)))

    def _record_evaluations(self) -> None:
        """Record the evaluations that have taken place since the last call."""
        for evaluation in self._state.evaluations[self._evaluations :]:
            self._step, self._micro_step = evaluation.step, AFTER_MICRO_STEPS
            metrics = []
            for name, value in evaluation.all_metrics.items():
                metrics.append((name, torch.tensor(value, dtype=torch.float64)))
            self._write("evaluation", metrics)
        self._evaluations = len(self._state.evaluations)
        self._file.flush()

    # Tensors, a few at a time: all of them unsharded would not fit where FSDP2 is needed

    def _parameters(self) -> Named:
        """Return the parameters, unsharded, by name."""
        return full_tensors(self._parts.model.named_parameters())

    def _gradients(self) -> Named:
        """Return the gradients that all ranks have summed up, unsharded, by name."""
        gradients = []
        for name, parameter in self._parts.model.named_parameters():
            if parameter.grad is not None:
                gradients.append((name, parameter.grad))
        return full_tensors(gradients)

    def _optimizer_state(self) -> Named:
        """Return the tensors of the optimizer's state, unsharded, by name."""
        states = []
        for name, parameter in self._parts.model.named_parameters():
            for key, value in sorted(self._parts.optimizer.state.get(parameter, {}).items()):
                if isinstance(value, int | float):  # as optimizers of one's own keep their step
                    value = torch.tensor(value, dtype=torch.float64)
                if isinstance(value, Tensor):
                    states.append((f"{name} ({key})", value))
        return full_tensors(states)

    # Marks

    def _write(self, phase: str, tensors: Named) -> None:
        """Write the marks of a moment."""
        digests = []
        for name, tensor in tensors:
            digests.append((name, self._digest(phase, name, tensor)))
        self._write_digests(phase, digests)

    def _write_if_any(self, phase: str, tensors: Named) -> None:
        """Write the marks of a moment that has tensors in some trainings only."""
        present = list(tensors)
        if present:
            self._write(phase, present)

    def _write_digests(self, phase: str, digests: Sequence[tuple[str, str]]) -> None:
        """Write the marks of a moment: one for each tensor, or one for all of them."""
        left_out = self._recording.left_out
        digests = sorted(entry for entry in digests if f"{phase} {entry[0]}" not in left_out)
        combined = combine(digests)
        self._phase_digests.setdefault(phase, xxhash.xxh3_128()).update(repr(combined).encode())
        if not self._recording.tensors:
            digests = [combined]
        for name, digest in digests:
            self._file.write(encode(self._mark(phase, name, digest)))

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


def fingerprint_recorder(parts: TrialParts, state: TrainingState, steps: Fingerprints) -> Recorder:
    """Return the recorder of a trial that is measured, with a mark for each tensor."""
    recording = Recording(last_step=parts.total_steps, steps=steps.steps, every=steps.every)
    path = parts.folder.fingerprint_path(parts.mesh.ranks.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    return Recorder(parts, state, recording, path)


def rank_fingerprints(
    state: TrainingState, folder: TrialFolder, rank: int
) -> RankFingerprints | None:
    """Return the fingerprints in a rank's result, None if it has left none."""
    path = folder.fingerprint_path(rank)
    if not path.exists():
        return None
    return RankFingerprints(
        steps=state.fingerprints,
        file=str(path.relative_to(folder.path)),
        file_digest=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def _keep_marks_before(path: Path, steps_done: int) -> None:
    """Remove the marks after the checkpoint that a trial resumes from.

    A rank that was killed has trained on after the checkpoint, and may have written half a line.
    Evaluations are all removed: those that the checkpoint has are recorded again from there.
    """
    if not path.exists():
        return
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            mark = decode(line)
        except ValueError:
            break
        if mark.step <= steps_done and mark.phase != "evaluation":
            lines.append(encode(mark))
    write_atomically(path, "".join(lines), durable=False)


def digest_tensor(tensor: Tensor) -> str:
    """Return the digest of a tensor on any device, as `harness.records.trace` defines it.

    It reads the tensor's memory without a copy. An array of NumPy would do so too, but it fixes the
    size of that memory, and FSDP2 frees its parameters by resizing theirs to nothing.
    """
    values = tensor.detach().cpu()
    if values.layout is not torch.strided:  # such as the gradients of a sparse embedding
        values = values.to_dense()
    values = values.contiguous()
    content = (
        (ctypes.c_char * values.nbytes).from_address(values.data_ptr()) if values.nbytes else b""
    )
    return digest_bytes(str(values.dtype), values.shape, content)


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


def parameter_groups(model: nn.Module, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """Return the number of the optimizer's group that each parameter is in, by the parameter's name."""
    numbers = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            numbers[parameter] = number
    groups = []
    for name, parameter in model.named_parameters():
        if parameter in numbers:
            groups.append((f"{name} (group)", torch.tensor(numbers[parameter])))
    return groups


def random_states(device: torch.device) -> list[tuple[str, Tensor]]:
    """Return the states of all generators that a forward on this device may draw from, as bytes."""
    numpy_state = np.random.get_state(legacy=False)
    python_state = bytearray(repr(random.getstate()).encode())
    states = [
        ("python", torch.frombuffer(python_state, dtype=torch.uint8)),
        ("numpy", torch.from_numpy(numpy_state["state"]["key"].astype(np.int64))),
        ("numpy (position)", torch.tensor(numpy_state["state"]["pos"])),
        ("torch", torch.get_rng_state()),
    ]
    if device.type == "cuda":
        states.append(("cuda", torch.cuda.get_rng_state(device)))
    return states
