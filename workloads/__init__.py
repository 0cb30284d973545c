"""Workloads: what is trained. This package knows torch and nothing of the harness.

A user's own workload derives from `Workload` or `Classifier`.

The names below are loaded on first use. So `import workloads` imports no torch, and planning a
sweep takes no noticeable time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.base import Batch as Batch
    from workloads.base import Classifier as Classifier
    from workloads.base import Samples as Samples
    from workloads.base import Splits as Splits
    from workloads.base import StreamSamples as StreamSamples
    from workloads.base import Target as Target
    from workloads.base import TensorSamples as TensorSamples
    from workloads.base import Workload as Workload
    from workloads.options import Between as Between
    from workloads.options import Count as Count
    from workloads.options import Fraction as Fraction
    from workloads.options import Rate as Rate
    from workloads.options import Settings as Settings
    from workloads.schedules import one_cycle as one_cycle

# The public names by the module that defines them.
_NAMES = {
    "base": "Batch Classifier Samples Splits StreamSamples Target TensorSamples Workload",
    "options": "Between Count Fraction Rate Settings",
    "schedules": "one_cycle",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines `name`, and return what the name stands for."""
    for module, names in _NAMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"workloads.{module}"), name)
    raise AttributeError(f"module 'workloads' has no attribute {name!r}")
