"""What telemetry costs the training beside it: `python -m tests.perf.telemetry [SECONDS [SAMPLE_INTERVAL]]`.

The harness's own loop trains the MLP on images of noise, with 1 thread, in blocks of at least BLOCK seconds,
one with the sampling thread and one without, in turns. The timed region is what a trial reports. What a sample
costs does not depend on how often one is taken, so on a noisy machine SAMPLE_INTERVAL (seconds from sample to sample) can be made
small, and the cost that is then seen be scaled down.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from harness.measure.host import ThisHost
from harness.measure.telemetry import SAMPLE_INTERVAL, Telemetry
from harness.records.assignment import Assignment
from harness.records.environment import describe_hardware
from harness.spec.axes import Axes
from harness.spec.cell import Cell, Length, Trial, WorkloadRef
from harness.training.loader import Fetched
from harness.training.train import Trainer
from harness.training.worker import load_workload
from tests.support.images import NAMES, idx
from tests.support.training import make_trainer

SECONDS = 120.0
BLOCK = 0.5
BATCH = 64
IMAGES = 60_000
ENDLESS = Length(epochs=10**6)


class WithoutTelemetry:
    """Stands in for telemetry and watches nothing."""

    def begin_segment(self) -> None: ...

    def end_segment(self, steps: int) -> None: ...


def build_mlp(folder: Path) -> Trainer:
    """Build a trial of the MLP on IMAGES images of noise."""
    noise = np.random.default_rng(0)
    for name, count in zip(NAMES, (IMAGES, IMAGES, 64, 64), strict=True):
        pixels = (28, 28) if "images" in name else ()
        highest = 256 if pixels else 10
        values = noise.integers(0, highest, (count, *pixels), dtype=np.uint8)
        (folder / name).write_bytes(idx(values.shape, values.tobytes()))
    workload = WorkloadRef(
        label="mlp",
        uses="mlp",
        options={},
        data={"source": "idx", "path": str(folder)},
        identity={},
    )
    axes = Axes(batch_size=BATCH, num_threads=1)
    cell = Cell(workload=workload, axes=axes, length=ENDLESS, evaluate=ENDLESS, warmup=0)
    assignment = Assignment(trial=Trial(cell=cell, seed=0), base_folder=str(folder), device="cpu")
    torch.set_num_threads(1)
    return make_trainer(assignment, load_workload(assignment), folder)


def alternate(
    trainer: Trainer, telemetry: Telemetry, seconds: float, steps: int
) -> NDArray[np.float64]:
    """Train pairs of windows of `steps` steps, with telemetry and without, which take turns in coming first.

    Returns the seconds, shape (pairs, with and without, the timed region and the CPU time of the training's
    thread in all).
    """
    pairs: list[list[tuple[float, float]]] = []
    order, loader = trainer.parts.order, trainer.parts.loader
    steps_left, batches = 0, iter(loader)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if steps_left < 2 * steps:
            order.epoch += 1
            steps_left, batches = order.steps, iter(loader)
        measured = {}
        for watched in (True, False) if len(pairs) % 2 else (False, True):
            trainer.telemetry = telemetry if watched else WithoutTelemetry()
            measured[watched] = train_window(trainer, batches, steps)
        pairs.append([measured[True], measured[False]])
        steps_left -= 2 * steps
    return np.array(pairs)


def train_window(trainer: Trainer, batches: Iterator[Fetched], steps: int) -> tuple[float, float]:
    """Return the seconds of the timed region, and the CPU seconds of this thread."""
    start = time.thread_time()
    segment = trainer.train_segment(batches, trainer.state.step + steps)
    trainer.synchronize(segment)
    return segment.seconds, time.thread_time() - start


def cost(pairs: NDArray[np.float64], scale: float) -> str:
    """From the geometric mean of with to without; its 95% interval by Student's t over the logarithms of pairs."""
    logs = np.log(pairs[:, 0] / pairs[:, 1])
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    mean, low, high = (np.expm1(log) * scale for log in (logs.mean(), low, high))
    return f"{mean:+.3%} (95% interval {low:+.3%} to {high:+.3%})"


def calls(telemetry: Telemetry, times: int = 200) -> float:
    """Seconds that one `begin` and `end` take."""
    began = time.perf_counter()
    for _ in range(times):
        telemetry.begin_segment()
        telemetry.end_segment(1)
    return (time.perf_counter() - began) / times


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    every = float(sys.argv[2]) if len(sys.argv) > 2 else SAMPLE_INTERVAL
    with (
        tempfile.TemporaryDirectory() as folder,
        Telemetry(None, ThisHost(), interval=every) as telemetry,
    ):
        trainer = build_mlp(Path(folder))
        alternate(trainer, telemetry, 5, 20)  # so that all has been warmed up
        steps = math.ceil(BLOCK / np.quantile(trainer.state.step_seconds, 0.1))
        clock = time.pthread_getcpuclockid(telemetry.thread.ident or 0)
        before, began = time.clock_gettime(clock), telemetry.report()
        pairs = alternate(trainer, telemetry, seconds, steps)
        busy, seen = time.clock_gettime(clock) - before, telemetry.report()
        each = calls(telemetry)
    watched, samples = (
        seen.seconds - began.seconds,
        seen.sample_times.count - began.sample_times.count,
    )
    hardware, (wall, cpu) = describe_hardware(), np.moveaxis(pairs, 2, 0)
    apart = watched / samples  # more than asked for where a sample itself takes long
    print(
        f"{hardware.cpu}, {hardware.usable_cores} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"
    )
    print(
        f"{len(pairs)} pairs of blocks of {wall.mean():.2f} s; {samples} samples, one every {apart:.4f} s"
    )
    print(
        f"cost in step time, scaled to one every {SAMPLE_INTERVAL} s:      {cost(wall, apart / SAMPLE_INTERVAL)}"
    )
    print(f"the same in CPU time of the training's thread:   {cost(cpu, apart / SAMPLE_INTERVAL)}")
    print(
        f"the sampling thread's CPU time: {busy / watched:.3%} of training, {busy / samples * 1e6:.0f} µs a sample"
    )
    print(f"begin and end, outside the timed region: {each * 1e6:.0f} µs a stretch")


if __name__ == "__main__":
    main()
