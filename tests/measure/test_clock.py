"""The step clock: every nanosecond of a step belongs to one phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from harness.measure.clock import CudaClock, HostClock, Phase, SegmentTimes


class Scripted(HostClock):
    """Moments from a list instead of the time of day, in milliseconds."""

    def __init__(self, moments: list[int]) -> None:
        super().__init__()
        self.moments = iter(moments)

    def _now(self) -> int:
        return next(self.moments) * 1_000_000


def entered(times: SegmentTimes) -> dict[str, Any]:
    """Return the seconds of the phases that were entered."""
    return {name: row for name, row in times.phases.items() if not np.isnan(row).all()}


def test_phases_add_up_to_their_steps() -> None:
    clock = Scripted([0, 1, 3, 7, 10, 11, 14, 20, 21])
    clock.start()
    clock.enter(Phase.forward)  # at 1
    clock.enter(Phase.backward)  # at 3
    clock.enter(Phase.optimizer)  # at 7
    clock.end_step()  # at 10
    clock.enter(Phase.forward)  # at 11
    clock.enter(Phase.backward)  # at 14
    clock.enter(Phase.optimizer)  # at 20
    clock.end_step()  # at 21
    times = clock.stop()
    np.testing.assert_allclose(times.steps * 1e3, [10, 11])
    expected = {"data_wait": [1, 1], "forward": [2, 3], "backward": [4, 6], "optimizer": [3, 1]}
    assert {
        name: (seconds * 1e3).round(6).tolist() for name, seconds in entered(times).items()
    } == expected
    assert set(times.phases) == {phase.name for phase in Phase}


def test_micro_steps_add_to_the_phases_of_their_step() -> None:
    clock = Scripted([0, 1, 2, 4, 8, 16, 32])
    clock.start()
    for phase in (Phase.forward, Phase.backward, Phase.forward, Phase.backward, Phase.optimizer):
        clock.enter(phase)
    clock.end_step()
    times = clock.stop()
    assert times.steps * 1e3 == pytest.approx([32])
    assert {
        name: float(seconds[0]) * 1e3 for name, seconds in entered(times).items()
    } == pytest.approx({"data_wait": 1, "forward": 1 + 4, "backward": 2 + 8, "optimizer": 16})


def test_a_collective_within_a_phase_is_communication() -> None:
    clock = Scripted([0, 1, 5, 6, 9])
    clock.start()
    clock.enter(Phase.forward)
    with clock.communicating():  # from 5 to 6
        pass
    clock.end_step()
    times = clock.stop()
    milliseconds = {name: float(seconds[0]) * 1e3 for name, seconds in entered(times).items()}
    assert milliseconds == pytest.approx({"data_wait": 1, "forward": 4 + 3, "communication": 1})


def test_outside_a_segment_collectives_cost_nothing() -> None:
    clock = Scripted([0, 2])
    with clock.communicating():
        pass
    clock.start()
    clock.end_step()
    times = clock.stop()
    assert times.steps * 1e3 == pytest.approx([2])
    with clock.communicating():
        pass


def test_a_collective_while_data_is_waited_for_ends_in_the_wait() -> None:
    clock = Scripted([0, 1, 3, 7])
    clock.start()
    with clock.communicating():  # from 1 to 3
        pass
    clock.end_step()
    times = clock.stop()
    assert {
        name: float(seconds[0]) * 1e3 for name, seconds in entered(times).items()
    } == pytest.approx({"data_wait": 1 + 4, "communication": 2})


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
    clock = CudaClock()
    clock.enter(
        Phase.forward
    )  # as of a trial that is resumed at its end, and counts its collectives
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
    clock = HostClock()
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
            assert sum(row.sum() for row in entered(times).values()) == pytest.approx(times.steps)
    assert known == timed
