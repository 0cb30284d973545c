"""Imports what every rank on CPUs needs: for forkservers.

Nothing here computes: torch's threads must not start in a process that forks others. Only
built-in workloads are imported; a user's may belong to one cell alone.
"""

from __future__ import annotations

import platform
from importlib import import_module

import harness.measure.clock
import harness.training.worker  # noqa: F401
from harness.records.environment import describe_packages, training_digest
from workloads.catalog import BUILT_IN, heavy_modules


def load() -> None:
    """Import the workloads, and look up what ranks remember of the software."""
    for name, declaration in BUILT_IN.items():
        module, _, _ = declaration.path.partition(":")
        if not heavy_modules(name):  # those are for forkservers of the cells that train them
            import_module(module)
    # Python starts a program to describe the platform, and to look up versions takes milliseconds.
    platform.platform()
    describe_packages()
    training_digest()  # of the code that is loaded here, whatever becomes of its files


load()
