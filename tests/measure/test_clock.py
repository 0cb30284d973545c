"""The step clock: every nanosecond of a step belongs to one phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from harness.measure.clock import Phase, SegmentTimes, StepClock


def scripted(moments: list[int]) -> StepClock:
    """Return a clock with moments from a list instead of the time of day, in milliseconds."""
    clock = StepClock(torch.device("cpu"))
    nanoseconds = iter([moment * 1_000_000 for moment in moments])
    clock._now = nanoseconds.__next__
    return clock


def entered(times: SegmentTimes) -> dict[str, Any]:
    """Return the milliseconds of the phases that were entered."""
    milliseconds = {name: (row * 1e3).round(6).tolist() for name, row in times.phases.items()}
    return {name: row for name, row in milliseconds.items() if not np.isnan(row).all()}


def test_phases_add_up_to_their_steps() -> None:
    clock = scripted([0, 1, 3, 7, 10, 11, 14, 20, 21])
    clock.start()
    for _ in range(2):
        for phase in (Phase.forward, Phase.backward, Phase.optimizer):
            clock.enter(phase)
        clock.end_step()
    times = clock.stop()
    np.testing.assert_allclose(times.steps * 1e3, [10, 11])
    assert entered(times) == {
        "data_wait": [1, 1],
        "forward": [2, 3],
        "backward": [4, 6],
        "optimizer": [3, 1],
    }
    assert set(times.phases) == {phase.name for phase in Phase}


def test_micro_steps_add_to_the_phases_of_their_step() -> None:
    clock = scripted([0, 1, 2, 4, 8, 16, 32])
    clock.start()
    for phase in (Phase.forward, Phase.backward, Phase.forward, Phase.backward, Phase.optimizer):
        clock.enter(phase)
    clock.end_step()
    times = clock.stop()
    assert times.steps * 1e3 == pytest.approx([32])
    phases = {"data_wait": [1], "forward": [1 + 4], "backward": [2 + 8], "optimizer": [16]}
    assert entered(times) == phases


def test_a_collective_within_a_phase_is_communication() -> None:
    clock = scripted([0, 1, 5, 6, 9])
    clock.start()
    clock.enter(Phase.forward)
    with clock.communicating():  # from 5 to 6
        pass
    clock.end_step()
    phases = {"data_wait": [1], "forward": [4 + 3], "communication": [1]}
    assert entered(clock.stop()) == phases


def test_outside_a_segment_collectives_cost_nothing() -> None:
    clock = scripted([0, 1, 3, 7])
    with clock.communicating():
        pass
    clock.start()
    with clock.communicating():  # from 1 to 3, while data is waited for
        pass
    clock.end_step()
    assert entered(clock.stop()) == {"data_wait": [1 + 4], "communication": [2]}
    with clock.communicating():
        pass


def test_events_of_a_gpu_are_recorded_again_on_the_stream_of_their_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To make an event and to look up its stream take longer than to record it."""
    made: list[Any] = []

    class Event:
        """Stands in for one of a GPU, whose stream has done as many milliseconds of work as calls."""

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            made.append(self)

        def record(self, stream: list[int] | None) -> None:
            if stream is not None:
                stream.append(len(stream))
                self.at = stream[-1]

        def elapsed_time(self, end: Any) -> float:
            return float(end.at - self.at)

    streams: list[list[int]] = [[], [7]]
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", iter(streams).__next__)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = StepClock(torch.device("cuda"))
    # As of a trial that is resumed at its end, and counts its collectives.
    clock.enter(Phase.forward)
    for steps in (2, 3):
        clock.start()
        for _ in range(steps):
            clock.enter(Phase.forward)
            clock.end_step()
        assert clock.stop().steps * 1e3 == pytest.approx([2] * steps)
    assert [len(stream) for stream in streams] == [5, 1 + 7]
    assert len(made) == 7  # as many as the longer segment has


@pytest.mark.parametrize(
    ("segments", "timed"), [(5, [0, 1, 2, 3, 4]), (25, [0, 10, 20])], ids=["short", "long"]
)
def test_of_many_segments_one_in_ten_has_its_phases_timed(segments: int, timed: list[int]) -> None:
    clock = StepClock(torch.device("cpu"))
    known = []
    for segment in range(segments):
        clock.start(segments_left=segments - segment)
        clock.enter(Phase.forward)
        with clock.communicating():
            pass
        clock.end_step()
        times = clock.stop()
        assert times.steps > 0
        if entered(times):
            known.append(segment)
            (seconds,) = times.steps
            assert sum(row[0] for row in entered(times).values()) == pytest.approx(seconds * 1e3)
    assert known == timed
