"""Measures what 1,000 trials as jobs cost the commands, with a fake Slurm: `python -m
tests.programs.perf.jobs`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from harness.core.paths import Results
from harness.slurm import submission as submissions
from harness.spec.cell import Trial
from harness.spec.sweep import load_sweep
from tests.factories import make_record, write_trial
from tests.support.slurm import FakeSlurm, install_fake_slurm
from tests.support.sweeps import write

HARNESS = str(Path(sys.executable).with_name("harness"))
SEEDS = 250  # of four cells: 1,000 trials
DONE = 600  # trials that have a record, of 500 steps
REPEATS = 5  # of `harness status`
CELLS = {
    "matrix": {"batch_size": [32, 64]},
    "zip": [{"strategy": ["single", "ddp"], "world_size": [1, 2]}],
}


def main() -> None:
    """Submit the sweep, let some trials be done and the others wait, and ask for the status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slurm = install_fake_slurm(folder / "bin", os.environ.__setitem__)
        results = Results(folder / "results")
        sweep = write(folder, seeds=list(range(SEEDS)), length={"steps": 500}, **CELLS)
        measure_submit(folder, sweep, results, slurm)
        trials = load_sweep(sweep).trials()
        fill_queue(results, slurm)
        leave_records(results, trials[:DONE])
        measure_status(results, slurm)


def measure_submit(folder: Path, sweep: Path, results: Results, slurm: FakeSlurm) -> None:
    """Print the seconds that `harness submit` takes."""
    profile = folder / "profile.yaml"
    content = {"launcher": "slurm", "device": "cpu", "slurm": {"nodes": 2}}
    profile.write_text(yaml.safe_dump(content))
    arguments = [str(sweep), "--cluster", str(profile), "--results", str(results.path)]
    seconds = timed([HARNESS, "submit", *arguments])
    trial_count = len(load_sweep(sweep).trials())
    calls = len(slurm.batch_scripts())
    print(f"harness submit: {trial_count} trials, {seconds:.2f} s, {calls} calls of sbatch")


def fill_queue(results: Results, slurm: FakeSlurm) -> None:
    """Have squeue print 1,000 lines of pending jobs."""
    (submission,) = submissions.read_all(results.sweep_folder("demo"))
    jobs = list(submission.jobs())
    lines = [f"{job.id}|PENDING||{job.name}|Priority\n" for job in jobs]
    slurm.set_queue("".join(lines * (1000 // len(lines))))


def leave_records(results: Results, trials: Sequence[Trial]) -> None:
    """Leave a record of each of these trials."""
    for trial in trials:
        record = make_record(trial.cell, seed=trial.seed)
        write_trial(results.sweep_folder("demo"), record)


def measure_status(results: Results, slurm: FakeSlurm) -> None:
    """Print the seconds that `harness status` takes."""
    command = [HARNESS, "status", "demo", "--results", str(results.path)]
    calls_before = len(slurm.calls("squeue"))
    times = [timed(command) for _ in range(REPEATS)]
    calls = (len(slurm.calls("squeue")) - calls_before) // REPEATS
    print(
        f"harness status: {min(times):.2f} s at best of {REPEATS}, {max(times):.2f} s at worst,"
        f" {calls} call of squeue each, {DONE} records"
    )


def timed(command: Sequence[str]) -> float:
    """Return the seconds that a command takes."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
