"""Latencies with a clock of their own: who is called when, and what it comes to."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.errors import NotApplied
from harness.serving import latency_worker
from harness.serving.latency_worker import LatencyArm, batches_of, check_outputs, measure
from harness.serving.record import ArmTimes, LatencyGroup
from harness.serving.summary import summarize_group
from tests.serving.blobs import Net, perturbed
from tests.support.training import CPU


class Clock:
    """Stands in for the module `time`: only calls advance it."""

    def __init__(self) -> None:
        self.now = 0  # nanoseconds
        self.calls: list[tuple[str, int]] = []

    def perf_counter_ns(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e9

    def sleep(self, seconds: float) -> None: ...

    def arm(self, name: str, nanoseconds: int) -> Callable[[Tensor], None]:
        """Return a call that takes so long, and notes which inputs it had."""

        def call(inputs: Tensor) -> None:
            self.calls.append((name, int(inputs)))
            self.now += nanoseconds

        return call


def run(monkeypatch: pytest.MonkeyPatch, seconds: float) -> tuple[Clock, LatencyGroup]:
    clock = Clock()
    monkeypatch.setattr(latency_worker, "time", clock)
    arms = [
        LatencyArm("eager", clock.arm("eager", 3000), 0.0),
        LatencyArm("onnx", clock.arm("onnx", 1000), 0.5),
    ]
    batches = [(torch.tensor(number),) for number in range(4)]
    group = measure(arms, batches, batch_size=8, threads=1, calls=50, seconds=seconds, device=CPU)
    return clock, group


def test_arms_are_called_in_turn_with_the_same_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, group = run(monkeypatch, 1.0)
    assert [set(arm.nanoseconds) for arm in group.arms] == [{3000}, {1000}]
    assert [len(arm.nanoseconds) for arm in group.arms] == [50, 50]
    rounds = np.array(clock.calls[2:]).reshape(50, 2, 2)
    assert all({first, second} == {"eager", "onnx"} for first, second in rounds[:, :, 0])
    assert (rounds[:, 0, 1] == rounds[:, 1, 1]).all()
    assert {number for _, number in clock.calls} == {0, 1, 2, 3}
    leading = list(rounds[:, 0, 0]).count("eager")
    assert 15 <= leading <= 35


def test_calls_end_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    _, group = run(monkeypatch, 40_000 / 1e9)
    assert [len(arm.nanoseconds) for arm in group.arms] == [11, 11]


def test_warm_up_does_not_count() -> None:
    """Both arms are twice as slow for 60 of 400 rounds; eager mode takes three times as long."""
    noise = np.random.default_rng(0).normal(1, 0.02, 400)
    slow = np.where(np.arange(400) < 60, 2.0, 1.0)
    eager = (3e6 * noise * slow).astype(int).tolist()
    onnx = (1e6 * noise[::-1] * slow).astype(int).tolist()
    arms = [
        ArmTimes(arm=name, load_seconds=0, first_call_seconds=0, nanoseconds=times)
        for name, times in (("eager", eager), ("onnx", onnx))
    ]
    rows = summarize_group(LatencyGroup(batch_size=1, threads=1, arms=arms))
    assert {row.warmup for row in rows} == {60}
    assert [row.settled for row in rows] == [True, True]
    assert rows[0].speedup is None
    assert rows[1].speedup is not None
    assert rows[1].speedup.value == pytest.approx(3.0, rel=0.01)
    median = rows[1].quantiles["p50"]
    assert median.low is not None
    assert median.high is not None
    assert median.low <= 1e-3 <= median.high


def test_batches_go_through_the_test_set_and_begin_again() -> None:
    batches = batches_of(count=10, batch_size=4)
    assert batches[:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert batches_of(count=2, batch_size=3)[0] == [0, 1, 0]


def test_what_is_timed_computes_the_same_at_every_batch_size() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    changed = perturbed(copy.deepcopy(net))
    batches = [(torch.randn(4, 4),) for _ in range(3)]
    check_outputs(LatencyArm("onnx", lambda points: [net(points)], 0.0), net, batches, 1e-6, 4)
    with pytest.raises(NotApplied, match="onnx computes something else at batch size 4: outputs"):
        check_outputs(
            LatencyArm("onnx", lambda points: [changed(points)], 0.0), net, batches, 1e-6, 4
        )
