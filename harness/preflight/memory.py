"""Forecasts the memory of a sweep's cells, without the ranks and the devices that they will have.

Cells that only differ in what takes no memory are forecast once. Those with one workload,
with the same settings, code, custom axes and environment, share a process, in which `memory_worker`
forecasts all of them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError
from harness.core.paths import TrialFolder, write_atomically
from harness.launch.unmeasured import run_unmeasured
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.spec.axes import Axes
from harness.spec.cell import Cell, Trial
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions

TIMEOUT = 600.0  # seconds for all cells of one workload
REQUEST_FILE, FORECASTS_FILE = "cells.json", "forecasts.json"  # in the folder of the process
REQUEST_FORMAT = FileFormat(name="list of cells", is_sealed=True)
FORECASTS_FORMAT = FileFormat(name="list of forecasts", is_sealed=True)
WRONG = 0.1  # the relative error from which on a forecast is named
# Axes that tensors of a training step do not depend on.
FREE_AXES = {
    "execution", "dynamic", "fullgraph", "cache", "input", "order", "page_cache", "num_workers", "prefetch_factor",
    "persistent_workers", "pin_memory", "deterministic", "num_threads", "lr", "lr_scaling", "lr_schedule", "lr_warmup",
    "checkpoint_every", "stack", "binding",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Settings with which a cell fits, and the bytes that it then takes."""

    axes: Mapping[str, Any]
    bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """The memory of a rank at its peak, in bytes, or why it is unknown."""

    parts: Mapping[str, int] = field(default_factory=dict)  # `harness.measure.storages.PARTS`
    problem: str = ""  # why there is no forecast; one line
    # Of cells that were compared with a limit. None: not even the smallest batch fits.
    largest_batch: int | None = None
    remedies: Sequence[Remedy] = ()  # for a cell that does not fit

    @property
    def bytes(self) -> int | None:
        """Return the bytes of all parts together, None if they are unknown."""
        return sum(self.parts.values()) if self.parts else None


@dataclass(frozen=True, kw_only=True)
class CellMemory:
    """The memory of a rank of a cell: the forecast, the limit, and what trials took."""

    cell: Cell
    forecast: MemoryForecast
    limit: int | None = None  # bytes that a rank may take; None: unknown
    measured: Sequence[int] = ()  # bytes of the rank with the most, of each trial that is compared

    @property
    def excess(self) -> int | None:
        """Return the bytes over the limit, 0 for a cell that fits; None where it is unknown."""
        if self.limit is None or self.forecast.bytes is None:
            return None
        return max(0, self.forecast.bytes - self.limit)

    @property
    def errors(self) -> list[float]:
        """Return the relative error of the forecast for each trial that is compared."""
        if self.forecast.bytes is None:
            return []
        return [self.forecast.bytes / peak - 1 for peak in self.measured]

    @property
    def is_wrong(self) -> bool:
        """Return whether the forecast is off by a tenth for any trial."""
        return any(abs(error) > WRONG for error in self.errors)


@dataclass(frozen=True, kw_only=True)
class MemoryRequest:
    """What a process is to forecast: cells of one workload."""

    cells: Sequence[Cell]
    limits: Sequence[int | None]  # the bytes that a rank of each may take; None: unknown
    on_gpu: bool  # whether the ranks will communicate by NCCL


def memory_key(cell: Cell) -> str:
    """Return a text that is the same for cells whose ranks need the same memory."""
    axes = {name: value for name, value in cell.axes.values.items() if name not in FREE_AXES}
    return json.dumps([_process_key(cell), axes], sort_keys=True)


def _process_key(cell: Cell) -> str:
    """Return a text that is the same for cells that one process can forecast."""
    workload = cell.workload
    return json.dumps(
        [workload.identity_key, workload.uses, workload.custom, cell.environment], sort_keys=True
    )


def forecast_cells(
    cells: Sequence[Cell],
    limits: Mapping[str, int | None],
    base_folder: Path,
    profile: Profile,
    folder: Path,
    on_progress: Callable[[str], None],
    deadline: float = math.inf,
) -> dict[str, MemoryForecast]:
    """Return the forecasts of cells by their ids.

    `limits` are the bytes that a rank may take, by the id of the cell. `folder` is for files of the
    processes, `on_progress` is called with the label of each workload. What prevents a forecast is
    in its place: a script, a workload that can't do without values, or a `deadline` of the monotonic
    clock.
    """
    alike: dict[str, list[Cell]] = {}
    for cell in cells:
        alike.setdefault(memory_key(cell), []).append(cell)
    processes: dict[str, list[Cell]] = {}
    for group in alike.values():
        processes.setdefault(_process_key(group[0]), []).append(group[0])
    forecasts: dict[str, MemoryForecast] = {}
    for examined in processes.values():
        on_progress(examined[0].workload.label)
        request = MemoryRequest(
            cells=examined,
            limits=[limits.get(cell.id) for cell in examined],
            on_gpu=profile.gpus > 0 or profile.device == "cuda",
        )
        timeout = min(TIMEOUT, deadline - time.monotonic())
        results = _forecast_together(request, base_folder, profile, folder, timeout)
        for cell, forecast in zip(examined, results, strict=True):
            for equal in alike[memory_key(cell)]:
                forecasts[equal.id] = forecast
    return forecasts


def _forecast_together(
    request: MemoryRequest, base_folder: Path, profile: Profile, folder: Path, timeout: float
) -> Sequence[MemoryForecast]:
    """Return the forecasts of cells of one workload, from a process that has none of their ranks."""
    if timeout <= 0:
        return [MemoryForecast(problem="there was no time left for it")] * len(request.cells)
    cell = request.cells[0]
    # The process itself is a single rank; it fakes those of the cells.
    trial = Trial(
        cell=replace(cell, axes=Axes(batch_size=cell.axes.batch_size), stack=None), seed=0
    )

    def write_request(trial_folder: TrialFolder) -> None:
        write_atomically(trial_folder.path / REQUEST_FILE, sealed_text(asdict(request)))

    try:
        trial_folder = run_unmeasured(
            "forecast-memory",
            trial,
            base_folder,
            replace(profile, device="cpu", slurm=SlurmOptions(), launcher="torchrun"),
            timeout,
            folder,
            write_request,
        )
        return read_forecasts(trial_folder.path / FORECASTS_FILE)
    except HarnessError as error:
        return [MemoryForecast(problem=str(error))] * len(request.cells)


def read_request(path: Path) -> MemoryRequest:
    """Read what to forecast."""
    return decode_file(MemoryRequest, path, REQUEST_FORMAT)


@dataclass(frozen=True, kw_only=True)
class _Forecasts:
    """The file of forecasts."""

    forecasts: Sequence[MemoryForecast]


def write_forecasts(path: Path, forecasts: Sequence[MemoryForecast]) -> None:
    """Write forecasts, in the order of the request's cells."""
    write_atomically(path, sealed_text(asdict(_Forecasts(forecasts=forecasts))))


def read_forecasts(path: Path) -> Sequence[MemoryForecast]:
    """Read what `write_forecasts` wrote."""
    return decode_file(_Forecasts, path, FORECASTS_FORMAT).forecasts
