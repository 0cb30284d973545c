"""Every way to hang that is planted, and what the failure of such a trial must say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness.records.record import Failure, Record
from tests.support import hangs
from tests.support.running import line_sweep

HANGS = f"{hangs.__file__}:Hangs"
WITH_WORKERS = ("loader", "killed", "lock")
# What rank 1 does by itself: its kind, and what the message says of it.
ALONE = {
    "python": ("Hang", r"^rank 1 on \S+ is in hangs.py:\d+ after step \d+, and"),
    "pipe": ("Hang", r"^rank 1 on \S+ is in hangs.py:\d+ after step"),
    "native": ("Unresponsive", r"^rank 1 on \S+ is in hangs.py:\d+ after step \d+, and has given no sign"),
    "stop": ("Unresponsive", r"^rank 1 on \S+ is in \S+:\d+ after step \d+, and has given no sign"),
    "loader": ("Hang", r"^rank 1 on \S+ is in \S+:\d+ after step"),
    # torch has another sentence where it finds out in another place.
    "killed": ("RuntimeError", r"DataLoader worker \(pid.* (is killed by signal: Killed|exited unexpectedly)"),
    "lock": ("Hang", r"^rank 1 on \S+ is in \S+:\d+ after step"),
}  # fmt: skip
# The others: collectives that rank 1 leaves out, calls in another order, or with other sizes.
WAYS = ("skip", "order", "sizes", *ALONE)


def hang_sweep(
    folder: Path, way: str, *, world_size: int, strategy: str, at: int = 30, **keys: Any
) -> Path:
    """Write a sweep of a trial that hangs in one way at a step; `keys` are those of the sweep."""
    axes: dict[str, Any] = {"strategy": strategy, "world_size": world_size}
    if way in WITH_WORKERS:
        axes.update({"num_workers": 1, "loader.persistent_workers": way == "loader"})
    options = {"way": way, "at": 6 if way == "killed" else at, "rank": 1, "step_seconds": 0.1}
    variant = {"uses": HANGS, "options": options, "axes": axes}
    # Trials that save at intervals, as all do under Slurm, would run again more often than once.
    keys = {"checkpoint": {"every": "never"}, **keys}
    return line_sweep(folder, {way: variant}, length={"steps": at + 20}, **keys)


def failure_of(record: Record) -> Failure:
    """Return why a trial has failed."""
    assert record.status == "failed"
    assert record.failure is not None
    return record.failure


def check_verdict(way: str, record: Record) -> None:
    """Raise AssertionError unless the failure names the rank and its line, or those of all."""
    cause = failure_of(record)
    if way in ALONE:
        kind, message = ALONE[way]
        assert (cause.kind, cause.rank) == (kind, 1), (way, cause)
        assert re.search(message, cause.message), (way, cause)
    elif cause.kind == "Killed":  # gloo aborts a rank that gets another size than it expects
        assert way in ("skip", "sizes"), (way, cause)
        assert "SIGABRT" in cause.message, (way, cause)
    else:
        assert cause.kind == "Hang", (way, cause)
        assert re.search(r"rank 0 on \S+ is in \S+:\d+ after step", cause.message), (way, cause)
