"""Loads and looks up what every rank on CPUs needs, so that none of them does: for forkservers.

Each rank would spend some 100 ms of CPU time on it. Nothing here computes: torch's threads must not
start in a process that is to be forked. Code of a workload is read, and that of built-in ones is
imported; a user's is not, because it may belong to one cell alone.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import get_args

from harness.core.ports import LOOPBACK, listen
from harness.records.assignment import Assignment
from harness.records.code import training_digest
from harness.records.decode import prepare_decoding
from harness.records.environment import look_up_software
from harness.spec.axes import STRATEGIES
from workloads.catalog import BUILT_IN, HEAVY_MODULES
from workloads.code import files_of_built_in

# What ranks import sooner or later. Not `harness.launch.forked` itself but what it imports, because
# Python warns of a program that has been imported before it is run.
MODULES = (
    "encodings.ascii",
    "harness.core.oom",
    "harness.launch.launcher",
    "harness.measure.communication",
    "harness.records.running",
    "harness.training.worker",
    "safetensors.torch",
    "torch.utils.serialization.config",
)
# What torch imports in the first step; it has another name in another version.
OF_FIRST_STEP = "torch.profiler._cupti_monitor"


def load() -> None:
    """Import, read and look up."""
    for name in MODULES:
        import_module(name)
    with suppress(ImportError):
        import_module(OF_FIRST_STEP)
    for implementation in STRATEGIES.values():
        import_module(implementation.partition(":")[0])
    for declaration in BUILT_IN.values():
        module, _, _ = declaration.path.partition(":")
        files_of_built_in(module)
        if module not in HEAVY_MODULES:  # those are for forkservers of the cells that train them
            import_module(module)
        for settings in (declaration.options, *get_args(declaration.data)):
            prepare_decoding(settings)
    prepare_decoding(Assignment)
    look_up_software()
    training_digest()  # of the code that is loaded here, whatever becomes of its files
    listen(LOOPBACK, 0).close()  # the first look-up of an address loads codecs and settings


load()
