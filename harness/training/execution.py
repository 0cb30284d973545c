"""torch.compile as the axes ask for it, with counts that prove that it compiled something.

torch.compile falls back to eager without an error where it finds nothing to compile. A trial that
asked for it and was not compiled must fail rather than leave an eager number under another name, so
torch's own counters are read after each segment of training.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from harness.core.errors import NotApplied, one_line
from harness.records.record import Compiled
from harness.spec.axes import Axes
from harness.training import compile_cache
from harness.training.state import TrainingState

# The axis `dynamic` as torch.compile takes it; None is torch's own rule.
DYNAMIC_SHAPES = {"auto": None, "always": True, "never": False}
DISABLING_VARIABLES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
FIRST_COMPILATION = ("0", "")  # of a frame, as torch numbers them
# Torch logs the reason where TORCH_LOGS asks for it alone, under either name by its version.
SKIPPED_CUDA_GRAPH = "not replayed as a CUDA graph; TORCH_LOGS=perf_hints,cudagraphs says why"
CUDA_GRAPHS = ("compile:reduce-overhead", "compile:max-autotune")  # modes that replay them on a GPU


def uses_cuda_graphs(axes: Axes, device: torch.device) -> bool:
    """Return whether steps are replayed as CUDA graphs, whose outputs stay in the same memory."""
    return device.type == "cuda" and axes.execution in CUDA_GRAPHS


class Compiler:
    """Compiles a model, and counts what is compiled in this process; for eager, it does nothing.

    `cold_cache` is a folder that only this rank uses. If the axes ask for a cold cache, it is emptied and
    used instead of the one that all trials of `workload` share, which is named as a sweep's `uses`.
    While it compiles, `state` says that the rank is in no step.
    """

    def __init__(
        self,
        axes: Axes,
        cold_cache: Path,
        *,
        workload: str,
        device: torch.device,
        state: TrainingState,
    ) -> None:
        self.axes = axes
        self.seconds = 0.0  # spent compiling, so far
        self.recompiles = 0
        self._compile_start = 0.0
        self._state = state
        self._was_in_step = False  # when the compilation started
        self._has_own_forward = True  # of the model
        self._is_eager = axes.execution == "eager"
        if self._is_eager:
            return
        if axes.cache == "cold":
            shutil.rmtree(cold_cache, ignore_errors=True)
            for variable in compile_cache.CACHE_VARIABLES:
                os.environ[variable] = str(cold_cache.absolute())
        else:
            compile_cache.share_cache(workload, device)
        # They report the start and the end of each compilation, wherever it happens.
        from torch._dynamo.callback import on_compile_end, on_compile_start

        on_compile_start(self._on_compile_start)
        on_compile_end(self._on_compile_end)

    def __call__(self, model: nn.Module) -> nn.Module:
        """Return `model`, to be compiled at its first step if the axes ask for it."""
        if self._is_eager:
            return model
        compiled_model = getattr(model, "module", model)  # DDP wraps it
        forward = type(compiled_model).forward
        self._has_own_forward = not forward.__module__.startswith("torch.")
        _, _, mode = self.axes.execution.partition(":")
        compiled = torch.compile(
            model,
            mode=mode or None,
            dynamic=DYNAMIC_SHAPES[self.axes.dynamic],
            fullgraph=self.axes.fullgraph,
        )
        return cast(nn.Module, compiled)

    def disabled(self) -> AbstractContextManager[object]:
        """Return a context in which compiled modules run eagerly.

        Torch compiles nothing under a dispatch mode, and with fullgraph takes that for an error.
        """
        if self._is_eager:
            return nullcontext()
        stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return stance

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

        Raises NotApplied if no graph was compiled, and if a graph came from a cache that should
        have been cold.
        """
        if self._is_eager:
            return None
        from torch._dynamo.utils import counters

        graphs = int(counters["stats"]["unique_graphs"])
        if not graphs:
            raise NotApplied(
                f"execution=compile had no effect: torch.compile compiled no graph;"
                f" {self._likely_cause()}"
            )
        cache_hits = self._count("fxgraph_cache_hit")
        if cache_hits and self.axes.cache == "cold":
            raise NotApplied(f"cache=cold had no effect: {cache_hits} graphs came from a cache")
        if not cache_hits and self.axes.cache == "once":
            raise NotApplied("cache=once had no effect: the rank compiled all graphs again")
        breaks = {}
        for reason, count in counters["graph_break"].items():
            breaks[one_line(reason)] = int(count)
        skipped = self._count("cudagraph_skips")
        if skipped:
            breaks[SKIPPED_CUDA_GRAPH] = skipped
        return Compiled(
            graphs=graphs,
            graph_breaks=breaks,
            recompiles=self.recompiles,
            seconds=self.seconds,
            cache_hits=cache_hits,
            cache_misses=self._count("fxgraph_cache_miss"),
        )

    def release_cache(self, *, is_local_rank_0: bool) -> None:
        """Release the shared cache; one rank of a node clears it if it has added to it."""
        has_added = is_local_rank_0 and self._count("fxgraph_cache_miss") > 0
        try:
            compile_cache.release(clear_surplus=has_added)
        except OSError as error:  # the training is over, and its result counts
            print(f"the compile cache was not cleared: {error}")

    def _count(self, name: str) -> int:
        """Return one of Inductor's own counts in this process, 0 for eager."""
        if self._is_eager:
            return 0
        from torch._dynamo.utils import counters

        return int(counters["inductor"][name])

    def _likely_cause(self) -> str:
        """Return why no graph may have been compiled, and what to change."""
        disabling = [name for name in DISABLING_VARIABLES if os.environ.get(name) == "1"]
        if disabling:
            return f"{' and '.join(disabling)} in the environment turns it off"
        if not self._has_own_forward:
            return (
                "it skips frames of torch itself, so the model's class needs its own forward"
                " (no bare nn.Sequential)"
            )
        return (
            "only calling the model itself runs what was compiled, so check that loss() does, and"
            " calls none of its methods or submodules instead"
        )
