"""A torch.profiler trace of a few more training steps, taken once all that a trial records has been measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from harness.core.paths import write_atomically
from harness.training.loader import Fetched, to_device
from harness.training.strategy import arrange
from harness.training.train import Training

WARMUP = 1  # steps under the profiler whose events are dropped: it is slow at first
ROWS = 30  # of the table


def trace_steps(training: Training, steps: int) -> None:
    """Leave `profile/rank<N>.json.gz`, a Chrome trace, and `.txt`, its top table by self time, in the trial's folder.

    They go on from where training stopped, so every rank must take part and the model is not as it was afterwards.
    The learning rate stays at its last: a schedule need not know what comes after its end.
    """
    place, on_gpu = training.folder.trace_path(training.ranks.rank), training.device.type == "cuda"
    training.schedule = None
    batches = _further(training)

    def leave(finished: profile) -> None:
        _write_trace(finished, place)
        by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        table = finished.key_averages().table(sort_by=by, row_limit=ROWS)
        write_atomically(place.with_name(place.name.replace(".json.gz", ".txt")), table)

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    plan = schedule(wait=0, warmup=WARMUP, active=steps, repeat=1)
    with (
        training.phase("profile"),
        profile(
            activities=activities, schedule=plan, on_trace_ready=leave, acc_events=True
        ) as profiler,
    ):
        for _ in range(WARMUP + steps):
            with record_function("fetch"):
                _, _, batch = next(batches)
                batch = arrange(to_device(batch, training.device), training.axes)
            training._train_step(batch)
            profiler.step()
        if on_gpu:
            torch.cuda.synchronize(training.device)


def _further(training: Training) -> Iterator[Fetched]:
    """Batches on from where training stopped, epoch after epoch."""
    order = training.order
    order.epoch, order.skip = divmod(training.step, order.steps)
    while True:
        yield from training.loader
        order.epoch, order.skip = order.epoch + 1, 0


def _write_trace(finished: profile, place: Path) -> None:
    """Aside first; the profiler compresses what is to end in .gz."""
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f".{place.name}")
    finished.export_chrome_trace(str(aside))
    aside.replace(place)
