"""Compares the conditions here with those of a recorded trial, and names what may explain a result.

`harness.records.differences` compares two records. This module compares before there is a second
one: the planner, git and a process like a rank tell what the trial would run with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.evidence import ORDER, RerunDifference
from harness.analysis.result import compared_fields
from harness.core.variables import LIBRARY_VARIABLE, PUBLIC_VARIABLES
from harness.hardware.machine import Device, machine_key
from harness.records.code import Code
from harness.records.differences import (
    Difference,
    Value,
    differences,
    environment_fields,
    flatten,
    record_fields,
    trial_fields,
)
from harness.records.environment import Environment
from harness.records.record import Record
from harness.spec.cell import Trial
from harness.training.determinism import GPU_VARIABLES

# Settings that follow from the cell, but are applied only by a rank that builds the model.
APPLIED_BY_RANKS = (
    "settings.float32_matmul_precision",
    "settings.deterministic_algorithms",
)
# A location of code; the code itself is compared by its content and by versions.
PATHS = ("variables.PYTHONPATH",)
HARDWARE = "hardware.key"  # the field of a baseline that names the machine's kind
# Fields that decide which samples a trial sees, and in what order.
ORDER_FIELDS = ("seed", "data", "axes.batch_size", "axes.world_size", "axes.num_workers", "code")
# Fields that decide which numbers a trial computes, apart from rounding errors.
COMPUTATION_FIELDS = (
    "seed",
    "code",
    "workload",
    "options",
    "data",
    "length",
    "evaluate",
    "warmup",
    "axes",
    "harness.training",
)
# Fields that decide which kernels compute, and so how they round: torch and its libraries, its settings,
# the CPU with its instruction sets, the GPU, and the variables that these libraries choose kernels by.
# Each with all fields below it.
KERNEL_FIELDS = (
    "software.torch",
    "software.torch_build",
    "software.blas",
    "software.cuda",
    "software.nccl",
    "software.packages.triton",
    "settings",
    "hardware.cpu",
    "hardware.cpu_version",
    "hardware.cpu_flags",
    "hardware.gpus",
    "variables.ATEN_CPU_CAPABILITY",
    "variables.BLIS_ARCH_TYPE",
    "variables.BLIS_NUM_THREADS",
    "variables.CUBLASLT_WORKSPACE_SIZE",
    "variables.CUBLAS_WORKSPACE_CONFIG",
    "variables.DNNL_CPU_ISA_HINTS",
    "variables.DNNL_DEFAULT_FPMATH_MODE",
    "variables.DNNL_MAX_CPU_ISA",
    "variables.MKL_CBWR",
    "variables.MKL_DEBUG_CPU_TYPE",
    "variables.MKL_DISABLE_FAST_MM",
    "variables.MKL_DOMAIN_NUM_THREADS",
    "variables.MKL_DYNAMIC",
    "variables.MKL_ENABLE_INSTRUCTIONS",
    "variables.MKL_NUM_STRIPES",
    "variables.MKL_NUM_THREADS",
    "variables.MKL_THREADING_LAYER",
    "variables.NVIDIA_TF32_OVERRIDE",
    "variables.OMP_DYNAMIC",
    "variables.OMP_NUM_THREADS",
    "variables.OMP_THREAD_LIMIT",
    "variables.ONEDNN_CPU_ISA_HINTS",
    "variables.ONEDNN_DEFAULT_FPMATH_MODE",
    "variables.ONEDNN_MAX_CPU_ISA",
    "variables.OPENBLAS_CORETYPE",
    "variables.OPENBLAS_NUM_THREADS",
)


def fields_of_record(record: Record) -> dict[str, Value]:
    """Return all that a record says of what its trial ran with, as one flat table."""
    return _without(record_fields(record), PATHS)


def fields_here(
    trial: Trial, environment: Environment, run: Mapping[str, Any] | None
) -> dict[str, Value]:
    """Return the same of a trial that is going to run here."""
    fields = trial_fields(trial) | environment_fields(environment)
    if run is not None:
        fields |= flatten({"run": run})
    return _without(fields, PATHS)


def condition_differences(
    recorded: Mapping[str, Value], present: Mapping[str, Value]
) -> list[Difference]:
    """Return what differs before anything has run, the likeliest cause of another result first."""
    names = list(APPLIED_BY_RANKS)
    if recorded.get("axes.deterministic"):
        names += [f"variables.{name}" for name in GPU_VARIABLES]
    return differences(_without(recorded, names), _without(present, names))


def baseline_differences(
    recorded: Mapping[str, Sequence[str]], environment: Environment, device: Device
) -> list[Difference]:
    """Return where an environment has another value than any trial of a baseline had.

    `recorded` has each value of each field once. A baseline that was saved before it had them says
    nothing of what its trials ran with, which counts as a difference.
    """
    if not recorded:
        return [Difference("environment", None, "not compared: the baseline has none")]
    present = {**compared_fields(environment), HARDWARE: machine_key(environment.hardware, device)}
    present = {name: text for name, text in present.items() if name not in APPLIED_BY_RANKS}
    before = {}
    for name, texts in recorded.items():
        if name not in APPLIED_BY_RANKS:
            matches = present.get(name) in texts
            before[name] = present[name] if matches else " or ".join(texts)
    return differences(before, present)


def code_of_baseline(recorded: Mapping[str, Sequence[str]]) -> Code | None:
    """Return the harness's code that a baseline was measured with.

    None if it does not say, or if its trials had several.
    """
    fields = {}
    for name in ("version", "commit", "dirty", "training"):
        texts = recorded.get(f"harness.{name}", [])
        if len(texts) > 1:
            return None
        fields[name] = texts[0] if texts else None
    if fields["version"] is None:
        return None
    return Code(
        version=fields["version"],
        commit=fields["commit"],
        dirty=fields["dirty"] == "true",
        training=fields["training"],
    )


def _without(fields: Mapping[str, Value], names: Sequence[str]) -> dict[str, Value]:
    """Return a table without some of its fields."""
    return {name: value for name, value in fields.items() if name not in names}


def is_same_computation(entries: Sequence[Difference]) -> bool:
    """Return whether the differences can change rounding errors only.

    Then a run in double precision here is as exact for the recorded trial as for the new one. A
    variable that no library reads is read by the workload's code, and can change anything.
    """
    if any(_is_read_by_workload(entry) for entry in entries):
        return False
    return not any(entry.field.startswith(COMPUTATION_FIELDS) for entry in entries)


def has_other_kernels(entries: Sequence[Difference]) -> bool:
    """Return whether the differences can change how operations round."""
    return any(_is_below(entry.field, KERNEL_FIELDS) for entry in entries)


def _is_below(name: str, fields: Sequence[str]) -> bool:
    """Return whether a field is one of `fields`, or below one."""
    return any(name == field or name.startswith(f"{field}.") for field in fields)


def _is_read_by_workload(entry: Difference) -> bool:
    """Return whether a difference is of a variable that no library is known to read."""
    section, _, name = entry.field.partition(".")
    if section != "variables" or name in PUBLIC_VARIABLES:
        return False
    return LIBRARY_VARIABLE.match(name) is None


def most_likely_cause(
    candidates: Sequence[Difference], first_difference: RerunDifference | None
) -> Difference | None:
    """Return the difference that most likely explains another result, None where none is known.

    If the samples came in another order, only a field that decides the order can be the cause.
    """
    if first_difference is None or not candidates:
        return None
    if first_difference.subject == ORDER:
        deciding = [entry for entry in candidates if entry.field.startswith(ORDER_FIELDS)]
        candidates = deciding or candidates
    return candidates[0]
