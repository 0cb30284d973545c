"""Counts hangs that are named in trials that do not hang, while other programs keep all cores busy.

    python -m tests.programs.undisturbed --output DIR --trials 200

Small MLPs and CNNs are trained, eager and compiled, on one rank to four, with evaluations and saves in
between: all that a watchdog may mistake for a hang. The exit code is 1 if one was named.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from harness.core.cores import usable_cores
from harness.records.record import Record
from tests.support.running import run

BUSY = "while True: sum(range(10_000))"
NAMED = ("Hang", "Unresponsive", "Timeout")  # what a trial ends with that is taken to hang
TRIALS_PER_SEED = 16
WORKLOADS: dict[str, dict[str, Any]] = {
    "mlp": {"data": {"source": "digits"}},
    "cnn": {"data": {"source": "digits"}, "options": {"width": 8}},
}
RANKS = [{"strategy": ["single", "ddp", "fsdp2", "ddp"], "world_size": [1, 2, 2, 4]}]


@contextmanager
def busy_cores(processes: int) -> Iterator[None]:
    """Keep cores busy with so many processes as long as the block lasts."""
    command = [sys.executable, "-c", BUSY]
    started = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def write_sweep(folder: Path, seeds: Sequence[int]) -> Path:
    """Write a sweep of short trials that evaluate and save while they train; return its path."""
    content = {
        "name": "undisturbed",
        "workloads": WORKLOADS,
        "seeds": list(seeds),
        "length": {"steps": 30},
        "evaluate": {"steps": 10},
        "checkpoint": {"every": "7 steps", "best": True},
        "matrix": {"execution": ["eager", "compile"], "batch_size": 64},
        "zip": RANKS,
    }
    path = folder / "undisturbed.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def failures_of(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return a line for each attempt that failed, by whether a hang was named."""
    lines: dict[str, list[str]] = {"hangs named": [], "other failures": []}
    for record in records:
        last = [record.failure] if record.failure is not None else []
        for failure in (*record.previous_failures, *last):
            group = "hangs named" if failure.kind in NAMED else "other failures"
            lines[group].append(f"{record.trial.cell.label} seed {record.trial.seed}: {failure}")
    return lines


def summary(records: Sequence[Record]) -> list[str]:
    """Return what to print of all trials."""
    cells: Counter[str] = Counter()
    for record in records:
        axes = record.trial.cell.axes
        cells[f"{axes.strategy}×{axes.world_size} {axes.execution}"] += 1
    failures = failures_of(records)
    counts = [f"{len(lines)} {name}" for name, lines in failures.items()]
    return [
        f"{len(records)} undisturbed trials: {', '.join(counts)}",
        ", ".join(f"{count} {cell}" for cell, count in sorted(cells.items())),
        *(line for lines in failures.values() for line in lines),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run so many trials, and print what was named."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.undisturbed")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument(
        "--busy",
        type=int,
        default=len(usable_cores()),
        help="processes that compute next to the trials",
    )
    parser.add_argument("--minutes", type=float, default=60, help="begin no trials after these")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * options.minutes
    records: list[Record] = []
    with busy_cores(options.busy):
        while len(records) < options.trials and time.monotonic() < deadline:
            seeds = range(len(records) // TRIALS_PER_SEED + 1)
            records = run(write_sweep(options.output, seeds), slots=4)
            print(f"{time.strftime('%H:%M:%S')} {len(records)} trials", flush=True)
    print(*summary(records), sep="\n")
    sys.exit(bool(failures_of(records)["hangs named"]))


if __name__ == "__main__":
    main()
