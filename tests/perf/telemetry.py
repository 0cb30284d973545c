"""What telemetry costs the training beside it: `python -m tests.perf.telemetry [SECONDS]`.

The harness's own loop trains the MLP on images of noise, with 1 thread, in blocks of half an epoch, one with
the sampling thread and one without, in turns. The timed region is what a trial reports.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from harness.axes import Axes
from harness.cell import Assignment, Cell, Choice, Length, Trial
from harness.dist import Ranks
from harness.environment import describe_hardware
from harness.measure.telemetry import EVERY, Telemetry, telemetry_for
from harness.paths import TrialFolder
from harness.train import Trace, Training
from harness.worker import load_workload
from tests.support.images import NAMES, idx

SECONDS = 120.0
BATCH = 64
IMAGES = 60_000
FOREVER = Length(epochs=10**6)


class Without:
    """In the place of telemetry."""

    def begin(self) -> None: ...

    def end(self, steps: int) -> None: ...


def make_training(folder: Path) -> Training:
    """The MLP on IMAGES images of noise."""
    noise = np.random.default_rng(0)
    for name, count in zip(NAMES, (IMAGES, IMAGES, 64, 64), strict=True):
        pixels = (28, 28) if "images" in name else ()
        values = noise.integers(0, 256 if pixels else 10, (count, *pixels), dtype=np.uint8)
        (folder / name).write_bytes(idx(values.shape, values.tobytes()))
    choice = Choice(label="mlp", uses="mlp", options={}, data={"source": "idx", "path": str(folder)}, identity={})
    axes = Axes(batch_size=BATCH, threads=1)
    cell = Cell(choice=choice, axes=axes, length=FOREVER, evaluate=FOREVER, warmup=0)
    assignment = Assignment(trial=Trial(cell=cell, seed=0), base=str(folder), device="cpu")
    torch.set_num_threads(1)
    ranks = Ranks(rank=0, local_rank=0, world_size=1)
    return Training(assignment, load_workload(assignment), TrialFolder(folder), ranks, torch.device("cpu"), Trace())


def alternate(training: Training, telemetry: Telemetry, seconds: float) -> list[tuple[float, float]]:
    """For each epoch, seconds of the half with telemetry and of the half without; which comes first takes turns."""
    pairs = []
    half, deadline = training.order.steps // 2, time.monotonic() + seconds
    while time.monotonic() < deadline:
        training.order.epoch += 1
        batches, spent = iter(training.loader), {}
        for watched in (True, False) if training.order.epoch % 2 else (False, True):
            training.telemetry = telemetry if watched else Without()  # type: ignore[assignment]
            training._stretch(batches, training.step + half)
            spent[watched] = sum(training.trace.step_seconds[-half:])
        pairs.append((spent[True], spent[False]))
    return pairs


def calls(telemetry: Telemetry, times: int = 200) -> float:
    """Seconds that one `begin` and `end` take."""
    began = time.perf_counter()
    for _ in range(times):
        telemetry.begin()
        telemetry.end(1)
    return (time.perf_counter() - began) / times


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory() as folder, telemetry_for(torch.device("cpu"), warmup=0) as telemetry:
        training = make_training(Path(folder))
        alternate(training, telemetry, 3)  # so that all has been warmed up
        clock = time.pthread_getcpuclockid(telemetry.thread.ident or 0)
        before, began = time.clock_gettime(clock), telemetry.account()
        pairs = alternate(training, telemetry, seconds)
        busy, seen = time.clock_gettime(clock) - before, telemetry.account()
        each = calls(telemetry)
    watched = seen.seconds - began.seconds
    logs = np.log([with_it / without for with_it, without in pairs])
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    hardware, samples = describe_hardware(), seen.at.count - began.at.count
    print(
        f"{hardware['cpu']}, {hardware['usable_cores']} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"
    )
    print(f"{len(pairs)} pairs of blocks of {np.mean(pairs):.2f} s; {samples} samples, one every {EVERY} s of training")
    print(
        f"step time with to without: {np.exp(logs.mean()):.4f} (95% interval {np.exp(low):.4f} to {np.exp(high):.4f})"
    )
    print(f"the thread's own CPU time: {busy / watched:.3%} of the training's, {busy / samples * 1e6:.0f} µs a sample")
    print(f"begin and end, outside the timed region: {each * 1e6:.0f} µs a stretch")


if __name__ == "__main__":
    main()
