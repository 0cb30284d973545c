"""torch.compile as the axes say, what it did, and the proof that it did something."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any, cast

from torch import nn

from harness.core.errors import NotApplied, one_line
from harness.records.record import Compiled
from harness.spec.axes import Axes

SHAPES = {"auto": None, "always": True, "never": False}


class Compiler:
    """Compiles a model and keeps account of it: of nothing for eager. `cold_cache` is a folder of this rank's own."""

    def __init__(self, axes: Axes, cold_cache: Path) -> None:
        self.axes = axes
        self.seconds = 0.0
        self.recompiles = 0
        self._began = 0.0
        if axes.execution != "eager":
            self._watch(cold_cache)

    def __call__(self, model: nn.Module) -> nn.Module:
        """`model`, compiled at its first step if the axes ask for it."""
        if self.axes.execution == "eager":
            return model
        import torch

        mode = self.axes.execution.partition(":")[2] or None
        dynamic, fullgraph = SHAPES[self.axes.dynamic], self.axes.fullgraph
        return cast(
            nn.Module, torch.compile(model, mode=mode, dynamic=dynamic, fullgraph=fullgraph)
        )

    def _watch(self, cold_cache: Path) -> None:
        if self.axes.cache == "cold":
            shutil.rmtree(cold_cache, ignore_errors=True)
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
                os.environ[name] = str(cold_cache.absolute())
        from torch._dynamo.callback import on_compile_end, on_compile_start

        on_compile_start(self._start)
        on_compile_end(self._end)

    def _start(self, what: Any) -> None:
        self._began = time.perf_counter()
        # An id counts frames, then the compilations of the frame: the second of a frame is a recompilation.
        frame_compilation = what.compile_id.rpartition("/")[2]
        self.recompiles += what.callback_trigger.name == "DYNAMO" and frame_compilation not in (
            "0",
            "",
        )

    def _end(self, what: Any) -> None:
        self.seconds += time.perf_counter() - self._began

    def account(self) -> Compiled | None:
        """What was compiled so far, None for eager; raises NotApplied if nothing was, or not as asked."""
        if self.axes.execution == "eager":
            return None
        from torch._dynamo.utils import counters

        graphs = int(counters["stats"]["unique_graphs"])
        if not graphs:
            raise NotApplied(
                "execution: compile was asked for and compiled no graph; a model whose class has its own forward"
                " (not a bare nn.Sequential) does compile under DDP and FSDP2"
            )
        hits = int(counters["inductor"]["fxgraph_cache_hit"])
        if hits and self.axes.cache == "cold":
            raise NotApplied(f"cache: cold was asked for and {hits} graphs came from a cache")
        return Compiled(
            graphs=graphs,
            graph_breaks={
                one_line(reason): int(count) for reason, count in counters["graph_break"].items()
            },
            recompiles=self.recompiles,
            seconds=self.seconds,
            cache_hits=hits,
            cache_misses=int(counters["inductor"]["fxgraph_cache_miss"]),
        )
