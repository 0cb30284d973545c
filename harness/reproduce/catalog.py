"""The catalogue of operations: the measurements of each operation that workloads use, summarized.

An operation of torch is repeatable if it computes the same bits from the same inputs in every run.
The number of threads may change its bits, as it decides where a sum is split. So may the memory
addresses of its inputs: kernels treat elements before an aligned address separately, and tensors in
the buckets of DDP and FSDP2 begin anywhere.

`operation_worker` measures; this module reads its results and loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.paths import write_atomically
from harness.records.decode import FileFormat, decode_file
from harness.spec.axes import DEFAULTS, NEEDS, Axes

FILE_NAME = "operations.json"
FORMAT = FileFormat(name="catalogue of operations")
REPEATS = 25  # runs of an operation for each number of threads and kind of placement
THREADS = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class ThreadResult:
    """What an operation computed with one number of threads, in REPEATS runs of each kind."""

    threads: int
    digest: str  # of the result of the first run
    distinct: int  # results of runs with inputs where torch allocates them
    distinct_shifted: int  # of those and of runs whose inputs begin at other addresses


@dataclass(frozen=True, kw_only=True)
class OperationResult:
    """What was measured of one operation on inputs of certain types and shapes."""

    operation: str  # as torch names it, such as aten.addmm.default
    dtype: str  # of its floating-point inputs, or else of its inputs
    sizes: str  # of its tensors, for people
    elements: int  # of all its tensors
    calls: int  # in one training step
    runs: Sequence[ThreadResult]  # by number of threads

    @property
    def is_repeatable(self) -> bool:
        """Return whether all runs with one number of threads gave the same bits."""
        return all(run.distinct == 1 for run in self.runs)

    @property
    def depends_on_placement(self) -> bool:
        """Return whether inputs at other addresses gave other bits, where runs repeat otherwise."""
        return any(run.distinct == 1 and run.distinct_shifted > 1 for run in self.runs)

    @property
    def depends_on_threads(self) -> bool:
        """Return whether another number of threads gave other bits, where runs repeat otherwise."""
        return self.is_repeatable and len({run.digest for run in self.runs}) > 1

    @property
    def is_exact(self) -> bool:
        """Return whether all runs gave the same bits."""
        return not (not self.is_repeatable or self.depends_on_placement or self.depends_on_threads)

    def unrepeatable_at(self) -> str:
        """Return how many distinct results there were, as `9 of 25 at 2 threads`; else empty."""
        parts = []
        for run in self.runs:
            if run.distinct > 1:
                parts.append(f"{run.distinct} of {REPEATS} at {run.threads} threads")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class OperationGroup:
    """All that was measured of one operation in one type: over workloads and sizes."""

    operation: str
    dtype: str
    results: Sequence[OperationResult]

    @property
    def worst(self) -> OperationResult:
        """Return the result that shows most; of equals, that with the largest inputs."""

        def badness(result: OperationResult) -> tuple[bool, bool, bool, int]:
            """Return what orders results, the worst last."""
            return (
                not result.is_repeatable,
                result.depends_on_placement,
                result.depends_on_threads,
                result.elements,
            )

        return max(self.results, key=badness)


def group_operations(
    by_workload: Mapping[str, Sequence[OperationResult]],
) -> list[OperationGroup]:
    """Return one group for each operation and type, in alphabetical order.

    Workloads that use an operation at the same sizes count once.
    """
    results: dict[tuple[str, str], dict[str, OperationResult]] = {}
    for measured in by_workload.values():
        for result in measured:
            key = (result.operation, result.dtype)
            results.setdefault(key, {})[result.sizes] = result
    groups = []
    for (operation, dtype), by_size in sorted(results.items()):
        groups.append(
            OperationGroup(
                operation=operation,
                dtype=dtype,
                results=list(by_size.values()),
            )
        )
    return groups


def single_process(axes: Axes) -> Axes:
    """Return the axes of one process that computes what each rank computes alone.

    Operations are recorded without ranks, loader workers and compilation: what torch.compile makes
    is no operation of torch.
    """
    changes: dict[str, Any] = {"strategy": "single", "execution": "eager", "num_workers": 0}
    for need in NEEDS:
        if need.axis in changes:
            changes.update({name: DEFAULTS[name] for name in need.dependents})
    return replace(
        axes,
        **changes,
        world_size=1,
        batch_size=axes.batch_size // axes.data_parallel_size,
        reduction="backend",
    )


def write_operations(folder: Path, operations: Sequence[OperationResult]) -> None:
    """Write the catalogue of one workload."""
    content = {"operations": [asdict(operation) for operation in operations]}
    write_atomically(folder / FILE_NAME, json.dumps(content) + "\n", durable=False)


@dataclass(frozen=True, kw_only=True)
class _Catalog:
    """The content of the file."""

    operations: Sequence[OperationResult]


def read_operations(folder: Path) -> Sequence[OperationResult]:
    """Return what `write_operations` wrote; raises BadFile."""
    return decode_file(_Catalog, folder / FILE_NAME, FORMAT).operations
