"""Rebuilds a trial's cell, sweep and profile from its record alone, without its sweep file.

The recorded settings go through the planner as if a sweep file had them. So the workload's files,
its data and the defaults as they are now decide the identity of the rebuilt cell, and every change
since shows as a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.core.errors import BadInput
from harness.core.variables import WITHHELD
from harness.records.record import RunSettings
from harness.sweep.axes import section_of
from harness.sweep.cell import NEVER, Cell, CheckpointRules, Trial, WorkloadRef
from harness.sweep.cluster import Profile, ValidityRules
from harness.sweep.document import Document
from harness.sweep.sweep import Sweep, call_apart
from harness.sweep.sweepfile import apply_data
from harness.sweep.workload import SweepWorkload, WorkloadEntry, find_reason
from workloads.catalog import BUILT_IN

TIMEOUT = 24 * 3600.0  # seconds, for a trial whose timeout was not recorded
# A rerun is for its bits, which other programs cannot change, so no measurement is refused.
ANY_SPEED = ValidityRules(reruns=0, contention=None)


def rebuild_cell(cell: Cell, base: Path, data: Sequence[str]) -> Cell:
    """Return the cell of a record as `_rebuild` plans it; users' code is imported apart."""
    if cell.workload.uses in BUILT_IN:
        return _rebuild(cell, base, data)
    return call_apart(_rebuild, cell, base, data)


def _rebuild(cell: Cell, base: Path, data: Sequence[str]) -> Cell:
    """Return the cell of a record as planned here.

    `base` is the folder that the workload's paths are relative to. `data` are the texts after
    `--data`. Raises BadInput for settings that are unavailable here, such as a missing file.
    """
    workload = cell.workload
    # The source is a path in the base folder, because the planner takes the folder from there.
    source = str(base / f"record of {cell.id}")
    content = {"workloads": {workload.label: _entry_of(workload)}}
    document = Document(content=content, sources={(): source})
    for text in data:
        apply_data(document, text)
    key = ("workloads", workload.label)
    section = document.content["workloads"][workload.label]
    parsed: WorkloadEntry = document.validate(WorkloadEntry, section, key)
    planned = SweepWorkload(document, workload.label, parsed)
    plan = planned.plan(parsed.settings, {})
    conflict = find_reason(plan, cell.axes)
    if conflict:
        raise BadInput(f"{cell.label}: {conflict}")
    reference = replace(plan[0], axes=workload.axes, unset=workload.unset)
    return replace(cell, workload=reference)


def _entry_of(workload: WorkloadRef) -> dict[str, Any]:
    """Return the entry by which a sweep file asks for a recorded workload."""
    if not workload.is_script:
        return {
            "uses": workload.uses,
            "options": workload.options,
            "data": section_of(workload.settings, "data"),
        }
    entry: dict[str, Any] = {
        "options": workload.options,
        "arguments": list(workload.arguments or ()),
        "target": None,
        "module": workload.module,
        "launch": workload.launch,
    }
    if workload.target is not None:
        entry["target"] = asdict(workload.target)
    if workload.module is None:
        entry["uses"] = workload.uses
    return entry


def cell_in_fp64(cell: Cell) -> Cell:
    """Return a cell that computes the same as another one, in double precision.

    It has no rule to stop: with one, it might stop at another evaluation.
    """
    axes = replace(cell.axes, precision="fp64")
    return replace(cell, axes=axes, stop=None)


def rebuild_sweep(
    trials: Sequence[Trial], settings: RunSettings | None, name: str, base: Path
) -> Sweep:
    """Return a sweep of recorded trials, for the runner."""
    cells = {trial.cell.id: trial.cell for trial in trials}
    seeds = {trial.seed for trial in trials}
    sweep = Sweep(
        name=name,
        source=base / "sweep.yaml",
        seeds=sorted(seeds),
        repeats=1 + max(trial.repeat for trial in trials),
        checkpoint=CheckpointRules(every=NEVER),
        timeout=TIMEOUT,
        cells=list(cells.values()),
        excluded=(),
        unused_rules=(),
    )
    if settings is None:
        return sweep
    return replace(
        sweep,
        source=base / Path(settings.sweep_file).name,
        checkpoint=CheckpointRules(every=NEVER, best=settings.checkpoint == "best"),
        timeout=settings.timeout,
    )


def rebuild_profile(settings: RunSettings | None, world_size: int) -> Profile:
    """Return the profile that trials run again with: this machine, with the recorded variables.

    Values that the record withholds can't be set again. Ranks may share cores, which changes the
    speed only.
    """
    if settings is None:
        return Profile(slots=world_size, validity=ANY_SPEED)
    return Profile(
        device=settings.device,
        slots=world_size,
        environment=public_environment(settings),
        forkserver=settings.forkserver,
        validity=ANY_SPEED,
    )


def public_environment(settings: RunSettings) -> dict[str, str]:
    """Return the variables of a recorded profile whose values were not withheld."""
    variables = settings.environment.items()
    return {name: value for name, value in variables if value != WITHHELD}
