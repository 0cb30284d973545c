"""Workloads: what is trained. This package knows torch and nothing of the harness.

A user's own workload derives from `Workload` or `Classifier`.

The names below are loaded on first use. So `import workloads` imports no torch, and planning a
sweep takes no noticeable time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.averaging import WeightAverage
    from workloads.axis import CustomAxis
    from workloads.base import (
        Batch,
        Classifier,
        Samples,
        Splits,
        StreamSamples,
        Target,
        TensorSamples,
        Turn,
        Workload,
    )
    from workloads.catalog import BUILT_IN, Declaration, load_class
    from workloads.mapped import MappedArray, MappedSamples, map_arrow, map_idx, map_npy
    from workloads.options import Between, Count, Fraction, Rate, Settings
    from workloads.schedules import one_cycle
    from workloads.shards import ShardSamples
    from workloads.sources import Csv, Digits, Idx, ImageData, Mapped, TextData, Tickets

# The module in which each public name is defined.
_NAMES_BY_MODULE = {
    "averaging": ("WeightAverage",),
    "axis": ("CustomAxis",),
    "base": (
        "Batch",
        "Classifier",
        "Samples",
        "Splits",
        "StreamSamples",
        "Target",
        "TensorSamples",
        "Turn",
        "Workload",
    ),
    "catalog": ("BUILT_IN", "Declaration", "load_class"),
    "mapped": ("MappedArray", "MappedSamples", "map_arrow", "map_idx", "map_npy"),
    "options": ("Between", "Count", "Fraction", "Rate", "Settings"),
    "schedules": ("one_cycle",),
    "shards": ("ShardSamples",),
    "sources": ("Csv", "Digits", "Idx", "ImageData", "Mapped", "TextData", "Tickets"),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "BUILT_IN",
    "Batch",
    "Between",
    "Classifier",
    "Count",
    "Csv",
    "CustomAxis",
    "Declaration",
    "Digits",
    "Fraction",
    "Idx",
    "ImageData",
    "Mapped",
    "MappedArray",
    "MappedSamples",
    "Rate",
    "Samples",
    "Settings",
    "ShardSamples",
    "Splits",
    "StreamSamples",
    "Target",
    "TensorSamples",
    "TextData",
    "Tickets",
    "Turn",
    "WeightAverage",
    "Workload",
    "load_class",
    "map_arrow",
    "map_idx",
    "map_npy",
    "one_cycle",
]


def __getattr__(name: str) -> Any:
    """Import the module that defines `name`, and return what the name stands for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'workloads' has no attribute {name!r}")
    return getattr(importlib.import_module(f"workloads.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, also those that are not loaded yet."""
    return __all__
