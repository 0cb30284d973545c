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
from collections.abc import Mapping
from importlib import import_module
from pkgutil import resolve_name

import torch

from harness.core.errors import BadInput, NotApplied
from harness.sweep.axes import Axes

# Variables that libraries read once, when they start, and the values that will do, ours first.
# cuBLAS would share its workspace among streams. NVLink switches (NVLS) add up gradients in the
# order in which they arrive.
GPU_VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
    "NCCL_NVLS_ENABLE": ("0",),
}
# MKL would take other paths through a product where a matrix does not begin at an aligned address.
# Torch aligns its memory, and NumPy, whose arrays a batch may be, does not.
CPU_VARIABLES = {"MKL_CBWR": ("AUTO", "COMPATIBLE", "SSE4_2", "AVX2", "AVX512")}
# Attributes of torch's modules. Torch fills uninitialized memory with NaN: what reads such memory
# then fails by a loss of NaN, and costs no time that could be measured.
SWITCHES = {
    "torch.utils.deterministic.fill_uninitialized_memory": True,
    "torch.backends.cudnn.deterministic": True,
    "torch.backends.cudnn.benchmark": False,
}


def prepare_environment(axes: Axes, *, on_gpu: bool) -> None:
    """Set the variables that libraries need for a deterministic trial.

    This must come before the process starts CUDA or computes its first product. Raises BadInput for
    a variable that the user has set to something else.
    """
    if not axes.deterministic:
        return
    variables = GPU_VARIABLES if on_gpu else CPU_VARIABLES
    for name, allowed in variables.items():
        value = os.environ.setdefault(name, allowed[0])
        if value not in allowed:
            raise BadInput(
                f"deterministic=true: {name}: found {value!r}; allowed: {' or '.join(allowed)}"
            )


class DeterministicMode:
    """Puts deterministic mode in force in this process, if the axes ask for it, and watches it."""

    def __init__(self, axes: Axes, device: torch.device) -> None:
        """Set all that the mode needs; without it, leave everything as it is."""
        self._variables = GPU_VARIABLES if device.type == "cuda" else CPU_VARIABLES
        self._switches = SWITCHES
        if axes.execution != "eager":
            import torch._inductor.config as inductor  # takes a second to load

            # Inductor would choose among some kernels by how fast they are on this occasion.
            self._switches = SWITCHES | {f"{inductor.__name__}.deterministic": True}
        # In force, by the names in torch's documentation; None without the mode.
        self.settings: Mapping[str, object] | None = None
        if not axes.deterministic:
            return
        torch.use_deterministic_algorithms(True, warn_only=False)
        # Of the implementations of scaled_dot_product_attention, only cuDNN's has no deterministic
        # backward; flash and memory-efficient attention have one, and torch uses it in this mode.
        torch.backends.cuda.enable_cudnn_sdp(False)
        for name, value in self._switches.items():
            module, _, attribute = name.rpartition(".")
            setattr(import_module(module), attribute, value)
        self.settings = self._read_all()

    def check_effect(self) -> None:
        """Raise NotApplied if something that the mode needs is no longer as it was set."""
        if self.settings is None:
            return
        present = self._read_all()
        for name, needed in self.settings.items():
            if present[name] != needed:
                raise NotApplied(
                    f"deterministic=true was undone: {name} is {present[name]}; needed: {needed}"
                )

    def _read_all(self) -> dict[str, object]:
        """Return all that the mode needs, by name."""
        attention = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
        present: dict[str, object] = {
            "torch.get_deterministic_debug_mode()": torch.get_deterministic_debug_mode(),
            "torch.backends.cuda.cudnn_sdp_enabled()": attention,
            "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        }
        for name in self._switches:
            present[name] = resolve_name(name)
        for name in self._variables:
            present[name] = os.environ.get(name)
        return present
