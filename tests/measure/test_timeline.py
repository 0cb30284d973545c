"""Dividing the time of steps into parts, from traces as torch.profiler writes them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from harness.measure.clock import STEP_END, HostClock, Phase, SegmentTimes
from harness.measure.step_parts import (
    COMPILED,
    COPIES,
    DATA_WAIT,
    DEVICE_IDLE,
    SYNCHRONIZATION,
)
from harness.measure.timeline import AUTOGRAD, MARK, StepPart, divide, part_name
from harness.training.profiler import SegmentProfiler

BEGAN = 100.0  # seconds of the host's clock at which segments begin
THREAD, GLOO = 1, 2


def event(name: str, start: float, end: float, **keys: Any) -> dict[str, Any]:
    """An event of a trace from `start` to `end`, in milliseconds of the segment."""
    shapes = keys.pop("shapes", None)
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "tid": THREAD,
        "ts": 5e6 + 1e3 * start,
        "dur": 1e3 * (end - start),
        "args": {} if shapes is None else {"Input Dims": shapes},
        **keys,
    }


def segment(steps: Sequence[float], phases: Sequence[tuple[Phase, float]]) -> SegmentTimes:
    """Times of steps and of their phases, in milliseconds."""
    return SegmentTimes(
        steps=np.asarray(steps) / 1e3,
        phases={},
        began=BEGAN,
        order=np.asarray([int(phase) for phase, _ in phases]),
        durations=np.asarray([duration for _, duration in phases]) / 1e3,
    )


def divided(
    events: Sequence[dict[str, Any]], times: SegmentTimes, *, with_phases: bool = True
) -> dict[str, StepPart]:
    """The parts by name; the trace's mark begins one millisecond before the segment."""
    mark = event(MARK, -1.0, 1e3, cat="user_annotation")
    parts = divide({"traceEvents": [mark, *events]}, times, BEGAN - 1e-3, with_phases=with_phases)
    return {part.name: part for part in parts}


def milliseconds(part: StepPart) -> list[float]:
    return [1e3 * seconds for seconds in part.seconds]


ONE_STEP = segment([10.0], [(Phase.data_wait, 2.0), (Phase.forward, 8.0)])


def test_a_moment_belongs_to_the_innermost_operator_or_to_the_phase() -> None:
    parts = divided(
        [
            event("aten::index", 0.5, 1.5),  # while data is waited for
            event("aten::linear", 3.0, 7.0, shapes=[[4, 8], [], [8]]),
            event("aten::addmm", 4.0, 6.0),
            event("Optimizer.step#SGD.step", 8.0, 9.0, cat="user_annotation"),
        ],
        ONE_STEP,
    )
    assert {name: milliseconds(part) for name, part in parts.items()} == {
        DATA_WAIT: [pytest.approx(2.0)],
        "aten::linear": [pytest.approx(2.0)],
        "aten::addmm": [pytest.approx(2.0)],
        "Python in forward": [pytest.approx(4.0)],
    }
    assert parts["aten::linear"].shapes == {"4×8, 8": 1}
    assert parts[DATA_WAIT].calls == 0


def test_time_of_steps_is_told_apart() -> None:
    times = segment([4.0, 6.0], [(Phase.forward, 10.0)])
    parts = divided([event("aten::mm", 3.0, 5.0)], times)
    assert milliseconds(parts["aten::mm"]) == pytest.approx([1.0, 1.0])
    assert milliseconds(parts["Python in forward"]) == pytest.approx([3.0, 5.0])


def test_what_waits_for_a_collective_is_told_apart_from_what_it_computes() -> None:
    times = segment([10.0], [(Phase.forward, 2.0), (Phase.backward, 6.0), (Phase.optimizer, 2.0)])
    parts = divided(
        [
            event("c10d::allreduce_", 3.0, 4.0, shapes=[[[50], [2, 3]], [], []]),
            event("aten::mm", 4.0, 5.0),  # overlaps with the collective
            event("gloo:all_reduce", 6.5, 7.0, tid=GLOO, cat="user_annotation"),
        ],
        times,
    )
    collective = parts["all_reduce"]
    assert milliseconds(collective) == pytest.approx([1.0])
    assert [1e3 * seconds for seconds in collective.waited] == pytest.approx([2.0])
    assert (collective.calls, collective.shapes) == (1, {"50, 2×3": 1})
    assert milliseconds(parts["Python in backward"]) == pytest.approx([2.0])
    everything = [value for part in parts.values() for value in (*part.seconds, *part.waited)]
    assert math.fsum(everything) == pytest.approx(0.01)


def test_of_a_script_only_its_loader_is_a_wait() -> None:
    times = segment([10.0], [(Phase.data_wait, 8.0), (Phase.optimizer, 2.0)])
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    parts = divided(
        [
            event(loader, 0.0, 3.0, cat="user_annotation"),
            event("aten::stack", 1.0, 2.0),
            event("aten::mm", 4.0, 5.0),
        ],
        times,
        with_phases=False,
    )
    assert milliseconds(parts[DATA_WAIT]) == pytest.approx([3.0])
    assert milliseconds(parts["aten::mm"]) == pytest.approx([1.0])
    assert milliseconds(parts["Python of the script"]) == pytest.approx([6.0])


def test_a_device_counts_by_its_kernels() -> None:
    times = segment([5.0, 5.0], [(Phase.forward, 10.0)])
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    parts = divided(
        [
            event("aten::mm", 0.0, 0.1),
            event("gemm", 1.0, 3.0, cat="kernel", tid=7),
            event(nccl, 2.0, 4.0, cat="kernel", tid=8),
            event("cudaStreamSynchronize", 4.0, 4.5, cat="cuda_runtime"),
            event("cudaEventQuery", 4.5, 4.6, cat="cuda_runtime"),
            event("gemm", 6.0, 7.0, cat="kernel", tid=7),
            event("triton_poi_fused_relu_0", 7.0, 7.5, cat="kernel", tid=7),
        ],
        times,
    )
    assert milliseconds(parts["triton_poi_fused_relu_0"]) == pytest.approx([0.0, 0.5])
    assert milliseconds(parts["gemm"]) == pytest.approx([2.0, 1.0])
    assert milliseconds(parts["all_reduce"]) == pytest.approx([1.0, 0.0])
    assert milliseconds(parts[DEVICE_IDLE]) == pytest.approx([2.0, 3.5])
    assert parts[DEVICE_IDLE].calls == 1


def test_a_kernel_that_outlasts_the_steps_is_of_the_last_one() -> None:
    """The ends of steps add up to another number than the steps do at once."""
    times = segment([100.0] * 10, [(Phase.forward, 1000.0)])
    assert times.steps.sum() > times.steps.cumsum()[-1]
    parts = divided([event("gemm", 950.0, 1100.0, cat="kernel", tid=7)], times)
    assert milliseconds(parts["gemm"]) == pytest.approx([*[0.0] * 9, 50.0])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("autograd::engine::evaluate_function: AddmmBackward0", AUTOGRAD),
        ("AddmmBackward0", AUTOGRAD),
        ("Torch-Compiled Region: 0/1", COMPILED),
        ("CompiledFunctionBackward", COMPILED),
        ("aten::_local_scalar_dense", SYNCHRONIZATION),
        ("aten::_to_copy", COPIES),
        ("aten::topk", "aten::topk"),
        ("c10d::_allgather_base_", "all_gather"),
        ("nccl:reduce_scatter", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "generic"),
    ],
)
def test_events_have_parts(name: str, part: str) -> None:
    assert part_name(name) == part


def test_a_real_segment_adds_up_to_its_steps(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    clock = HostClock()
    profiler = SegmentProfiler(torch.device("cpu"), tmp_path)
    clock.start()
    for _ in range(3):
        time.sleep(0.002)
        clock.enter(Phase.forward)
        loss = model(torch.ones(4, 16)).sum()
        loss.item()
        clock.enter(Phase.backward)
        loss.backward()
        clock.end_step()
    times = clock.stop()
    parts = {part.name: part for part in profiler.stop(times, with_phases=True)}
    total = np.sum([part.seconds for part in parts.values()], axis=0)
    assert total == pytest.approx(times.steps)
    assert parts["aten::addmm"].calls == parts[SYNCHRONIZATION].calls == 3
    assert min(parts[DATA_WAIT].seconds) > 0.0018
    assert STEP_END not in times.order
    assert list(tmp_path.iterdir()) == []
