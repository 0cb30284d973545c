"""How operations are computed: compiled, in which precision and in which order, and the proof that they were.

torch.compile falls back to eager without an error where it finds nothing to compile, and where a
frame has been compiled too often. A model may opt out of autocast, and a device may lack a type. A trial
that asked for one of them and did without must fail rather than leave a number under another name. So
torch's own counters are read after each segment of training, and before the first backward, the graph of
the loss is searched for a tensor of the type that was asked for.

Of deterministic mode, torch's own switch is one of several. Libraries below it choose algorithms by
themselves, some by how fast they were just now. All of them are set here, before the model is built,
and read again after each segment: code of a workload or of a library may turn them off, and the digest
of such a trial would mean nothing. An operation that torch can't compute deterministically fails the
trial by its name. Operations that torch computes in a fixed order only in this mode, such as the
backward of `weight[indices]`, need no further setting.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.core.errors import BadInput, NotApplied
from harness.core.files import make_private_folder
from harness.core.paths import cache_folder
from harness.records.environment import describe_hardware, describe_software
from harness.sweep.axes import Axes
from harness.training.state import TrainingState

# The cache folders of Inductor and Triton; both variables are read when compiling begins.
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
RECOMPILE_LIMIT = "recompile limit exceeded"  # among torch's reasons to run in eager mode
CUDA_GRAPHS = ("compile:reduce-overhead", "compile:max-autotune")  # modes that replay them on a GPU
AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The type in which something must have been computed, by whatever means.
REQUIRED_TYPES = AUTOCAST_TYPES | {"bf16:fsdp2": torch.bfloat16, "fp64": torch.float64}
AMPERE = (8, 0)  # the compute capability from which on GPUs have TensorFloat-32
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
# Functions whose results deterministic mode has changed, or depends on.
WATCHED_FUNCTIONS = (
    "torch.get_deterministic_debug_mode()",
    "torch.backends.cuda.cudnn_sdp_enabled()",
    "torch.get_float32_matmul_precision()",
)
# Attributes of torch's modules. Torch fills uninitialized memory with NaN: what reads such memory
# then fails by a loss of NaN, and costs no time that could be measured.
SWITCHES = {
    "torch.utils.deterministic.fill_uninitialized_memory": True,
    "torch.backends.cudnn.deterministic": True,
    "torch.backends.cudnn.benchmark": False,
}


def shared_cache() -> Path:
    """Return the folder in which trials of this environment share compiled code.

    Torch looks code up by the code itself, its configuration and the GPU. That leaves out the C++
    compiler, the C library and the CPU, which differ between nodes and containers that share a home,
    and ATEN_CPU_CAPABILITY: under another limit torch takes loops that advance by 16 numbers,
    compiles them for registers of 8, and computes half of a result. The paths of torch and Python
    are in the commands that compile kernels.
    """
    hardware = replace(describe_hardware(), usable_cores=0)
    environment: list[object] = [describe_software(), hardware, torch.__file__]
    environment.append(torch.backends.cpu.get_cpu_capability())
    environment += [os.environ.get(name) for name in ("ATEN_CPU_CAPABILITY", "CXX")]
    digest = hashlib.sha256(repr(environment).encode()).hexdigest()
    return cache_folder() / "compile" / digest[:16]


@dataclass
class Compiler:
    """Compiles a model, and counts what is compiled in this process; for eager, it does nothing."""

    axes: Axes
    cold_cache: Path  # a folder of this rank's own: emptied, and used if the axes ask for it
    state: TrainingState  # says that the rank is in no step while it compiles
    seconds: float = 0.0  # spent compiling, that nobody has accounted for yet
    recompiles: int = 0

    def __post_init__(self) -> None:
        self._compile_start = 0.0
        self._was_in_step = False  # when the compilation started
        self._is_eager = self.axes.execution == "eager"
        if self._is_eager:
            return
        shutil.rmtree(self.cold_cache, ignore_errors=True)
        folder = self.cold_cache if self.axes.cache == "cold" else shared_cache()
        make_private_folder(folder)
        for variable in CACHE_VARIABLES:
            os.environ[variable] = str(folder.absolute())
        # They report the start and the end of each compilation, wherever it happens.
        from torch._dynamo.callback import on_compile_end, on_compile_start

        on_compile_start(self._on_compile_start)
        on_compile_end(self._on_compile_end)

    def __call__(self, model: nn.Module) -> nn.Module:
        """Return `model`, to be compiled at its first step if the axes ask for it."""
        if self._is_eager:
            return model
        _, _, mode = self.axes.execution.partition(":")
        compiled = torch.compile(model, mode=mode or None, **self.axes.torch_parameters("compile"))
        return cast(nn.Module, compiled)

    def _on_compile_start(self, compilation: Any) -> None:
        """Note when a compilation starts, and whether its code has been compiled before."""
        self._compile_start = time.perf_counter()
        self._was_in_step = self.state.in_step
        self.state.in_step = False
        # An id ends in /N for compilation N of a frame; the first has 0 or nothing.
        _, _, number = compilation.compile_id.rpartition("/")
        # Parts of a compilation, such as Triton's, report themselves too and are not counted.
        is_dynamo = compilation.callback_trigger.name == "DYNAMO"
        if is_dynamo and number not in ("0", ""):
            self.recompiles += 1

    def _on_compile_end(self, compilation: Any) -> None:
        """Add the seconds of the compilation that has ended."""
        self.seconds += time.perf_counter() - self._compile_start
        self.state.in_step = self._was_in_step

    def account(self) -> dict[str, float]:
        """Return the numbers of compilations so far, by their names; none for eager.

        Raises NotApplied if no graph was compiled, and if a function was compiled so often that torch
        has gone on in eager mode.
        """
        if self._is_eager:
            return {}
        from torch._dynamo.utils import counters

        graphs = int(counters["stats"]["unique_graphs"])
        if not graphs:
            raise NotApplied(
                "execution=compile had no effect: torch.compile compiled no graph; needed: no"
                " TORCH_COMPILE_DISABLE in the environment, a model with a forward of its own (no bare"
                " nn.Sequential), and a loss() that calls the model itself"
            )
        if any(RECOMPILE_LIMIT in reason for reason in counters["unimplemented"]):
            raise NotApplied(
                f"execution={self.axes.execution} ended after {self.recompiles} recompilations, from"
                " which on torch runs a function in eager mode; allowed: a model whose graph does not"
                " change from step to step, or compile.dynamic for batches of several widths"
            )
        breaks = sum(counters["graph_break"].values())
        return {
            "compile_graphs": graphs,
            "compile_graph_breaks": breaks + counters["inductor"]["cudagraph_skips"],
            "compile_recompiles": self.recompiles,
        }


# Precision


def apply_matmul_precision(axes: Axes, device: torch.device) -> None:
    """Allow TensorFloat-32 in products and convolutions, or have them in exact fp32.

    Raises NotApplied where the device has no TensorFloat-32.
    """
    use_tf32 = axes.precision == "tf32"
    if use_tf32 and torch.cuda.get_device_capability(device) < AMPERE:
        raise NotApplied("precision=tf32 is unavailable on this GPU; needed: Ampere or newer")
    torch.set_float32_matmul_precision("high" if use_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = use_tf32


def under_autocast(
    axes: Axes, device: torch.device, function: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """Return a function called under autocast, or itself where an idle context would cost time."""
    if axes.precision not in AUTOCAST_TYPES:
        return function
    dtype = AUTOCAST_TYPES[axes.precision]
    wrapped: Callable[..., Tensor] = torch.autocast(device.type, dtype=dtype)(function)
    return wrapped


def computed_in(dtype: torch.dtype, loss: Tensor) -> bool:
    """Return whether anything that `loss` was computed from was a tensor of `dtype`.

    This is read off the graph of its backward, which disturbs no computation. A compiled graph is
    one node in it, of which can be seen what goes in, what comes out, and what is saved for
    backward.
    """
    visited = set()
    pending: list[Any] = [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        tensors = list(node._input_metadata)
        if node.name() == "CompiledFunctionBackward":
            tensors += node.saved_tensors
        if any(tensor is not None and tensor.dtype == dtype for tensor in tensors):
            return True
        pending += [next_node for next_node, _ in node.next_functions]
    return False


class Scaler:
    """Computes gradients and steps the optimizer; under fp16 with a loss scale.

    The gradients of fp16 underflow to zero unless the loss is scaled up (Micikevicius et al. 2018,
    arXiv:1710.03740). The scale falls where gradients overflow. All other precisions have the
    exponents of fp32 and need no scale.
    """

    def __init__(self, axes: Axes, device: torch.device) -> None:
        # The precision of which it has yet to be seen that something was computed in it.
        self.unproven = axes.precision if axes.precision in REQUIRED_TYPES else None
        # It hands all on as it is for other precisions.
        self.grad_scaler = torch.amp.GradScaler(device.type, enabled=axes.precision == "fp16")
        self.skipped_steps = 0

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, times the loss scale if there is one.

        The first call raises NotApplied if nothing that the loss was computed from was in the
        precision of the axes.
        """
        if self.unproven is not None:
            if not computed_in(REQUIRED_TYPES[self.unproven], loss):
                raise NotApplied(
                    f"precision={self.unproven} had no effect: nothing in the first step ran in it"
                )
            self.unproven = None
        self.grad_scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: Optimizer, max_grad_norm: float | None) -> bool:
        """Step the optimizer; return whether it has moved parameters.

        The norm of all gradients together is first clipped to `max_grad_norm`, None for no limit.
        Under a loss scale, the step is skipped if gradients are not finite.
        """
        if max_grad_norm is not None:
            # Without the loss scale; this does nothing where there is none.
            self.grad_scaler.unscale_(optimizer)
            parameters = []
            for group in optimizer.param_groups:
                parameters += group["params"]
            torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
        self.grad_scaler.step(optimizer)  # it waits for the device, as to read the scale does
        scale_before = self.grad_scaler.get_scale()
        self.grad_scaler.update()
        is_skipped = self.grad_scaler.get_scale() < scale_before
        self.skipped_steps += is_skipped
        return not is_skipped

    def account(self) -> dict[str, float]:
        """Return the loss scale and the steps that were skipped; nothing without loss scaling."""
        if not self.grad_scaler.is_enabled():
            return {}
        scale = self.grad_scaler.get_scale()
        return {"loss_scale": scale, "loss_scale_skipped_steps": self.skipped_steps}


# Determinism


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


def apply_deterministic_mode(axes: Axes) -> dict[str, object]:
    """Put deterministic mode in force in this process, if the axes ask for it.

    Returns all that the mode has set, by the names in torch's documentation; nothing without the mode.
    """
    if not axes.deterministic:
        return {}
    switches = SWITCHES
    if axes.execution != "eager":
        import torch._inductor.config as inductor  # takes a second to load

        # Inductor would choose among some kernels by how fast they are on this occasion.
        switches = SWITCHES | {f"{inductor.__name__}.deterministic": True}
    torch.use_deterministic_algorithms(True, warn_only=False)
    # Of the implementations of scaled_dot_product_attention, only cuDNN's has no deterministic
    # backward; flash and memory-efficient attention have one, and torch uses it in this mode.
    torch.backends.cuda.enable_cudnn_sdp(False)
    for name, value in switches.items():
        module, _, attribute = name.rpartition(".")
        setattr(import_module(module), attribute, value)
    return {name: read_setting(name) for name in (*WATCHED_FUNCTIONS, *switches)}


def check_deterministic_mode(settings: Mapping[str, object]) -> None:
    """Raise NotApplied if one of the settings of the mode is no longer as it was set."""
    for name, needed in settings.items():
        present = read_setting(name)
        if present != needed:
            raise NotApplied(
                f"deterministic=true was undone: {name} is {present}; needed: {needed}"
            )


def read_setting(name: str) -> object:
    """Return the value of an attribute of torch, or the result of a function whose name ends in ()."""
    value = resolve_name(name.removesuffix("()"))
    return value() if name.endswith("()") else value
