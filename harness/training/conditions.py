"""The conditions that must be the same for a trial to resume: with others it would end with results of neither."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import torch

from harness.core.variables import chooses_kernels
from harness.records.code import training_digest
from harness.records.environment import (
    describe_hardware,
    describe_settings,
    describe_software,
    relevant_variables,
)

# Packages that ranks do not compute with, or that only read and write files.
IDLE_PACKAGES = ("mlflow", "submitit", "safetensors")
MODULES = {"scikit-learn": "sklearn"}  # that a package is imported as, where it isn't its name
SHOWN = 60  # characters of a value, in errors


def describe_conditions(
    trial_id: str, packages: Sequence[str], device: torch.device
) -> dict[str, str]:
    """Return the conditions of this process by name.

    Of the harness, only the code that trains counts: another version of the report changes no result,
    and a sweep that takes days must not start again for it. Of packages, those count that the workload
    imports (`packages`), and those of the usual ones that this process has loaded.
    """
    software, hardware = describe_software(packages), describe_hardware()
    conditions = {
        "trial": trial_id,
        "code": training_digest(),
        "python": software.python,
        "torch": software.torch,
        "cpu": f"{hardware.cpu} {hardware.cpu_version}",
        "cpu_capability": str(describe_settings().cpu_capability),
    }
    for name, version in software.packages.items():
        is_loaded = MODULES.get(name, name) in sys.modules
        if name not in IDLE_PACKAGES and (is_loaded or name in packages):
            conditions[f"package {name}"] = version
    if device.type == "cuda":
        conditions["gpu"] = torch.cuda.get_device_name(device)
        conditions["cuda"] = str(software.cuda)
        conditions["nccl"] = str(software.nccl)
    for name, value in relevant_variables(os.environ).items():
        if chooses_kernels(name):
            conditions[name] = value
    return conditions


def find_mismatch(present: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    """Return how the conditions of a checkpoint differ from the expected ones, None if they do not."""
    for name in [*expected, *(name for name in present if name not in expected)]:
        is_package = name.startswith("package ")
        if is_package and (name not in present or name not in expected):
            continue  # whether a process has loaded what it doesn't need depends on its launcher
        if present.get(name) != expected.get(name):
            found, allowed = str(present.get(name))[:SHOWN], str(expected.get(name))[:SHOWN]
            return f"{name}: found {found}; allowed: {allowed}"
    return None
