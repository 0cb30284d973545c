"""Measures how long each step takes and how its time divides into phases.

What marks communication is here, too: the end of DDP's backward, and FSDP2's collectives.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from harness.records.record import Numbers

# Torch 2.13 has renamed both, and warns of the names before.
all_gather_single: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Phase(IntEnum):
    """The phases of a step.

    `communication` is the time that a rank waits for other ranks and for the network. What overlaps
    with computation is not part of it.
    """

    data_wait = 0
    host_to_device = 1
    forward = 2
    backward = 3
    communication = 4
    optimizer = 5


# Recorded in place of a phase at the end of a step. From then on the next step waits for its data.
STEP_END = -1


# Of ten segments, one has its phases timed: a mark costs a small model on a GPU as much as a kernel.
SEGMENTS_PER_SAMPLE = 10


@dataclass(frozen=True)
class SegmentTimes:
    """The durations of the steps of a segment and of their phases, in seconds.

    A step lasts from the end of the step before (the first: from the start of the segment) to its
    own end. Its phases add up to it, in a segment whose phases are timed.
    """

    steps: Numbers  # shape (steps,)
    # By name of the phase, shape (steps,); NaN in a segment that did not enter it, or times none.
    phases: dict[str, Numbers]


class StepClock:
    """Times the steps of a segment of training; between segments anything may happen untimed.

    While a segment runs, a change of phase only records its code and a timestamp: two appends to
    lists. Everything else is computed in `stop`, so that measuring costs next to nothing.

    On a CPU, timestamps are of the monotonic clock. A GPU runs behind the host, whose clock would time
    how long work takes to enqueue: there they are CUDA events on the stream that is current when a segment
    begins. An event gets its time when the stream reaches it. `elapsed_time` is defined only once both
    events have been reached, and to wait for them in every step would empty the stream. So all events
    are read in `stop`, after the loop, and recorded again in the next segment. A wait for data counts as
    far as the device had no work left in the meantime.
    """

    def __init__(self, device: torch.device) -> None:
        self.running = False
        self.times_phases = False  # in the segment that runs
        self._is_cuda = device.type == "cuda"
        self._now: Callable[[], Any] = time.perf_counter_ns
        if self._is_cuda:
            self._now = self._record_event
        self._segments = 0  # begun so far
        # Entry i says what began at timestamp i and lasted until timestamp i + 1.
        self._codes: list[int] = []  # a Phase, or STEP_END
        self._timestamps: list[Any] = []
        self._events: list[torch.cuda.Event] = []  # of the longest segment; all segments use them
        self._stream: torch.cuda.Stream | None = None  # before the first segment: the current one

    def start(self, segments_left: float = 0.0) -> None:
        """Begin a segment, once the device has finished its work.

        About so many segments of the trial are left, with this one. Its phases are timed in one
        segment of SEGMENTS_PER_SAMPLE, and in all of a trial that has fewer.
        """
        is_short = self._segments + segments_left < SEGMENTS_PER_SAMPLE
        self.times_phases = is_short or self._segments % SEGMENTS_PER_SAMPLE == 0
        self._segments += 1
        if self._is_cuda:
            torch.cuda.synchronize()
            # Looked up once, because that takes longer than to record an event.
            self._stream = torch.cuda.current_stream()
        self._codes, self._timestamps = [], []
        self.running = True
        self.end_step()  # the first step begins where a step before it would have ended

    def enter(self, phase: Phase) -> None:
        """Begin a phase. On a GPU it consists of the work that is enqueued from now on."""
        if self.times_phases:
            self._codes.append(phase)
            self._timestamps.append(self._now())

    def end_step(self) -> None:
        """End a step; the wait for the data of the next one begins."""
        self._codes.append(STEP_END)
        self._timestamps.append(self._now())

    def mark(self) -> int:
        """Return a mark of this moment, which may turn out to be the end of a step."""
        self._codes.append(Phase.data_wait)
        self._timestamps.append(self._now())
        return len(self._codes) - 1

    def end_step_at(self, mark: int) -> None:
        """End a step at a mark of the segment that runs."""
        self._codes[mark] = STEP_END

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Count the time inside as communication, then return to the phase before.

        Outside a segment whose phases are timed, as while evaluating, it does nothing.
        """
        if not self.times_phases:
            yield
            return
        interrupted = self._codes[-1]
        self.enter(Phase.communication)
        yield
        self.enter(Phase.data_wait if interrupted == STEP_END else Phase(interrupted))

    def stop(self) -> SegmentTimes:
        """End the segment, wait for the device, and return the times of the segment's steps."""
        are_phases_timed = self.times_phases
        self.times_phases = self.running = False
        if self._is_cuda:
            torch.cuda.synchronize()
        codes = np.asarray(self._codes)
        # What follows the last end of a step, as another optimizer's may, belongs to none.
        last_end = np.flatnonzero(codes == STEP_END)[-1]
        codes = codes[:last_end]
        is_step_end = codes == STEP_END
        seconds = self._seconds_between(self._timestamps[: last_end + 1])
        step_index = np.cumsum(is_step_end) - 1
        entered = np.where(is_step_end, Phase.data_wait, codes)
        phases = np.zeros((len(Phase), is_step_end.sum()))
        # A step may enter a phase several times. `np.add.at` adds all its parts, where an
        # assignment by index would keep only the last.
        np.add.at(phases, (entered, step_index), seconds)
        steps = phases.sum(axis=0)
        for phase in Phase:
            if not are_phases_timed or phase not in entered:
                phases[phase] = np.nan
        return SegmentTimes(steps, {phase.name: phases[phase] for phase in Phase})

    def _record_event(self) -> torch.cuda.Event:
        """Return an event that the stream will reach after the work that is enqueued now."""
        used = len(self._timestamps)
        if used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        event = self._events[used]
        event.record(self._stream)
        return event

    def _seconds_between(self, timestamps: list[Any]) -> Numbers:
        """Return the seconds from each timestamp to the next, shape (timestamps - 1,)."""
        if not self._is_cuda:
            nanoseconds = np.asarray(timestamps, dtype=np.int64)
            return np.diff(nanoseconds).astype(np.float64) / 1e9
        pairs = itertools.pairwise(timestamps)
        milliseconds = [start.elapsed_time(end) for start, end in pairs]
        return np.asarray(milliseconds) / 1e3


def mark_gradient_wait(loss: Tensor, clock: StepClock) -> None:
    """Count the rest of a DDP backward as communication once this rank's gradients are done.

    Autograd runs its final callbacks in the order in which they were queued. The gradient of the
    loss itself is the first to be computed, so a callback that is queued there runs before DDP's
    own, which waits for the buckets that are still being reduced.
    """
    if not clock.times_phases:
        return

    def queue_callback(gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: clock.enter(Phase.communication)
        )

    loss.register_hook(queue_callback)  # type: ignore[no-untyped-call]


@dataclass
class ShardCollective:
    """A collective as FSDP2 calls it: with buffers that it allocates, by names of arguments.

    With a `clock`, its calls count as communication. This is correct where a collective blocks until
    it is done, as gloo's do on the CPU. With NCCL the call only enqueues work, and its duration would
    mean nothing.
    """

    collective: Callable[..., Any]
    clock: StepClock | None

    def allocate(self, size: Sequence[int], **options: Any) -> Tensor:
        """Return a buffer for the collective."""
        return torch.empty(*size, **options)

    def __call__(self, **named: Any) -> Any:
        """Call the collective, and count its time."""
        if self.clock is None:
            return self.collective(**named)
        with self.clock.communicating():
            return self.collective(**named)


def reduce_scatter(output_tensor: Tensor, input_tensor: Tensor, **named: Any) -> Any:
    """Fill `output_tensor` with this rank's shards of the sum or mean, as FSDP2 does by default."""
    return reduce_scatter_single(output_tensor, input_tensor, **named)
