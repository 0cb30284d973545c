"""Traces of training steps by torch.profiler, once all that a trial records has been measured."""

from __future__ import annotations

from torch.profiler import ProfilerActivity, profile, record_function, schedule

from harness.core.paths import write_atomically
from harness.training.build import TrialParts
from harness.training.model import place_batch
from harness.training.state import TrainingState
from harness.training.train import batches_from

WARMUP_STEPS = 1  # under the profiler, whose events are dropped: it is slow at first
TABLE_ROWS = 30


def trace_steps(parts: TrialParts, state: TrainingState, steps: int) -> None:
    """Train `steps` more steps, and leave a trace of them in the trial's folder.

    `profile/rank<N>.json.gz` is a Chrome trace, `profile/rank<N>.txt` a table of the operators with
    the most time of their own. Every rank must call this, and the model is another one afterwards.
    The learning rate stays as it is: a schedule may not continue after its end.
    """
    device = parts.device
    train_step = parts.train_step
    train_step.schedule = None
    batches = batches_from(parts.loader, parts.order, state.step)
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    active = schedule(wait=0, warmup=WARMUP_STEPS, active=steps, repeat=1)
    with (
        state.timed("profile"),
        profile(activities=activities, schedule=active, acc_events=True) as profiler,
    ):
        for _ in range(WARMUP_STEPS + steps):
            with record_function("fetch"):
                _, _, batch = next(batches)
                batch = place_batch(batch, parts.axes, device)
            train_step.run(batch)
            profiler.step()
        _write(profiler, parts)


def _write(profiler: profile, parts: TrialParts) -> None:
    """Write the trace, and its table."""
    path, sort_by = parts.folder.trace_path(parts.mesh.rank), "self_cpu_time_total"
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))  # compressed, as its name ends in .gz
    if parts.device.type == "cuda":
        sort_by = "self_device_time_total"
    table = profiler.key_averages().table(sort_by=sort_by, row_limit=TABLE_ROWS)
    write_atomically(path.with_name(path.name.replace(".json.gz", ".txt")), table)
