"""A trial of the MLP next to a plain loop without a DataLoader, each in processes of its own.

    python -m tests.programs.perf.trial_race                 12 pairs, four minutes

A pair is one `harness run` of a trial and one `tests.programs.perf.plain_loop`, one after the other,
in turn first. Both train the same: the loss of the last step must be equal to the bit. Compared are
the seconds of all epochs but the first; starting, loading the data and evaluating are left out. The
CPU time of a trial is that of its segments of training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.core.paths import Results
from harness.records.environment import describe_hardware
from harness.records.files import read_record
from tests.programs.perf.comparison import compare, leave_rows, markdown_table
from tests.programs.perf.overhead import DATA
from tests.support.running import local_profile
from tests.support.sweeps import write

BIN = Path(sys.executable).parent
PLAIN_LOOP = "tests.programs.perf.plain_loop"
EPOCHS = 32
BATCH = 64
GOAL = (0.97, 0.95)  # of the ratio, and of the lower end of its interval


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a process took for all epochs but the first."""

    seconds: float
    cpu: float  # seconds
    loss: float  # of the last step


def run_trial(folder: Path, epochs: int, data: Path | None) -> tuple[Measured, int]:
    """Return what a trial took, and how many samples an epoch trains on."""
    source = {"source": "idx", "path": str(data)} if data else {"source": "digits"}
    length = {"epochs": epochs}
    sweep = write(folder, {"mlp": {"data": source}}, length=length, evaluate=length)
    results = Results(folder / "results")
    profile = local_profile(folder, slots=1)
    command = [str(BIN / "harness"), "run", str(sweep), "--cluster", str(profile)]
    command += ["--results", str(results.path), "--tolerate-load"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    (path,) = results.runs.glob("*/*/record.json")
    (rank,) = read_record(path).ranks
    assert rank.telemetry is not None
    assert rank.epoch_began_at is not None
    assert rank.epoch_ended_at is not None
    assert rank.loss is not None
    losses, telemetry = rank.loss.unpack(), rank.telemetry
    steps = len(losses) // epochs  # of an epoch
    step_cpu = telemetry.shares["process_cpu"] * telemetry.seconds / telemetry.steps
    measured = Measured(
        seconds=float(rank.epoch_ended_at.unpack()[-1] - rank.epoch_began_at.unpack()[1]),
        cpu=step_cpu * steps * (epochs - 1),
        loss=float(losses[-1]),
    )
    return measured, BATCH * steps


def run_plain_loop(epochs: int, data: Path | None) -> Measured:
    """Return what the plain loop took."""
    command = [sys.executable, "-m", PLAIN_LOOP, str(epochs), *([str(data)] if data else [])]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Measured(**json.loads(text))


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.trial_race", description=__doc__
    )
    parser.add_argument("--pairs", type=int, default=12, help="(default 12)")
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help=f"of each process (default {EPOCHS})"
    )
    options = parser.parse_args()
    data = DATA if DATA.is_dir() else None
    trials: list[Measured] = []
    plain_loops: list[Measured] = []
    for pair in range(options.pairs):
        with tempfile.TemporaryDirectory() as name:
            if pair % 2:
                plain_loops.append(run_plain_loop(options.epochs, data))
            trial, epoch_samples = run_trial(Path(name), options.epochs, data)
            trials.append(trial)
            if not pair % 2:
                plain_loops.append(run_plain_loop(options.epochs, data))
        expected = plain_loops[-1].loss
        if trial.loss != expected:
            raise RuntimeError(
                f"the last loss is {trial.loss} of the trial, {expected} of the loop"
            )
    row = compare(
        "an mlp trial, 1 thread",
        "a plain loop in its own process",
        [measured.seconds for measured in trials],
        [measured.seconds for measured in plain_loops],
        work=(options.epochs - 1) * epoch_samples,
        unit="samples/s",
        cpu=(
            [measured.cpu for measured in trials],
            [measured.cpu for measured in plain_loops],
        ),
        goal=GOAL[0],
        goal_low=GOAL[1],
    )
    leave_rows([row])
    print(markdown_table([row]))
    print(f"On {os.cpu_count()} cores of {describe_hardware().cpu}, load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
