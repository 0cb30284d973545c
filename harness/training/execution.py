"""torch.compile as the axes ask for it, with counts that prove that it compiled something.

torch.compile falls back to eager without an error where it finds nothing to compile, and where a
frame has been compiled too often. A trial that asked for it and was not compiled must fail rather
than leave an eager number under another name, so torch's own counters are read after each segment
of training.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from harness.core.errors import NotApplied, one_line
from harness.core.files import make_private_folder
from harness.core.packages import installed_version
from harness.core.paths import cache_folder
from harness.records.environment import cpu_info
from harness.records.record import Compiled
from harness.sweep.axes import Axes
from harness.training.state import TrainingState

# The cache folders of Inductor and Triton; both variables are read when compiling begins.
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
FIRST_COMPILATION = ("0", "")  # of a frame, as torch numbers them
RECOMPILE_LIMIT = "recompile limit exceeded"  # among torch's reasons to run in eager mode
# Torch logs the reason where TORCH_LOGS asks for it alone, under either name by its version.
SKIPPED_CUDA_GRAPH = "not replayed as a CUDA graph; TORCH_LOGS=perf_hints,cudagraphs says why"
CUDA_GRAPHS = ("compile:reduce-overhead", "compile:max-autotune")  # modes that replay them on a GPU


def uses_cuda_graphs(axes: Axes, device: torch.device) -> bool:
    """Return whether steps are replayed as CUDA graphs, whose outputs stay in the same memory."""
    return device.type == "cuda" and axes.execution in CUDA_GRAPHS


def use_cache(folder: Path) -> None:
    """Have torch's compilers keep their code in a folder, which only its owner may enter."""
    make_private_folder(folder)
    for variable in CACHE_VARIABLES:
        os.environ[variable] = str(folder.absolute())


def shared_cache() -> Path:
    """Return the folder in which trials of this environment share compiled code.

    Torch looks code up by the code itself, its configuration and the GPU. That leaves out the C++
    compiler, the C library and the CPU, which differ between nodes and containers that share a home,
    and ATEN_CPU_CAPABILITY: under another limit torch takes loops that advance by 16 numbers,
    compiles them for registers of 8, and computes half of a result. The paths of torch and Python
    are in the commands that compile kernels.
    """
    cpu = cpu_info()
    environment = [
        sys.version,
        sysconfig.get_path("include"),
        torch.__version__,
        torch.__file__,
        installed_version("triton"),
        cpu.get("model name", ""),
        cpu.get("flags") or cpu.get("Features") or platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        os.environ.get("ATEN_CPU_CAPABILITY", ""),
        os.environ.get("CXX", ""),
        platform.libc_ver(),
    ]
    digest = hashlib.sha256(json.dumps(environment).encode()).hexdigest()[:16]
    return cache_folder() / "compile" / digest


class Compiler:
    """Compiles a model, and counts what is compiled in this process; for eager, it does nothing.

    `cold_cache` is a folder that only this rank uses. If the axes ask for a cold cache, it is emptied
    and used instead of the one that all trials share. While it compiles, `state` says that the rank
    is in no step.
    """

    def __init__(self, axes: Axes, cold_cache: Path, state: TrainingState) -> None:
        self.axes = axes
        self.seconds = 0.0  # spent compiling, so far
        self.recompiles = 0
        self._compile_start = 0.0
        self._state = state
        self._was_in_step = False  # when the compilation started
        self._is_eager = axes.execution == "eager"
        if self._is_eager:
            return
        if axes.cache == "cold":
            shutil.rmtree(cold_cache, ignore_errors=True)
            use_cache(cold_cache)
        else:
            use_cache(shared_cache())
        # They report the start and the end of each compilation, wherever it happens.
        from torch._dynamo.callback import on_compile_end, on_compile_start

        on_compile_start(self._on_compile_start)
        on_compile_end(self._on_compile_end)

    def __call__(self, model: nn.Module) -> nn.Module:
        """Return `model`, to be compiled at its first step if the axes ask for it."""
        if self._is_eager:
            return model
        _, _, mode = self.axes.execution.partition(":")
        compiled = torch.compile(model, mode=mode or None, **self.axes.compile.changed())
        return cast(nn.Module, compiled)

    def _on_compile_start(self, compilation: Any) -> None:
        """Note when a compilation starts, and whether its code has been compiled before."""
        self._compile_start = time.perf_counter()
        self._was_in_step, self._state.in_step = self._state.in_step, False
        # An id ends in /N for compilation N of a frame: all but the frame's first recompile.
        _, _, number = compilation.compile_id.rpartition("/")
        # Parts of a compilation, such as Triton's, report themselves too and are not counted.
        is_dynamo = compilation.callback_trigger.name == "DYNAMO"
        if is_dynamo and number not in FIRST_COMPILATION:
            self.recompiles += 1

    def _on_compile_end(self, compilation: Any) -> None:
        """Add the seconds of the compilation that has ended."""
        self.seconds += time.perf_counter() - self._compile_start
        self._state.in_step = self._was_in_step

    def account(self) -> Compiled | None:
        """Return the counts of compilations so far, None for eager.

        Raises NotApplied if no graph was compiled, if a function was compiled so often that torch
        has gone on in eager mode, and if a graph came from a cache that should have been cold.
        """
        if self._is_eager:
            return None
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
        inductor = counters["inductor"]
        cache_hits = int(inductor["fxgraph_cache_hit"])
        if cache_hits and self.axes.cache == "cold":
            raise NotApplied(f"cache=cold had no effect: {cache_hits} graphs came from a cache")
        breaks = {}
        for reason, count in counters["graph_break"].items():
            breaks[one_line(reason)] = int(count)
        skipped = int(inductor["cudagraph_skips"])
        if skipped:
            breaks[SKIPPED_CUDA_GRAPH] = skipped
        return Compiled(
            graphs=graphs,
            graph_breaks=breaks,
            recompiles=self.recompiles,
            seconds=self.seconds,
            cache_hits=cache_hits,
            cache_misses=int(inductor["fxgraph_cache_miss"]),
        )
