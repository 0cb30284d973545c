"""A benchmark and reproducibility harness for distributed training in PyTorch.

In a notebook:

    import harness

    sweep = harness.load("nightly")            # what a sweep has recorded, as data frames
    sweep.trials, sweep.steps, sweep.cells
    harness.compare("baseline", "nightly")     # verdicts
    harness.plan("sweep.yaml").cells           # what a sweep will run
    harness.run("sweep.yaml")                  # run it on this machine

In a training script that the harness runs:

    harness.report(loss=loss, samples=len(batch))    # does nothing without the harness

The names below are loaded on first use, so that `import harness` loads no library: ranks begin with
it. All errors that a user can do something about are HarnessErrors.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.api import SweepData, SweepPlan, Verdicts, compare, load, plan, run
    from harness.core.errors import BadInput, HarnessError, Inconclusive
    from harness.core.progress import report

__version__ = "0.1.0"
# Noted before torch is imported: with OMP_PROC_BIND, its OpenMP binds this thread to a single core
# (`harness.core.cores`).
CORES_AT_START = tuple(sorted(os.sched_getaffinity(0)))

# The module in which each public name is defined.
_NAMES_BY_MODULE = {
    "core.errors": ("BadInput", "HarnessError", "Inconclusive"),
    "core.progress": ("report",),
    "api": ("SweepData", "SweepPlan", "Verdicts", "compare", "load", "plan", "run"),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "BadInput",
    "HarnessError",
    "Inconclusive",
    "SweepData",
    "SweepPlan",
    "Verdicts",
    "compare",
    "load",
    "plan",
    "report",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import the module that defines `name`, and return what the name stands for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    return getattr(importlib.import_module(f"harness.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, also those that are not loaded yet."""
    return [*__all__, "__version__"]
