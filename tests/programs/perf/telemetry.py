"""What telemetry costs the training beside it.

    python -m tests.programs.perf.telemetry [SECONDS [INTERVAL]]

The harness's own loop trains the MLP on images of noise with one thread, in windows of at least
WINDOW_SECONDS, with the sampling thread and without it in turn. The timed region is what a trial
reports. What a sample costs does not depend on how often samples are taken. So on a noisy machine
INTERVAL, the seconds from sample to sample, can be made small, and the cost that shows is scaled
down.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from scipy import stats

from harness.measure.host import ThisHost
from harness.measure.telemetry import SAMPLE_INTERVAL, TelemetrySampler
from harness.records.assignment import Assignment
from harness.records.environment import describe_hardware
from harness.spec.cell import Length, Trial
from harness.spec.sweep import load_sweep
from harness.training.entry import load_workload
from harness.training.loader import Fetched
from harness.training.train import Trainer
from tests.support.images import NAMES, idx
from tests.support.training import make_trainer

SECONDS = 120.0  # of the whole measurement
WINDOW_SECONDS = 0.5
BATCH = 64
IMAGES = 60_000
ENDLESS = Length(epochs=10_000)


class WithoutTelemetry(TelemetrySampler):
    """Stands in for telemetry and watches nothing."""

    def __init__(self) -> None: ...

    def begin_segment(self, steps: float = math.inf) -> None: ...

    def end_segment(self, steps: int) -> None: ...


def build_mlp(folder: Path) -> Trainer:
    """Build a trial of the MLP on IMAGES images of noise."""
    noise = np.random.default_rng(0)
    for name, count in zip(NAMES, (IMAGES, IMAGES, 64, 64), strict=True):
        pixels = (28, 28) if "images" in name else ()
        highest = 256 if pixels else 10
        values = noise.integers(0, highest, (count, *pixels), dtype=np.uint8)
        (folder / name).write_bytes(idx(values.shape, values.tobytes()))
    content = {
        "name": "telemetry",
        "workloads": {"mlp": {"data": {"source": "idx", "path": str(folder)}}},
        "axes": {"batch_size": BATCH, "num_threads": 1},
        "length": {"epochs": 1},
    }
    sweep = folder / "sweep.yaml"
    sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
    (planned,) = load_sweep(sweep).cells
    cell = replace(planned, length=ENDLESS, evaluate=ENDLESS, warmup=0)
    assignment = Assignment(trial=Trial(cell=cell, seed=0), base_folder=str(folder), device="cpu")
    torch.set_num_threads(1)
    return make_trainer(assignment, load_workload(assignment), folder)


def alternate(
    trainer: Trainer, telemetry: TelemetrySampler, seconds: float, steps: int
) -> NDArray[np.float64]:
    """Train pairs of windows of `steps` steps, one with telemetry and one without.

    They take turns in coming first. Returns the seconds, shape (pairs, with and without, the timed
    region and the CPU time of the training's thread in all).
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
        turns = (True, False) if len(pairs) % 2 else (False, True)
        for watched in turns:
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


def describe_cost(pairs: NDArray[np.float64], scale: float) -> str:
    """Return the share of time that telemetry adds, times `scale`, with its 95% interval.

    `pairs` are seconds, shape (pairs, with and without). The mean is geometric, and the interval by
    Student's t over the logarithms of the pairs' ratios.
    """
    logs = np.log(pairs[:, 0] / pairs[:, 1])
    interval = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    mean, low, high = np.expm1([logs.mean(), *interval]) * scale
    return f"{mean:+.3%} (95% interval {low:+.3%} to {high:+.3%})"


def seconds_of_calls(telemetry: TelemetrySampler, times: int = 200) -> float:
    """Return the seconds that the two calls for a segment take."""
    start = time.perf_counter()
    for _ in range(times):
        telemetry.begin_segment()
        telemetry.end_segment(1)
    return (time.perf_counter() - start) / times


def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    requested_interval = float(sys.argv[2]) if len(sys.argv) > 2 else SAMPLE_INTERVAL
    with (
        tempfile.TemporaryDirectory() as folder,
        TelemetrySampler(None, ThisHost(), interval=requested_interval) as telemetry,
    ):
        trainer = build_mlp(Path(folder))
        alternate(trainer, telemetry, 5, 20)  # warm-up
        steps = math.ceil(WINDOW_SECONDS / np.quantile(trainer.state.step_seconds, 0.1))
        thread_clock = time.pthread_getcpuclockid(telemetry.thread.ident or 0)
        cpu_before, before = time.clock_gettime(thread_clock), telemetry.report()
        pairs = alternate(trainer, telemetry, seconds, steps)
        cpu_after, after = time.clock_gettime(thread_clock), telemetry.report()
        call_seconds = seconds_of_calls(telemetry)
    cpu_seconds = cpu_after - cpu_before
    watched_seconds = after.seconds - before.seconds
    samples = after.sample_times.count - before.sample_times.count
    # Longer than requested where a sample itself takes long.
    interval = watched_seconds / samples
    scale = interval / SAMPLE_INTERVAL
    wall, thread_cpu = np.moveaxis(pairs, 2, 0)
    hardware, load_average = describe_hardware(), os.getloadavg()[0]
    print(f"{hardware.cpu}, {hardware.usable_cores} cores, load {load_average:.1f}")
    print(f"torch {torch.__version__}")
    print(f"{len(pairs)} pairs of windows of {wall.mean():.2f} s")
    print(f"{samples} samples, one every {interval:.4f} s")
    print(f"cost at one sample every {SAMPLE_INTERVAL} s, in the timed region:")
    print(f"  step time:                          {describe_cost(wall, scale)}")
    print(f"  CPU time of the training's thread:  {describe_cost(thread_cpu, scale)}")
    print(f"CPU time of the sampling thread: {cpu_seconds / watched_seconds:.3%} of training,")
    print(f"  {cpu_seconds / samples * 1e6:.0f} µs per sample")
    print(f"the calls for a segment, outside the timed region: {call_seconds * 1e6:.0f} µs")


if __name__ == "__main__":
    main()
