"""Times calls of a trial's model: in eager mode, compiled and as it was exported.

In each round, every arm is called once with the same inputs, in a newly drawn order. A slow phase of
the machine so strikes all arms, and no arm always follows the same other.

This is the task `latency` of `harness.training.worker`, of one rank with the number of threads to
measure: a model compiled for one number of threads keeps it. It reads FOLDER/trial.json and
FOLDER/order.json, and leaves FOLDER/answer.json in addition to its result.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from harness.core.errors import NotApplied, one_line
from harness.core.paths import TrialFolder
from harness.records.assignment import Assignment
from harness.records.record import RankResult
from harness.serving.calls import Inputs, inputs_of
from harness.serving.exporters import EXPORTERS
from harness.serving.formats import missing_compiler, missing_runtime
from harness.serving.orders import (
    LatencyAnswer,
    LatencyOrder,
    answer_path,
    read_order,
    write_message,
)
from harness.serving.parity import sample_differences
from harness.serving.record import COMPILED, EAGER, ArmTimes, LatencyGroup
from harness.serving.trained import load_trained
from harness.training import compile_cache
from harness.training.entry import joined, load_workload
from harness.training.ranks import Ranks, seed_everything
from harness.training.state import TrainingState
from workloads.base import Workload
from workloads.datasets import load_splits

BATCHES = 16  # different ones of the test set that calls go through
# Runtimes keep their threads spinning for a while after a call, so that the next one starts sooner.
# They would take the cores from another runtime's call; this pause lets them go to sleep.
PAUSE = 0.003  # seconds
SEED = 0  # of the order of arms

Call = Callable[..., Any]


@dataclass(frozen=True)
class LatencyArm:
    """One way to run a model."""

    name: str
    call: Call
    load_seconds: float


def measure_latency(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Write how long calls took; return a result without measurements."""
    with joined(folder, ranks) as (assignment, mesh):
        workload = load_workload(assignment)
        groups = measure_groups(read_order(folder, LatencyOrder), assignment, workload, mesh.device)
    write_message(answer_path(folder), LatencyAnswer(groups=groups))
    return entered


def measure_groups(
    order: LatencyOrder, assignment: Assignment, workload: Workload, device: torch.device
) -> list[LatencyGroup]:
    """Return the times of all arms at each batch size.

    Raises NotApplied if an exported model computes something else at one of them.
    """
    cell = assignment.trial.cell
    compile_cache.share_cache(cell.workload.uses, device)
    seed_everything(assignment.trial.seed)  # as before training
    samples = load_splits(workload).test
    checkpoint, base_folder = Path(order.checkpoint), Path(assignment.base_folder)
    eager = load_trained(workload, cell, base_folder, checkpoint, device)
    exported = []
    absent = {}  # models that were exported where more packages were installed
    for name in order.models:
        problem = missing_runtime(name)
        if problem is None:
            exported.append(_load(order, name, eager))
        else:
            absent[name] = problem
    groups = []
    for batch_size in order.batch_sizes:
        batches = []
        for indices in batches_of(len(samples), batch_size):
            batches.append(inputs_of(workload, eager, samples, indices, cell.axes, device)[0])
        for arm in exported:
            check_outputs(arm, eager, batches, order.tolerances[arm.name], batch_size)
        compiled, left_out = _compile(eager, batches)
        group = measure(
            [LatencyArm(EAGER, eager, 0.0), *compiled, *exported],
            batches,
            batch_size=batch_size,
            threads=order.threads,
            calls=order.calls,
            seconds=order.seconds,
            device=device,
        )
        groups.append(replace(group, left_out={**absent, **left_out}))
    return groups


def batches_of(count: int, batch_size: int) -> list[list[int]]:
    """Return the indices of the batches that are called, taken from `count` samples in turn.

    A set with fewer samples than a batch is repeated.
    """
    batches = []
    for number in range(BATCHES):
        start = number * batch_size
        batches.append([index % count for index in range(start, start + batch_size)])
    return batches


def _load(order: LatencyOrder, name: str, eager: nn.Module) -> LatencyArm:
    """Load an exported model, as a server that starts does."""
    started = time.monotonic()
    call: Call = EXPORTERS[name].load(Path(order.models[name]), eager, order.threads)
    return LatencyArm(name, call, time.monotonic() - started)


@torch.inference_mode()
def check_outputs(
    arm: LatencyArm, eager: nn.Module, batches: Sequence[Inputs], tolerance: float, batch_size: int
) -> None:
    """Raise NotApplied if a model's outputs differ from eager mode's by more than `tolerance`.

    The comparison over the whole test set has used another batch size.
    """
    for inputs in batches:
        outputs, expected = arm.call(*inputs), tree_leaves(eager(*inputs))
        for output, reference in zip(outputs, expected, strict=True):
            gap = float(sample_differences(output, reference, 1).max())
            if not gap <= tolerance:
                raise NotApplied(
                    f"{arm.name} computes something else at batch size {batch_size}: outputs differ"
                    f" by {gap:.2g}; allowed: {tolerance:.2g}"
                )


def _compile(
    eager: nn.Module, batches: Sequence[Inputs]
) -> tuple[list[LatencyArm], dict[str, str]]:
    """Return the compiled model as an arm, or why there is none.

    It is compiled again for each batch size, and called with all batches before any call is timed:
    compiling for a new width of texts takes half a minute.
    """
    problem = missing_compiler() if batches[0][0].device.type == "cpu" else None
    if problem is not None:
        return [], {COMPILED: problem}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled: Any = torch.compile(eager)
    started = time.monotonic()
    try:
        with torch.inference_mode():
            for inputs in batches:
                compiled(*inputs)
    except Exception as error:  # torch's compilers raise anything
        return [], {COMPILED: one_line(f"{type(error).__name__}: {error}")}
    if not torch._dynamo.utils.counters["stats"]["unique_graphs"]:
        return [], {COMPILED: "torch.compile compiled no graph"}
    return [LatencyArm(COMPILED, compiled, time.monotonic() - started)], {}


@torch.inference_mode()
def measure(
    arms: Sequence[LatencyArm],
    batches: Sequence[Inputs],
    *,
    batch_size: int,
    threads: int,
    calls: int,
    seconds: float,
    device: torch.device,
) -> LatencyGroup:
    """Call all arms in turn, round by round; return how long each call took.

    The first call of each arm is timed separately. Rounds repeat `batches` until there are `calls`
    of them or `seconds` have passed.
    """
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    pause = PAUSE if threads > 1 else 0.0
    first_seconds = {}
    for arm in arms:
        first_seconds[arm.name] = _time_call(arm.call, batches[0], synchronize) / 1e9
    times: dict[str, list[int]] = {arm.name: [] for arm in arms}
    order = list(arms)
    draw = random.Random(SEED)
    deadline = time.monotonic() + seconds
    for number in range(calls):
        if time.monotonic() > deadline:
            break
        draw.shuffle(order)
        for arm in order:
            time.sleep(pause)
            inputs = batches[number % len(batches)]
            times[arm.name].append(_time_call(arm.call, inputs, synchronize))
    return LatencyGroup(
        batch_size=batch_size,
        threads=threads,
        arms=[
            ArmTimes(
                arm=arm.name,
                load_seconds=arm.load_seconds,
                first_call_seconds=first_seconds[arm.name],
                nanoseconds=times[arm.name],
            )
            for arm in arms
        ],
    )


def _time_call(call: Call, inputs: Inputs, synchronize: Callable[[], object]) -> int:
    """Return how many nanoseconds a call takes, until the device has its result."""
    started = time.perf_counter_ns()
    call(*inputs)
    synchronize()
    return time.perf_counter_ns() - started
