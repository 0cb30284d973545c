"""Traces of training steps by torch.profiler, once all that a trial records has been measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from harness.core.paths import write_atomically
from harness.training.build import TrialParts
from harness.training.loader import Fetched
from harness.training.model import place_batch
from harness.training.state import TrainingState

WARMUP_STEPS = 1  # under the profiler, whose events are dropped: it is slow at first
TABLE_ROWS = 30


def trace_steps(parts: TrialParts, state: TrainingState, steps: int) -> None:
    """Train `steps` more steps, and leave a trace of them in the trial's folder.

    `profile/rank<N>.json.gz` is a Chrome trace, `profile/rank<N>.txt` a table of the operators with
    the most time of their own. Every rank must call this, and the model is another one afterwards.
    The learning rate stays as it is: a schedule may not continue after its end.
    """
    trace_path = parts.folder.trace_path(parts.mesh.ranks.rank)
    on_gpu = parts.mesh.device.type == "cuda"
    with (
        state.timed("profile"),
        profile(
            activities=_activities(parts.mesh.device),
            schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=steps, repeat=1),
            on_trace_ready=lambda finished: _write(finished, trace_path, on_gpu=on_gpu),
            acc_events=True,
        ) as profiler,
    ):
        _train(parts, state.step, WARMUP_STEPS + steps, profiler)
        if on_gpu:
            torch.cuda.synchronize(parts.mesh.device)


def _activities(device: torch.device) -> list[ProfilerActivity]:
    """Return what is traced: the CPU, and a GPU that is trained on."""
    if device.type == "cuda":
        return [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    return [ProfilerActivity.CPU]


def _train(parts: TrialParts, start_step: int, steps: int, profiler: profile) -> None:
    """Train as the loop does, and mark the end of each step for the profiler."""
    train_step = replace(parts.train_step, schedule=None)
    batches = _batches_from(parts, start_step)
    for _ in range(steps):
        with record_function("fetch"):
            _, _, batch = next(batches)
            batch = place_batch(batch, parts.axes, parts.mesh.device)
        train_step.run(batch)
        profiler.step()


def _batches_from(parts: TrialParts, step: int) -> Iterator[Fetched]:
    """Yield the batches of `step` and of the steps after it, epoch after epoch."""
    parts.order.seek(step)
    while True:
        yield from parts.loader
        parts.order.seek((parts.order.epoch + 1) * parts.order.steps)


def _write(finished: profile, trace_path: Path, *, on_gpu: bool) -> None:
    """Write the trace aside and rename it into place, then its table."""
    trace_path.parent.mkdir(parents=True, exist_ok=True)
    aside = trace_path.with_name(f".{trace_path.name}")
    finished.export_chrome_trace(str(aside))  # compressed, as its name ends in .gz
    aside.replace(trace_path)
    sort_by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    table = finished.key_averages().table(sort_by=sort_by, row_limit=TABLE_ROWS)
    table_path = trace_path.with_name(trace_path.name.replace(".json.gz", ".txt"))
    write_atomically(table_path, table)
