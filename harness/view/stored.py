"""Shows the disk space of sweeps, and what a command removes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness.core.text import counted
from harness.housekeeping import Removal, StoredSweep
from harness.view.value import Kind, byte_size, duration
from harness.view.view import Table, View

DAY = 24 * 3600.0  # seconds


def sweeps_view(sweeps: Sequence[StoredSweep]) -> View:
    """Return a row for each sweep."""
    if not sweeps:
        return View(result=sweeps, lines=["no sweep has run here"])
    numbers: dict[str, Kind] = {"trials": "number", "size": "bytes", "changed": "number"}
    table = Table(["sweep", "trials", "size", "changed", ""], numbers)
    for stored in sweeps:
        trials = str(stored.trials)
        remark = "running" if stored.is_running else ""
        if stored.planned is None:
            remark = "sweep.json can't be read"
        elif stored.planned != stored.trials:
            trials = f"{stored.trials} of {stored.planned}"
        seconds = time.time() - stored.changed
        age = counted(int(seconds / DAY), "day") if seconds >= 2 * DAY else duration(seconds)
        table.add_row(stored.name, trials, stored.bytes, f"{age} ago", remark)
    total = byte_size(sum(stored.bytes for stored in sweeps))
    return View(result=sweeps, tables=[table], lines=[f"{counted(len(sweeps), 'sweep')}, {total}"])


def removals_view(removals: Sequence[Removal], *, is_dry_run: bool) -> View:
    """Return what is removed, a line each with its size and the reason, and the total."""
    verb = "would remove" if is_dry_run else "remove"
    lines = []
    for removal in removals:
        lines.append(f"{verb} {removal.path} ({byte_size(removal.bytes)}, {removal.reason})")
    total = byte_size(sum(removal.bytes for removal in removals))
    return View(result=removals, lines=[*lines, f"{counted(len(removals), 'folder')}, {total}"])
