"""How long a sweep of many short trials takes, beside a bare script under torchrun for each of them.

    python -m tests.programs.perf.launcher                  48 cells of two ranks and 20 steps

After each run of the sweep, the script of the same training runs a few times under torchrun.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.programs.perf.comparison import compare, leave_rows, markdown_table
from tests.support.running import local_profile
from tests.support.sweeps import write

BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).with_name("torchrun_script.py")
CELLS = 48
STEPS = 20
RANKS = 2
# To run the script: now and then, gloo aborts a rank that is about to end ("terminate
# called without an active exception").
ATTEMPTS = 3
GOAL = 9.0  # times as fast as the script for each of `CELLS`


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
    torchrun = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={RANKS}"]
    command = [*torchrun, str(SCRIPT), str(rate)]
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
    """Run both, and print what they took."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.launcher", description=__doc__
    )
    parser.add_argument("--cells", type=int, default=CELLS, help="of the sweep")
    parser.add_argument("--runs", type=int, default=3, help="of the sweep")
    parser.add_argument("--scripts", type=int, default=4, help="runs of the script after each")
    options = parser.parse_args()
    seconds: list[float] = []
    script_seconds: list[float] = []  # of all cells, by the median of the scripts after each run
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.runs):
            folder = Path(name) / str(number)
            folder.mkdir()
            seconds.append(time_sweep(folder, options.cells))
            times = [time_script(1e-3 * (1 + script)) for script in range(options.scripts)]
            script_seconds.append(options.cells * statistics.median(times))
    row = compare(
        f"{options.cells} cells of {RANKS} ranks and {STEPS} steps",
        "a bare script under torchrun for each",
        seconds,
        script_seconds,
        goal=GOAL if options.cells == CELLS else None,
    )
    leave_rows([row])
    print(markdown_table([row]))


if __name__ == "__main__":
    main()
