"""What faults cost: how much of a sweep's wall time trains, with checkpoints and without.

    python -m tests.programs.perf.faults

A sweep of two-rank trials runs twice, while a rank is killed again and again, at times drawn from an
exponential distribution. Everything is scaled down: trials of 20 s with a fault every 15 s on average, and
saves every 2 s, stand for trials of 80 minutes with a fault an hour and saves every 8 minutes. Starting
ranks is not, so ETTR is lower than there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random

from harness.core.paths import Results, SweepFolder
from harness.core.text import counted
from harness.records.files import read_record
from harness.records.goodput import Goodput, goodput, total
from harness.records.running import read_heartbeats
from harness.render import chart
from harness.render.table import Table, markdown_lines
from harness.statistics.interval import Interval, mean_interval
from tests.programs.perf.results import FOLDER
from tests.support.running import line_sweep, local_profile

# Where the wall time of trials on this machine goes. Nothing waits in a queue, and nothing is compiled.
PARTS = ("trained", "again", "start", "waiting", "checkpoint", "evaluate")
NAME = "faults"
POLL = 0.2  # seconds


class Faults:
    """SIGKILLs of the ranks of a sweep, so many seconds apart on average."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._random = Random(seed)
        self._seconds = seconds
        self._next = self._draw()
        self.count = 0

    def _draw(self) -> float:
        return time.monotonic() + self._random.expovariate(1 / self._seconds)

    def strike(self, folder: SweepFolder) -> None:
        """Kill a rank that has given a sign of life, if a fault is due."""
        if time.monotonic() < self._next:
            return
        beats = []
        for path in folder.path.glob("*/heartbeats"):
            beats += read_heartbeats(path)
        living = [beat for beat in beats if is_alive(beat.pid)]
        self._next = self._draw()
        if not living:
            return  # between two attempts, when there is nothing to strike
        with suppress(ProcessLookupError):
            os.kill(self._random.choice(living).pid, signal.SIGKILL)
            self.count += 1


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(") ")[2][0] != "Z"


def run_sweep(
    folder: Path, name: str, checkpoint: object, options: argparse.Namespace
) -> tuple[list[Goodput], int]:
    """Run a sweep under faults, trial by trial, until each is done; return its goodput and the faults.

    A trial without saves ends with its first death. It is asked for again at once, by another command, so
    that it does not wait for the others.
    """
    steps = round(options.trial_seconds / 0.05)
    (folder / name).mkdir()
    sweep = line_sweep(
        folder / name,
        {"line": {"options": {"step_seconds": 0.05}}},
        name=name,
        length={"steps": steps},
        evaluate={"steps": steps},
        seeds=list(range(options.trials)),
        axes={"strategy": "ddp", "world_size": 2},
        checkpoint=checkpoint,
    )
    profile = local_profile(folder / name, slots=2)
    results = Results(folder / "results")
    program = str(Path(sys.executable).with_name("harness"))
    command = [program, "run", str(sweep), "--cluster", str(profile)]
    command += ["--results", str(results.path), "--tolerate-load"]
    faults = Faults(options.fault_seconds, options.seed)
    sweep_folder = results.sweep_folder(name)
    done: list[Goodput] = []
    while len(done) < options.trials:
        one_trial = [*command, "--only", f"seed={len(done)}"]
        with subprocess.Popen(one_trial, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                time.sleep(POLL)
                faults.strike(sweep_folder)
        if process.returncode not in (0, 1):
            raise RuntimeError(f"harness run ended with {process.returncode}")
        spent = [goodput(read_record(path)) for path in sweep_folder.record_paths()]
        done = [trial for trial in spent if trial is not None]
    return done, faults.count


def ettr_interval(trials: Sequence[Goodput]) -> Interval:
    """Return the share of all wall time of the trials that trained, with its 95% interval over trials.

    The share is a ratio of two sums, so its error is the jackknife's (Quenouille 1956, Tukey 1958): with
    the share R of all n trials and R_i of all but the i-th, that of the mean of n R - (n - 1) R_i. The
    bounds end at 0 and 1.
    """
    share, count = share_of(trials), len(trials)
    if count < 2:
        return Interval(share, None, count)
    values = []
    for number in range(count):
        without = share_of([*trials[:number], *trials[number + 1 :]])
        values.append(count * share - (count - 1) * without)
    half_width = mean_interval(values).half_width
    assert half_width is not None
    return Interval(share, (max(0.0, share - half_width), min(1.0, share + half_width)), count)


def share_of(trials: Sequence[Goodput]) -> float:
    """Return the share of all wall time of the trials that trained."""
    return sum(trial.trained for trial in trials) / sum(trial.wall for trial in trials)


def shares_by_part(trials: Sequence[Goodput]) -> dict[str, float]:
    """Return the share of all wall time of the trials that each part took."""
    whole = total(trials)
    assert whole is not None
    return {part: seconds / whole.wall for part, seconds in asdict(whole).items()}


def table_of(sweeps: dict[str, tuple[list[Goodput], int]]) -> Table:
    """Return a row for each sweep: its ETTR with its interval over trials, and where the rest went."""
    table = Table(["checkpoints", "trials", "faults", "ETTR", "95% interval", *PARTS[1:]])
    for name, (trials, faults) in sweeps.items():
        interval = ettr_interval(trials)
        bounds = "unknown"
        if interval.bounds is not None:
            bounds = " to ".join(f"{bound:.1%}" for bound in interval.bounds)
        shares = shares_by_part(trials)
        row = [name, str(len(trials)), str(faults), f"{interval.mean:.1%}", bounds]
        table.add_row(*row, *(f"{shares[part]:.1%}" for part in PARTS[1:]))
    return table


def picture_of(sweeps: dict[str, tuple[list[Goodput], int]]) -> bytes:
    """Return a drawing of where the wall time of each sweep went, with the interval of its ETTR."""
    figure = chart.new_figure(7.0, 2.2)
    axes = figure.subplots()
    for row, (trials, _) in enumerate(sweeps.values()):
        shares = shares_by_part(trials)
        left = 0.0
        for number, part in enumerate(PARTS):
            color = chart.COLORS[number]
            axes.barh(row, shares[part], left=left, color=color, label=None if row else part)
            left += shares[part]
        interval = ettr_interval(trials)
        if interval.bounds is not None:
            low, high = interval.bounds
            error = [[interval.mean - low], [high - interval.mean]]
            axes.errorbar(interval.mean, row, xerr=error, color=chart.INK, capsize=4)
    axes.set_yticks(range(len(sweeps)), list(sweeps))
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.45, -0.15), frameon=False)
    return chart.png_bytes(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both sweeps, and leave the table and the picture."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.faults", description=__doc__
    )
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--trial-seconds", type=float, default=20.0)
    parser.add_argument("--fault-seconds", type=float, default=15.0)
    parser.add_argument("--save-seconds", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    every = f"every {options.save_seconds:g} s"
    kinds: dict[str, object] = {
        every: {"every": f"{options.save_seconds:g}s"},
        "none": {"every": "never"},
    }
    sweeps = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (kind, checkpoint) in enumerate(kinds.items()):
            sweeps[kind] = run_sweep(Path(name), f"{NAME}{number}", checkpoint, options)
            print(f"{kind}: {counted(sweeps[kind][1], 'fault')}", flush=True)
    lines = markdown_lines(table_of(sweeps))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"{NAME}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.output / f"{NAME}.png").write_bytes(picture_of(sweeps))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
