"""Names what differs between a record and that of the same trial run again, and what may explain it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.rungs import ORDER, RerunDifference
from harness.core.variables import is_of_library
from harness.records.differences import Difference, Value, record_fields
from harness.records.record import Record

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
    fields = record_fields(record)
    # A location of code; the code itself is compared by its content and by versions.
    fields.pop("variables.PYTHONPATH", None)
    return fields


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
    return section == "variables" and not is_of_library(name)


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
