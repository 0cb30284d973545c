"""Deterministic mode: the axis `deterministic: true`, and the proof that it stayed in force.

Torch's own switch is one of several. Libraries below it choose algorithms by themselves, some by
how fast they were just now. All of them are set here, before the model is built, and read again
after each segment of training: code of a workload or of a library may turn them off. A trial that
asked for determinism and ran without it must fail rather than leave a digest that means nothing.

An operation that torch can't compute deterministically fails the trial by its name. Operations that
torch computes in a fixed order only in this mode, such as the backward of `weight[indices]`, need
no further setting.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from harness.core.errors import BadInput, NotApplied, one_line
from harness.records import record
from harness.spec.axes import Axes

# Variables that libraries read once, when they start, and the values that will do, ours first.
# cuBLAS would share its workspace among streams. NVLink switches (NVLS) add up gradients in the
# order in which they arrive.
GPU_VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
    "NCCL_NVLS_ENABLE": ("0",),
}
# MKL would take other paths through a product where a matrix does not begin at an aligned address.
# Torch aligns its memory, and NumPy, whose arrays a batch may be, does not.
CPU_VARIABLES = {
    "MKL_CBWR": (
        "AUTO", "COMPATIBLE", "SSE4_2", "AVX2", "AVX2,STRICT", "AVX512", "AVX512,STRICT", "AVX512_E1",
        "AVX512_E1,STRICT",
    ),
}  # fmt: skip
WARNED = re.compile(r"deterministic", re.IGNORECASE)


class Switch(NamedTuple):
    """A setting of the whole process that deterministic mode needs."""

    name: str  # as torch documents it
    needed: object
    read: Callable[[], object]
    set: Callable[[], object]


def _variables(*, on_gpu: bool) -> Mapping[str, Sequence[str]]:
    """Return the variables that libraries of a device read, and the values that will do."""
    return GPU_VARIABLES if on_gpu else CPU_VARIABLES


def prepare_environment(axes: Axes, *, on_gpu: bool) -> None:
    """Set the variables that libraries need for a deterministic trial.

    This must come before the process starts CUDA or computes its first product. Raises BadInput for
    a variable that the user has set to something else.
    """
    if not axes.deterministic:
        return
    for name, allowed in _variables(on_gpu=on_gpu).items():
        value = os.environ.setdefault(name, allowed[0])
        if value not in allowed:
            raise BadInput(
                f"deterministic=true: {name}: found {value!r}; allowed: {' or '.join(allowed)}"
            )


class DeterministicMode:
    """Puts deterministic mode in force in this process, if the axes ask for it, and watches it."""

    def __init__(self, axes: Axes, device: torch.device) -> None:
        """Set all that the mode needs; without it, leave everything as it is."""
        self._switches: list[Switch] = []
        self._warnings: dict[str, None] = {}  # an ordered set
        if not axes.deterministic:
            return
        self._switches = _switches(axes)
        for name in _variables(on_gpu=device.type == "cuda"):
            value = os.environ.get(name, "")
            assign = partial(os.environ.__setitem__, name, value)
            self._switches.append(Switch(name, value, partial(os.environ.get, name), assign))
        for switch in self._switches:
            switch.set()
        self._listen_to_warnings()

    def check_effect(self) -> None:
        """Raise NotApplied if something that the mode needs is no longer as it was set."""
        for switch in self._switches:
            present = switch.read()
            if present != switch.needed:
                raise NotApplied(
                    f"deterministic=true was undone: {switch.name} is {present};"
                    f" needed: {switch.needed}"
                )

    def account(self) -> record.Determinism | None:
        """Return the settings in force and torch's warnings, None without the mode."""
        if not self._switches:
            return None
        settings = {switch.name: str(switch.needed) for switch in self._switches}
        return record.Determinism(settings=settings, warnings=list(self._warnings))

    def _listen_to_warnings(self) -> None:
        """Note the warnings about operations that torch runs though they may vary."""
        show = warnings.showwarning

        def note_and_show(message: Warning | str, *context: Any, **more: Any) -> None:
            """Show a warning as Python does, and keep it if it is about determinism."""
            if WARNED.search(str(message)):
                self._warnings[one_line(message)] = None
            show(message, *context, **more)

        warnings.showwarning = note_and_show


def _switches(axes: Axes) -> list[Switch]:
    """Return all settings of torch that the mode needs.

    TensorFloat-32 is among them because its rounding is no property of the model: whether a product
    uses it may change with the GPU. Torch fills uninitialized memory with NaN in this mode, which
    we leave on: what reads such memory then fails by a loss of NaN, and costs no time that could be
    measured.
    """
    matmul_precision = "high" if axes.precision == "tf32" else "highest"
    attributes: list[tuple[Any, str, bool]] = [
        (torch.utils.deterministic, "fill_uninitialized_memory", True),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "benchmark", False),
    ]
    if axes.execution != "eager":
        import torch._inductor.config as inductor  # takes a second to load

        # Inductor would choose among some kernels by how fast they are on this occasion.
        attributes.append((inductor, "deterministic", True))
    switches = [
        Switch(
            "torch.get_deterministic_debug_mode()",
            2,  # an operation that may vary is an error
            torch.get_deterministic_debug_mode,
            partial(torch.use_deterministic_algorithms, True, warn_only=False),
        ),
        # Of the implementations of scaled_dot_product_attention, only cuDNN's has no deterministic
        # backward; flash and memory-efficient attention have one, and torch uses it in this mode.
        Switch(
            "torch.backends.cuda.cudnn_sdp_enabled()",
            False,
            torch.backends.cuda.cudnn_sdp_enabled,
            partial(torch.backends.cuda.enable_cudnn_sdp, False),
        ),
        Switch(
            "torch.get_float32_matmul_precision()",
            matmul_precision,
            torch.get_float32_matmul_precision,
            partial(torch.set_float32_matmul_precision, matmul_precision),
        ),
    ]
    for owner, name, needed in attributes:
        read, assign = partial(getattr, owner, name), partial(setattr, owner, name, needed)
        switches.append(Switch(f"{owner.__name__}.{name}", needed, read, assign))
    return switches
