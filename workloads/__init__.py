"""Workloads: what is trained. This package knows torch and nothing of the harness.

A user's own workload derives from `Workload` or `Classifier`.

What needs torch is loaded on first use. So `import workloads` imports no torch, and planning a sweep
takes no noticeable time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from workloads.settings import Between, Count, Fraction, Rate, Settings, Target

if TYPE_CHECKING:
    from workloads.base import (
        Batch,
        Classifier,
        Samples,
        Splits,
        StreamSamples,
        TensorSamples,
        Workload,
    )
    from workloads.schedules import one_cycle

__all__ = [
    "Batch", "Between", "Classifier", "Count", "Fraction", "Rate", "Samples", "Settings", "Splits",
    "StreamSamples", "Target", "TensorSamples", "Workload", "one_cycle",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name, and return what the name stands for."""
    if name not in __all__:
        raise AttributeError(f"module 'workloads' has no attribute {name!r}")
    module = "schedules" if name == "one_cycle" else "base"
    return getattr(importlib.import_module(f"workloads.{module}"), name)
