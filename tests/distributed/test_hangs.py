"""Ranks that hang in each way that is known: the failure names the rank, its line, and the others'."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.launch import watchdog
from harness.records.record import Record
from tests.support import hangs
from tests.support.running import by_label, line_sweep, processes_below, run

pytestmark = pytest.mark.distributed

HANGS = f"{hangs.__file__}:Hangs"
WITH_WORKERS = ("loader", "killed", "lock")
# What rank 1 does by itself: its kind, and what the message says of it.
ALONE = {
    "python": ("Hang", r"^rank 1 on \S+ is in hangs.py:\d+ after step \d+, and never came to \w+ [\d,]+"),
    "pipe": ("Hang", r"^rank 1 on \S+ is in hangs.py:\d+ \(asleep in \w*pipe_write\) after step"),
    "native": ("Unresponsive", r"^rank 1 on \S+ is in hangs.py:\d+ .* keeps Python's lock, and rank"),
    "stop": ("Unresponsive", r"^rank 1 on \S+ is stopped \(SIGSTOP\) in \S+:\d+ after step \d+, and"),
    "loader": ("Hang", r"^rank 1 .* for its loader, whose worker \(process \d+\) is stopped"),
    "killed": ("RuntimeError", r"DataLoader worker \(pid.* is killed by signal: Killed"),
    "lock": ("Hang", r"for its loader, whose worker \(process \d+\) is in hangs.py:\d+ \(asleep in"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have trials end sooner that hang, which make steps of 0.1 s."""
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(watchdog, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(watchdog, "MIN_STANDSTILL_SECONDS", 4.0)
    monkeypatch.setattr(watchdog, "STANDSTILL_SEGMENTS", 2)


def run_hangs(
    folder: Path, ways: Sequence[str], *, world_size: int = 2, strategy: str = "ddp", at: int = 30
) -> dict[str, Record]:
    """Run a trial for each way to hang, and return its record."""
    variants: dict[str, dict[str, Any]] = {}
    for way in ways:
        axes: dict[str, Any] = {"strategy": strategy, "world_size": world_size}
        if way in WITH_WORKERS:
            axes.update(num_workers=1, persistent_workers=way == "loader")
        options = {"way": way, "at": 6 if way == "killed" else at, "rank": 1, "step_seconds": 0.1}
        variants[way] = {"uses": HANGS, "options": options, "axes": axes}
    sweep = line_sweep(folder, variants, length={"steps": at + 20}, timeout=120)
    return by_label(run(sweep, slots=world_size))


def failure(record: Record) -> Any:
    assert record.status == "failed"
    assert record.failure is not None
    return record.failure


def test_hangs_are_named_within_the_pace_of_the_trial(tmp_path: Path) -> None:
    """Neither of these ranks has failed: each would wait until the trial's time-out."""
    records = run_hangs(tmp_path, ["order", "pipe"], at=6)
    apart = failure(records["order"])
    assert (apart.kind, apart.rank) == ("Hang", None), "of two ranks, either may be wrong"
    assert re.match(
        r"rank 1 is in broadcast (\d+) \(hangs.py:\d+\), rank 0 is in all_reduce \1 \(hangs.py:\d+\):"
        r" they diverged after \d+; no progress for \d+ s, and [\d.]+ s at most before",
        apart.message,
    )
    blocked = failure(records["pipe"])
    assert (blocked.kind, blocked.rank, blocked.log) == ("Hang", 1, "logs/rank1.log")
    assert re.search(ALONE["pipe"][1], blocked.message)
    assert "in which rank 0 waits" in blocked.message
    assert re.match(r".*hangs.py:\d+: rank 1 on ", str(blocked)), "the user's own line"
    assert processes_below(tmp_path) == []


def test_tensors_of_different_sizes_are_named_with_both_lines(tmp_path: Path) -> None:
    """gloo ends a rank that gets more than it asked for by SIGABRT."""
    cause = failure(run_hangs(tmp_path, ["sizes"], at=6)["sizes"])
    assert (cause.kind, cause.rank) == ("Killed", 0)
    assert re.match(
        r"rank 0 in hangs.py:\d+ got 400 bytes where it expected 4, as rank 1 is in all_reduce \d+ of"
        r" 400 Float \(hangs.py:\d+\): their sizes differ; ended by SIGABRT",
        cause.message,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_every_hang_is_named(tmp_path: Path, world_size: int, strategy: str) -> None:
    ways = ["skip", "order", "sizes", *ALONE]
    records = run_hangs(tmp_path, ways, world_size=world_size, strategy=strategy)
    for way, (kind, message) in ALONE.items():
        cause = failure(records[way])
        assert (cause.kind, cause.rank) == (kind, 1), (way, cause)
        assert re.search(message, cause.message), (way, cause)
    order = failure(records["order"]).message
    assert re.match(
        r"rank 1 is in broadcast (\d+) \(hangs.py:\d+\), ranks? [\d, -]+ (is|are) in all", order
    )
    assert "they diverged after" in order
    skip = failure(records["skip"]).message
    assert "their sizes differ" in skip or "they diverged after" in skip, skip
    assert "their sizes differ" in failure(records["sizes"]).message
    assert processes_below(tmp_path) == []
