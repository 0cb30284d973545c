"""How long compiled trials take to their first step with `cache: once`, next to ranks that all compile.

    python -m tests.programs.perf.first_step                 6 rounds at 2 ranks, some eight minutes
    python -m tests.programs.perf.first_step --ranks 4 --rounds 4

A round is a trial of each kind, in another order each time. All begin with an empty cache:

- each: all ranks compile, into one cache, as those of a node do
- apart: each rank compiles into a cache of its own, as nodes do that share no home
- first: one process compiles for all ranks (`once`), and they wait for it
- later: the ranks take what the first trial has left, as all later trials do on any node

Ten steps take milliseconds, so a trial is its way to the first step.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from harness.records.environment import describe_hardware
from harness.training.compile_cache import ROOT_VARIABLE
from tests.programs.perf.comparison import Comparison, compare, leave_rows, markdown_table
from tests.support.running import run
from tests.support.sweeps import write

CACHES = {"each": "warm", "apart": "cold", "first": "once", "later": "once"}
# The kinds in the order of even and odd rounds: a later trial needs a first one.
ORDERS = (("each", "apart", "first", "later"), ("first", "later", "apart", "each"))
ROWS = (
    ("first", "each", "first trial of a cell, cache: once", "each rank compiles"),
    ("first", "apart", "first trial of a cell, cache: once", "each into a cache of its own"),
    ("later", "each", "later trial on an empty cache, cache: once", "each rank compiles"),
    (
        "later",
        "apart",
        "later trial on an empty cache, cache: once",
        "each into a cache of its own",
    ),
)


def seconds_of_trial(folder: Path, kind: str, ranks: int) -> float:
    """Return the seconds from the start of a trial of ten steps to its end."""
    shutil.rmtree(os.environ[ROOT_VARIABLE], ignore_errors=True)
    axes = {"world_size": ranks, "strategy": "ddp", "execution": "compile", "cache": CACHES[kind]}
    sweep = write(folder, axes=axes, length={"steps": 10}, warmup=2, seeds=[0])
    (record,) = run(sweep, slots=ranks, redo="all")
    if record.failure is not None:
        raise RuntimeError(f"{kind}: {record.failure}")
    return record.ended - record.started


def measure(rounds: int, ranks: int) -> list[Comparison]:
    """Return the rows, from trials whose ranks all fork from one process."""
    seconds: dict[str, list[float]] = {kind: [] for kind in CACHES}
    with tempfile.TemporaryDirectory() as name:
        os.environ[ROOT_VARIABLE] = str(Path(name) / "cache")
        seconds_of_trial(Path(name), "each", ranks)  # reads torch's files, which takes a while
        for number in range(rounds):
            folder = Path(name) / str(number)  # without what the round before has compiled
            folder.mkdir()
            for kind in ORDERS[number % 2]:
                seconds[kind].append(seconds_of_trial(folder, kind, ranks))
    rows = []
    for ours, theirs, what, instead in ROWS:
        rows.append(compare(f"{what}, {ranks} ranks", instead, seconds[ours], seconds[theirs]))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.first_step", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=6, help="(default 6)")
    parser.add_argument("--ranks", type=int, default=2, help="(default 2)")
    options = parser.parse_args()
    rows = measure(options.rounds, options.ranks)
    leave_rows(rows)
    print(markdown_table(rows))
    print(f"On {os.cpu_count()} cores of {describe_hardware().cpu}, load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
