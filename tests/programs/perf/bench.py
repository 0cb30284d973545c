"""What the harness costs and saves beside what a user would pick instead: `make bench`.

    python -m tests.programs.perf.bench            half an hour, while nothing else should run
    python -m tests.programs.perf.bench --quick    a minute: whether all of it runs

The training loop is compared with others in processes of their own. A sweep of short trials is compared with
a bare script under torchrun for each of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.programs.perf.comparison import compare
from tests.programs.perf.overhead import BLOCKS, WORKLOADS
from tests.programs.perf.results import Benchmark, Row, markdown
from tests.support.running import local_profile
from tests.support.sweeps import write
from tests.support.tree import TOP

BIN = Path(sys.executable).parent
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2")
SCRIPT = Path(__file__).with_name("torchrun_script.py")
CELLS = 48
RUNS = 3  # of the sweep
SCRIPTS = 4  # runs of the script after each
STEPS = 20
RANKS = 2
# To run the script: now and then, gloo aborts a rank that is about to end ("terminate
# called without an active exception").
ATTEMPTS = 3
GOAL = 9.0  # times as fast as the script for each of `CELLS`


def compare_loops(launcher: Sequence[str], blocks: int, workloads: Sequence[str]) -> list[Row]:
    """Return the rows of the training loop beside others, from ranks that a launcher starts."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.json"
        command = [*launcher, "-m", "tests.programs.perf.overhead", str(path), str(blocks)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *workloads], env=environment, cwd=TOP, check=True)
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def compare_sweep(cells: int, runs: int, scripts: int) -> Row:
    """Return the row of a sweep beside scripts, which run after it each time."""
    seconds: list[float] = []
    script_seconds: list[float] = []  # of all cells, by the median of the scripts after each run
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            seconds.append(time_sweep(Path(name), cells))
        times = [time_script(1e-3 * (1 + number)) for number in range(scripts)]
        script_seconds.append(cells * statistics.median(times))
    return compare(
        f"{cells} cells of {RANKS} ranks and {STEPS} steps",
        "a bare script under torchrun for each",
        seconds,
        script_seconds,
        goal=GOAL if cells == CELLS else None,
    )


def time_sweep(folder: Path, cells: int) -> float:
    """Return the seconds that `harness run` takes for the sweep, from its beginning."""
    rates = [1e-3 * (1 + number) for number in range(cells)]
    matrix = {"world_size": RANKS, "strategy": "ddp", "lr": rates}
    sweep = write(folder, matrix=matrix, length={"steps": STEPS})
    profile = local_profile(folder, slots=RANKS)
    command = [str(BIN / "harness"), "--results", str(folder / "results")]
    command += ["run", str(sweep), "--cluster", str(profile)]
    start = time.perf_counter()
    with (folder / "run.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)
    return time.perf_counter() - start


def time_script(rate: float) -> float:
    """Return the seconds that the script takes; raises RuntimeError if it fails each time."""
    command = [*TORCHRUN, str(SCRIPT), str(rate)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(ATTEMPTS):
        start = time.perf_counter()
        script = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        seconds = time.perf_counter() - start
        if script.returncode == 0:
            return seconds
    raise RuntimeError(f"{SCRIPT.name} exited with {script.returncode}: {script.stderr}")


def main() -> None:
    """Run all parts, and leave the table of all ratios."""
    benchmark = Benchmark("bench", __doc__)
    blocks, workloads, sizes = BLOCKS, WORKLOADS, (CELLS, RUNS, SCRIPTS)
    if benchmark.is_quick:
        blocks, workloads, sizes = 2, WORKLOADS[:1], (4, 1, 1)
    rows = compare_loops([sys.executable], blocks, workloads)
    benchmark.probe()
    rows += compare_loops(TORCHRUN, blocks, workloads[:2])
    benchmark.probe()
    rows.append(compare_sweep(*sizes))
    explained = (
        "Values are medians, ratios geometric means with Student's intervals over n pairs that were"
        " measured in turn."
    )
    benchmark.write(f"{markdown(rows)}\n{explained}")


if __name__ == "__main__":
    main()
