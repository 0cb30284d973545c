"""How long a sweep of many short trials takes, and what of it is training.

    python -m tests.programs.perf.launcher                  48 cells of two ranks and 20 steps

The sweep runs several times as `harness run`, each time with a forkserver of its own. After each run,
a bare script of the same training runs a few times under torchrun, which is what each cell would take
by itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.core.paths import Results
from harness.records.environment import describe_hardware
from harness.records.files import read_record
from harness.records.record import Record
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


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the sweep."""

    seconds: float  # of the whole command, wall time
    cpu_seconds: float  # of the command and all that it waited for
    started: float  # seconds since the epoch
    records: Sequence[Record]  # in the order in which the trials ran

    def phases(self) -> dict[str, float]:
        """Return the seconds that each part of the command took, in order; they add up to it all."""
        ended = self.started + self.seconds
        phases = {"before the first trial": self.records[0].started - self.started}
        in_trials = 0.0
        for record in self.records:
            for name, seconds in record.phases.items():
                phases[f"trials: {name}"] = phases.get(f"trials: {name}", 0.0) + seconds
                in_trials += seconds
        durations = sum(record.ended - record.started for record in self.records)
        phases["trials: the rest"] = durations - in_trials
        last_end = self.records[-1].ended
        phases["between trials"] = last_end - self.records[0].started - durations
        phases["after the last trial"] = ended - last_end
        return phases


def run_sweep(folder: Path, cells: int) -> Run:
    """Run the sweep in `folder`, from its beginning, and return what it took."""
    rates = [1e-3 * (1 + number) for number in range(cells)]
    axes = {"world_size": RANKS, "strategy": "ddp"}
    sweep = write(
        folder,
        {"mlp": {"data": {"source": "digits"}}},
        axes=axes,
        matrix={"lr": rates},
        length={"steps": STEPS},
    )
    profile = local_profile(folder, slots=RANKS)
    results = Results(folder / "results")
    arguments = [str(sweep), "--cluster", str(profile), "--results", str(results.path)]
    started, cpu_before = time.time(), os.times()
    with (folder / "run.log").open("w") as log:
        subprocess.run(
            [str(BIN / "harness"), "run", *arguments], stdout=log, stderr=log, check=True
        )
    seconds, cpu = time.time() - started, os.times()
    (sweep_folder,) = results.runs.iterdir()
    records = [read_record(path) for path in sweep_folder.glob("*/attempt-*/record.json")]
    return Run(
        seconds=seconds,
        cpu_seconds=sum(cpu[2:4]) - sum(cpu_before[2:4]),
        started=started,
        records=sorted(records, key=lambda record: record.started),
    )


def time_script(rate: float) -> float:
    """Return the seconds that the bare script takes under torchrun.

    Raises RuntimeError with what it printed if it fails each time.
    """
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


def show(runs: Sequence[Run]) -> None:
    """Print a column for each run, of the seconds that its parts took."""
    titles = [f"run {number}" for number in range(1, len(runs) + 1)]
    table = Table("seconds", *titles, box=None)
    columns = [run.phases() for run in runs]
    for name in columns[0]:
        table.add_row(name, *(f"{column.get(name, 0.0):.2f}" for column in columns))
    table.add_row("in all", *(f"{run.seconds:.1f}" for run in runs))
    table.add_row("CPU time", *(f"{run.cpu_seconds:.1f}" for run in runs))
    Console(soft_wrap=True).print(table)


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.launcher", description=__doc__
    )
    parser.add_argument("--cells", type=int, default=CELLS, help=f"of the sweep (default {CELLS})")
    parser.add_argument("--runs", type=int, default=3, help="of the sweep (default 3)")
    parser.add_argument(
        "--scripts", type=int, default=4, help="runs of the script after each (default 4)"
    )
    return parser.parse_args()


def main() -> None:
    """Run both, and print what they took."""
    options = parse_options()
    runs: list[Run] = []
    script_seconds: list[float] = []  # of all cells, by the median of the scripts after each run
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.runs):
            folder = Path(name) / str(number)
            folder.mkdir()
            runs.append(run_sweep(folder, options.cells))
            times = [time_script(1e-3 * (1 + script)) for script in range(options.scripts)]
            script_seconds.append(options.cells * statistics.median(times))
    row = compare(
        f"{options.cells} cells of {RANKS} ranks and {STEPS} steps",
        "a bare script under torchrun for each",
        [run.seconds for run in runs],
        script_seconds,
        goal=GOAL if options.cells == CELLS else None,
    )
    leave_rows([row])
    show(runs)
    print(f"\n{markdown_table([row])}")
    print(f"On {os.cpu_count()} cores of {describe_hardware().cpu}, load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
