"""What 1,000 trials as jobs cost, with a Slurm that only writes down what it is asked: `python -m tests.perf.jobs`."""

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
from harness.slurm import submission
from harness.spec.sweep import load_sweep
from tests.factories import make_record, write_trial
from tests.support.slurm import recorded_slurm
from tests.support.sweeps import write

HARNESS = str(Path(sys.executable).with_name("harness"))
SEEDS, DONE = 250, 600  # of four cells: 1,000 trials, of which so many have records of 500 steps
CELLS = {
    "matrix": {"batch_size": [32, 64]},
    "zip": [{"strategy": ["single", "ddp"], "world_size": [1, 2]}],
}


def seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Submit, let some be done and the others wait, and ask for the status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slurm = recorded_slurm(folder / "bin", os.environ.__setitem__)
        results, profile = Results(folder / "results"), folder / "profile.yaml"
        profile.write_text(
            yaml.safe_dump({"launcher": "slurm", "device": "cpu", "slurm": {"nodes": 2}})
        )
        sweep = write(folder, seeds=list(range(SEEDS)), length={"steps": 500}, **CELLS)
        place = ["--results", str(results.path)]
        spent = seconds([HARNESS, "submit", str(sweep), "--cluster", str(profile), *place])
        trials = load_sweep(sweep).trials()
        print(
            f"harness submit: {len(trials)} trials, {spent:.2f} s, {len(slurm.scripts())} calls of sbatch"
        )

        (one,) = submission.read_all(results.sweep_folder("demo"))
        jobs = [one.arrays[number].job_id(element) for number, element, _ in one.elements()]
        slurm.queue(
            "".join(
                f"{job}|PENDING|N/A||{one.name(0)}|Priority\n" for job in jobs * (1000 // len(jobs))
            )
        )
        for trial in trials[:DONE]:
            write_trial(results.sweep_folder("demo"), make_record(trial.cell, seed=trial.seed))
        times = [seconds([HARNESS, "status", "demo", *place]) for _ in range(5)]
        print(
            f"harness status: {min(times):.2f} s at best of {len(times)}, {max(times):.2f} s at worst, ",
            end="",
        )
        print(f"{len(slurm.asked('squeue')) // len(times)} call of squeue each, {DONE} records")


if __name__ == "__main__":
    main()
