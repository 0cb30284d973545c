"""How long short compiled trials take with `cache: once`, next to ranks that all compile.

    python -m tests.programs.perf.first_step                 4 pairs at 2 ranks, some eight minutes
    python -m tests.programs.perf.first_step --ranks 4

A pair is two trials of the MLP, one after the other, in turn first, each with an empty cache: one whose
ranks all compile, and one that takes what one process has compiled (`once`), which includes that process.
Then both run again with the caches that they have left: a second trial of a cell. `once` finds its own
cache empty there, as on another node. Ten steps take milliseconds, so a trial is its way to the first step.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.core.paths import Results
from harness.records.environment import describe_hardware
from harness.records.files import read_record
from harness.training.compile_cache import ROOT_VARIABLE
from tests.programs.perf.comparison import Comparison, compare, leave_rows, markdown_table
from tests.support.running import local_profile
from tests.support.sweeps import write

BIN = Path(sys.executable).parent
KINDS = ("once", "warm")


def seconds_of_trial(folder: Path, cache: str, ranks: int, *, seed: int) -> float:
    """Return the seconds from the start of a trial of ten steps to its end."""
    sweep = write(
        folder,
        {"mlp": {"data": {"source": "digits"}}},
        axes={"world_size": ranks, "strategy": "ddp", "execution": "compile", "cache": cache},
        length={"steps": 10},
        warmup=2,
        seeds=[seed],
    )
    results = Results(folder / "results")
    command = [str(BIN / "harness"), "run", str(sweep), "--results", str(results.path)]
    command += ["--cluster", str(local_profile(folder, slots=ranks)), "--tolerate-load"]
    environment = {**os.environ, ROOT_VARIABLE: str(folder / "cache")}
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    (path,) = results.runs.glob(f"*/*-s{seed}-r0/record.json")
    record = read_record(path)
    return record.ended - record.started


def measure(pairs: int, ranks: int) -> list[Comparison]:
    """Return the rows of a cell's first trials and of its second ones."""
    seconds: dict[tuple[str, int], list[float]] = {}
    for pair in range(pairs):
        for kind in KINDS if pair % 2 else KINDS[::-1]:
            with tempfile.TemporaryDirectory() as name:
                for number in range(2):
                    took = seconds_of_trial(Path(name), kind, ranks, seed=number)
                    seconds.setdefault((kind, number), []).append(took)
                    if kind == "once":
                        shutil.rmtree(Path(name) / "cache", ignore_errors=True)
    rows = []
    for number, trial in enumerate(("first", "second")):
        once, warm = [seconds[kind, number] for kind in KINDS]
        what = f"{trial} compiled trial of {ranks} ranks, cache: once"
        rows.append(compare(what, "each rank compiles", once, warm))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.first_step", description=__doc__
    )
    parser.add_argument("--pairs", type=int, default=4, help="(default 4)")
    parser.add_argument("--ranks", type=int, default=2, help="(default 2)")
    options = parser.parse_args()
    rows = measure(options.pairs, options.ranks)
    leave_rows(rows)
    print(markdown_table(rows))
    print(f"On {os.cpu_count()} cores of {describe_hardware().cpu}, load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
