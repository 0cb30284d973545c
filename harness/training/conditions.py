"""The conditions that must be the same for a trial to resume: with others it would end with results of neither."""

from __future__ import annotations

import os
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

SHOWN = 60  # characters of a value, in errors


def describe_conditions(
    trial_id: str, packages: Sequence[str], device: torch.device
) -> dict[str, str]:
    """Return the conditions of this process by name.

    Of the harness, only the code that trains counts: another version of the report changes no result,
    and a sweep that takes days must not start again for it. Of packages, those count that the workload
    imports (`packages`), and NumPy, which draws the order of samples.
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
    for name in {"numpy", *packages}:
        conditions[f"package {name}"] = str(software.packages.get(name))
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
    for name in {**expected, **present}:
        if present.get(name) != expected.get(name):
            found, allowed = str(present.get(name))[:SHOWN], str(expected.get(name))[:SHOWN]
            return f"{name}: found {found}; allowed: {allowed}"
    return None
