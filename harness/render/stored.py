"""Shows the disk space of sweeps, and what a command removes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness.core.text import counted
from harness.housekeeping.sweeps import Removal, StoredSweep
from harness.render.console import TerminalConsole, show_table
from harness.render.format import byte_size, duration
from harness.render.table import Table

COLUMNS = ["sweep", "trials", "size", "changed", ""]
DAY = 24 * 3600.0  # seconds


def show_sweeps(sweeps: Sequence[StoredSweep]) -> None:
    """Print a row for each sweep."""
    console = TerminalConsole()
    if not sweeps:
        console.print("no sweep has run here")
        return
    table = Table(COLUMNS, ["trials", "size", "changed"])
    now = time.time()
    for stored in sweeps:
        trials = str(stored.trials)
        if stored.planned is not None and stored.planned != stored.trials:
            trials = f"{stored.trials} of {stored.planned}"
        remark = "running" if stored.is_running else ""
        if stored.planned is None:
            remark = "sweep.json can't be read"
        seconds = now - stored.changed
        age = duration(seconds)
        if seconds >= 2 * DAY:
            age = counted(int(seconds / DAY), "day")
        table.add_row(stored.name, trials, byte_size(stored.bytes), f"{age} ago", remark)
    show_table(console, table)
    total = byte_size(sum(stored.bytes for stored in sweeps))
    console.print(f"\n{counted(len(sweeps), 'sweep')}, {total}")


def show_removals(removals: Sequence[Removal], *, is_dry_run: bool) -> None:
    """Print what is removed, a line each with its size and the reason, and the total."""
    verb = "would remove" if is_dry_run else "remove"
    for removal in removals:
        print(f"{verb} {removal.path} ({byte_size(removal.bytes)}, {removal.reason})")
    total = byte_size(sum(removal.bytes for removal in removals))
    print(f"{counted(len(removals), 'folder')}, {total}")
