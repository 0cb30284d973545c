"""`harness logs`: what a rank of a trial, or what started it, has written."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from time import sleep

from harness.core.errors import BadInput, did_you_mean
from harness.core.paths import Results, TrialFolder

INTERVAL = 0.5  # seconds between two looks at a growing file


def find(results: Results, trial: str, sweep: str | None) -> TrialFolder:
    """The folder of a trial given by its id; raises BadInput unless there is exactly one."""
    below = results.runs if sweep is None else results.sweep_folder(sweep).path
    held = [
        path.parent
        for path in below.glob("*/trial.json" if sweep is not None else "*/*/trial.json")
    ]
    found = [path for path in held if path.name == trial]
    if not found:
        names = sorted({path.name for path in held})
        near = difflib.get_close_matches(trial, names, n=3, cutoff=0.3) or names[:3]
        begun = (
            f"those that have begun, such as {', '.join(near)}"
            if near
            else "none has begun; --results says where"
        )
        raise BadInput(f"{trial}: no such trial in {below}; allowed: {begun}")
    if len(found) > 1:
        sweeps = ", ".join(sorted(path.parent.name for path in found))
        raise BadInput(f"{trial}: found in {sweeps}; allowed: one of them, with --sweep")
    return TrialFolder(found[0])


def show(place: TrialFolder, rank: int | None, *, follow: bool) -> None:
    """Print a rank's log, or the launcher's; with `follow` as it grows, until the trial has ended."""
    path = place.launch_log if rank is None else place.rank_log(rank)
    if not path.exists() and not follow:
        held = sorted(log.name for log in place.log_folder.glob("*.log"))
        raise BadInput(f"{path}: not there; {did_you_mean(path.name, held)}")
    at = _print_from(path, 0)
    while follow and _under_way(place):
        sleep(INTERVAL)
        at = _print_from(path, at)
    if not at:
        written = sorted(log.name for log in place.log_folder.glob("*.log") if log.stat().st_size)
        print(
            f"harness: {path}: empty; written: {', '.join(written) or 'no log of this trial'}",
            file=sys.stderr,
        )


def _under_way(place: TrialFolder) -> bool:
    """Whether the attempt that began last has left no record yet."""
    record = place.record_path
    return (
        not record.exists() or record.stat().st_mtime_ns < place.assignment_path.stat().st_mtime_ns
    )


def _print_from(path: Path, at: int) -> int:
    """Print what a file holds from byte `at` on; returns where it ends."""
    if not path.exists():
        return at
    with path.open("rb") as file:
        file.seek(at)
        content = file.read()
    sys.stdout.write(content.decode("utf-8", errors="replace"))
    sys.stdout.flush()
    return at + len(content)
