"""Whether the cells of a sweep fit into memory, before they run."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.core.errors import HarnessError, one_line
from harness.core.paths import Results
from harness.interface.folders import run_folder
from harness.interface.planning import readable_records
from harness.preflight.memory import CellMemory, forecast_cells
from harness.records.record import Record
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep

# Smaller peaks on CPUs are not compared: what libraries take in training is a part of them.
LEAST_COMPARED = 2**26  # bytes
SUBMIT_SECONDS = 60.0  # that `harness submit` forecasts for at most


def forecast_memory(
    sweep: Sweep,
    profile: Profile,
    results: Results,
    on_progress: Callable[[str], None],
    *,
    limit: int | None = None,
) -> list[CellMemory]:
    """Return the memory of each cell of a sweep, which needs no device and none of its ranks.

    `limit` are the bytes that a rank may take, which otherwise the profile says. With either, the
    largest batch that fits is searched, and what makes a cell fit. `on_progress` is called with the
    label of each workload.
    """
    limits: dict[str, int | None] = {}
    for cell in sweep.cells:
        limits[cell.id] = limit or profile.rank_memory(cell.axes.world_size)
    with run_folder("memory") as scratch:
        forecasts = forecast_cells(
            sweep.cells, limits, sweep.base_folder, profile, scratch.path, on_progress
        )
    paths = results.record_paths_by_cell()
    memories = []
    for cell in sweep.cells:
        measured = []
        for record in readable_records(paths.get(cell.id, ())):
            peak = _comparable_peak(cell, record)
            if peak is not None:
                measured.append(peak)
        memories.append(
            CellMemory(
                cell=cell,
                forecast=forecasts[cell.id],
                limit=limits[cell.id],
                measured=measured,
            )
        )
    return memories


def memory_warning(sweep: Sweep, profile: Profile) -> str | None:
    """Return a line on cells that do not fit into the memory that the profile states, None without any.

    A workload whose data are not on this machine can't be forecast, and is left out. Cells that are
    unknown after `SUBMIT_SECONDS` are counted. Nothing that goes wrong is raised.
    """
    limits = {cell.id: profile.rank_memory(cell.axes.world_size) for cell in sweep.cells}
    if all(limit is None for limit in limits.values()):
        return None
    deadline = time.monotonic() + SUBMIT_SECONDS
    try:
        with run_folder("memory") as scratch:
            forecasts = forecast_cells(
                sweep.cells, {}, sweep.base_folder, profile, scratch.path, lambda _: None, deadline
            )
    except (HarnessError, OSError) as error:  # such as a full disk
        return f"whether the cells fit into memory is unknown: {one_line(str(error))}"
    remarks = []
    too_large = []
    for cell in sweep.cells:
        memory = CellMemory(cell=cell, forecast=forecasts[cell.id], limit=limits[cell.id])
        if memory.excess:
            too_large.append(memory)
    if too_large:
        worst = max(too_large, key=lambda memory: memory.excess or 0)
        remarks.append(
            f"{len(too_large)} of {len(forecasts)} cells will not fit into memory,"
            f" {worst.cell.label} by {(worst.excess or 0) / 2**30:.3g} GiB a rank; harness plan"
            " --memory says what fits"
        )
    unknown = sum(forecast.bytes is None for forecast in forecasts.values())
    if unknown and time.monotonic() > deadline:
        remarks.append(
            f"whether {unknown} of {len(forecasts)} cells fit into memory is unknown after"
            f" {SUBMIT_SECONDS:.0f} s; harness plan --memory may take longer"
        )
    return "; ".join(remarks) or None


def _comparable_peak(cell: Cell, record: Record) -> int | None:
    """Return the bytes that training took at most, None where they are no measure of the forecast.

    On CPUs, what torch.compile itself takes is a part of them.
    """
    across = record.ranks.across
    peak = across.training_bytes
    if record.status != "done" or peak is None:
        return None
    on_cpu = "allocated" not in across.memory
    if on_cpu and (peak < LEAST_COMPARED or cell.axes.execution != "eager"):
        return None
    return peak
