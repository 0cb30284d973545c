"""Loads and looks up what every rank on CPUs needs, so that none of them does: for forkservers.

It takes some 30 ms of CPU time, which each rank would spend anew. Nothing here computes: torch's
threads must not start in a process that is to be forked. Code of a workload is read, and that of
built-in ones is imported; a user's is not, because it may belong to one cell alone.
"""

from __future__ import annotations

from importlib import import_module

import safetensors.torch  # noqa: F401

from harness.records.assignment import Assignment
from harness.records.decode import prepare_decoding
from harness.records.environment import describe_packages
from harness.spec.axes import STRATEGIES
from workloads.catalog import BUILT_IN, HEAVY_MODULES
from workloads.code import files_of_built_in


def load() -> None:
    """Import, read and look up."""
    for implementation in STRATEGIES.values():
        import_module(implementation.partition(":")[0])
    for declaration in BUILT_IN.values():
        module, _, _ = declaration.path.partition(":")
        files_of_built_in(module)
        if module not in HEAVY_MODULES:  # those are for forkservers of the cells that train them
            import_module(module)
    prepare_decoding(Assignment)
    describe_packages()


load()
