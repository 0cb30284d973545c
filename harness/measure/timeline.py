"""Divides the time of training steps among operators, collectives, kernels and waits.

The source is a trace of torch.profiler. Every moment of the steps belongs to exactly one part: on a
CPU to the innermost event of the thread that trains, on a GPU to the kernel that runs. A moment
without any belongs to the phase of the step, or to a wait. So the parts add up to the steps.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.measure.clock import Phase, SegmentTimes
from harness.measure.collectives import OPERATIONS
from harness.measure.step_parts import (
    COMPILED,
    COPIES,
    DATA_WAIT,
    DEVICE_IDLE,
    SYNCHRONIZATION,
    TO_DEVICE,
    Kind,
)

Numbers = NDArray[np.float64]
MARK = "harness: segment"  # a range of the trace that begins just before the segment
LOADER = "enumerate(DataLoader)"  # what torch's DataLoader calls the fetching of a batch
# An operator or an event of a collective, or a kernel of NCCL such as `ncclDevKernel_AllReduce_Sum_f32`.
COLLECTIVE = re.compile(
    r"(?:c10d::|_c10d_functional::|gloo:|nccl:|ncclDevKernel_)(_?[A-Za-z_]+?)"
    r"(?:_(?:Sum|Avg|RING|TREE|\d).*|\(.*)?$"
)
CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
HOST_EVENTS = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")  # categories of a trace
DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
SHAPES_KEPT = 6  # of a part, those of most calls
MICROSECOND = 1e-6
ROUNDING = 1e-9  # seconds; a trace rounds to nanoseconds
NOBODY = -1  # the owner of a moment without an event
KEPT_NAMES = 4096  # of events, of which a turn has thousands and a model some hundred names


@dataclass(frozen=True)
class PartGroup:
    """Events that are one part together, however many there are of each."""

    name: str
    members: re.Pattern[str]
    counted: re.Pattern[str]  # those of the members that are counted as calls


# What takes several events each time. All others are parts by their own names.
AUTOGRAD = "autograd"
GROUPS = (
    PartGroup(
        COMPILED,
        re.compile(
            r"Torch-Compiled Region|TorchDynamo|Pregraph bytecode|CompiledFunction|AOTDispatcher"
            r"|## Call CompiledFxGraph|Call CompiledFxGraph|Inductor|triton_|cpp_fused"
        ),
        re.compile(r"Torch-Compiled Region"),
    ),
    PartGroup(
        SYNCHRONIZATION,
        re.compile(
            r"aten::(item|_local_scalar_dense|is_nonzero|equal)$|cuda\w*Synchronize|cudaEventQuery"
        ),
        re.compile(r"aten::(_local_scalar_dense|equal)$|cuda\w*Synchronize"),
    ),
    PartGroup(
        COPIES,
        re.compile(r"aten::(copy_|clone|contiguous|to|_to_copy)$|Memcpy|cudaMemcpy"),
        re.compile(r"aten::copy_$|Memcpy"),
    ),
    # What autograd itself takes, around the operators of backward.
    PartGroup(
        AUTOGRAD,
        re.compile(r"autograd::engine|torch::autograd::AccumulateGrad|\w+Backward\d*$"),
        re.compile(r"\w+Backward\d*$"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """Something that steps spent their time on."""

    name: str
    kind: Kind
    seconds: Sequence[float]  # of each step; without those that the collective was waited for
    calls: int = 0  # in all steps together
    shapes: Mapping[str, int] = field(default_factory=dict)  # of its tensors -> calls
    waited: Sequence[float] = ()  # seconds of each step that its end was waited for
    first_step: int = 0  # of a turn's profiled steps, the first that these are of


@dataclass(frozen=True)
class HostEvent:
    """An event of the thread that trains."""

    name: str
    start: float  # in seconds, as all times here
    end: float
    is_annotation: bool  # a range that torch or the user has named, such as an optimizer's step
    is_fetching: bool  # part of a DataLoader's work
    shapes: str

    @property
    def is_frame(self) -> bool:
        """Whether it is no operator, but what is around operators."""
        return self.is_annotation or part_name(self.name) in (AUTOGRAD, COMPILED)


def divide(
    trace: Mapping[str, Any], times: SegmentTimes, marked_at: float, *, with_phases: bool
) -> list[StepPart]:
    """Return the parts of a segment's steps.

    `trace` is a Chrome trace of torch.profiler, whose range `MARK` began at `marked_at` by
    `time.perf_counter`. Without phases, as of scripts, only a DataLoader's own events are waits
    for data.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    mark = next(event for event in events if event["name"] == MARK)
    offset = mark["ts"] * MICROSECOND + times.began - marked_at
    # Where the last step ends, to the bit: `sum` adds up in another order.
    length = float(times.steps.cumsum()[-1])
    kernels = []  # start, end and name of what ran on a device, within the segment
    for event in events:
        if event.get("cat") in DEVICE_EVENTS:
            start = event["ts"] * MICROSECOND - offset
            end = min(start + event["dur"] * MICROSECOND, length)
            if 0 <= start < end:
                kernels.append((start, end, str(event["name"])))
    if kernels:
        return _divide_device(kernels, events, times.steps)
    return _HostDivision(events, mark["tid"], offset, times, with_phases=with_phases).parts()


@lru_cache(KEPT_NAMES)
def part_name(event: str) -> str:
    """Return the part that an event belongs to: that of its group, or its own name."""
    for group in GROUPS:
        if group.members.search(event):
            return group.name
    collective = COLLECTIVE.match(event)
    if collective is not None:
        operation = collective[1]
        return OPERATIONS.get(operation, CAMEL_CASE.sub("_", operation.strip("_")).lower())
    return event


@lru_cache(KEPT_NAMES)
def _counts(event: str) -> bool:
    """Return whether an event is a call of its part."""
    for group in GROUPS:
        if group.members.search(event):
            return bool(group.counted.search(event))
    return not event.startswith("_c10d_functional")  # it calls c10d's


@lru_cache(KEPT_NAMES)
def _kind(event: str) -> Kind:
    """Return the kind of the part that an event of the host belongs to."""
    if part_name(event) == SYNCHRONIZATION:
        return "wait"
    return "collective" if COLLECTIVE.match(event) else "operator"


def _shape_texts(inputs: Sequence[Any]) -> list[str]:
    """Return the shapes of an operator's inputs, of which some may be lists of tensors.

    Collectives take such lists. What is no tensor has the shape `[]`, like a scalar.
    """
    texts = []
    for dimensions in inputs:
        if dimensions and all(isinstance(size, int) for size in dimensions):
            texts.append("×".join(map(str, dimensions)))
        else:
            texts += _shape_texts(dimensions)
    return texts


class _HostDivision:
    """Divides the time of the thread that trains."""

    def __init__(
        self,
        events: Sequence[Mapping[str, Any]],
        thread: Any,
        offset: float,
        times: SegmentTimes,
        *,
        with_phases: bool,
    ) -> None:
        """Take the events that began in the segment; `offset` is when it began, in the trace."""
        self.length = float(times.steps.sum())
        self.ends_of_steps = np.cumsum(times.steps)
        self.phase_ends = np.cumsum(times.durations)
        self.phases = times.order
        self.with_phases = with_phases
        self.events: list[HostEvent] = []
        self.owners: list[tuple[float, int]] = []  # since when which event is the innermost
        self.collective_ends: list[float] = []  # which their own threads report
        mine = []
        for event in events:
            if event.get("cat") not in HOST_EVENTS or event["name"] == MARK:
                continue
            start = event["ts"] * MICROSECOND - offset
            end = start + event["dur"] * MICROSECOND
            if event["tid"] == thread and 0 <= start < self.length:
                mine.append((start, -end, event))
            elif event["name"].startswith("gloo:") and 0 <= end < self.length:
                self.collective_ends.append(end)
        self._nest(sorted(mine, key=lambda entry: entry[:2]))

    def _nest(self, entries: Sequence[tuple[float, float, Mapping[str, Any]]]) -> None:
        """Find out which event is the innermost at every moment."""
        self.owners.append((0.0, NOBODY))
        around: list[int] = []
        for start, negative_end, event in entries:
            self._leave(around, start)
            name = event["name"]
            end = -negative_end
            if around:
                end = min(end, self.events[around[-1]].end)
            fetches = name.startswith(LOADER)
            inputs = event.get("args", {}).get("Input Dims", ())
            self.events.append(
                HostEvent(
                    name=name,
                    start=start,
                    end=end,
                    is_annotation=event["cat"] == "user_annotation",
                    is_fetching=fetches or (bool(around) and self.events[around[-1]].is_fetching),
                    shapes=", ".join(_shape_texts(inputs)),  # as in `64×256, 256×10`
                )
            )
            around.append(len(self.events) - 1)
            self.owners.append((start, around[-1]))
        self._leave(around, self.length)

    def _leave(self, around: list[int], moment: float) -> None:
        """Take the events that are over at `moment` off the stack `around`."""
        while around and self.events[around[-1]].end <= moment + ROUNDING:
            end = self.events[around.pop()].end
            self.owners.append((end, around[-1] if around else NOBODY))

    def parts(self) -> list[StepPart]:
        """Return what each moment between two changes of owner, phase or step belongs to."""
        starts = np.asarray([start for start, _ in self.owners])
        calls, collectives = self._calls()
        flights = self._flights(collectives)
        cuts = np.unique(
            np.concatenate([starts, self.phase_ends, self.ends_of_steps, flights[0], [0.0]])
        )
        cuts = cuts[(cuts >= 0) & (cuts <= self.length)]
        cuts = np.append(cuts, self.length) if cuts[-1] < self.length else cuts
        durations, middles = np.diff(cuts), (cuts[:-1] + cuts[1:]) / 2
        owners = [self.owners[index][1] for index in _last_before(starts, middles)]
        last = len(self.phases) - 1
        phases = self.phases[np.minimum(np.searchsorted(self.phase_ends, middles), last)].tolist()
        in_flight = flights[1][_last_before(flights[0], middles)].tolist()
        steps = np.searchsorted(self.ends_of_steps, middles).tolist()
        newest = _last_before(np.asarray([start for start, _ in collectives] or [0.0]), middles)
        last_step = len(self.ends_of_steps) - 1
        seconds: dict[tuple[str, Kind], Numbers] = {}
        waited: dict[str, Numbers] = {}
        for number, duration in enumerate(durations.tolist()):
            event = self.events[owners[number]] if owners[number] != NOBODY else None
            phase = Phase(phases[number])
            waits = in_flight[number] > 0 or (self.with_phases and phase is Phase.communication)
            if waits and collectives and (event is None or event.is_frame):
                name = collectives[newest[number]][1]
                of_steps = waited.setdefault(name, np.zeros(last_step + 1))
            else:
                part = self._part_at(event, phase)
                of_steps = seconds.setdefault(part, np.zeros(last_step + 1))
            of_steps[min(steps[number], last_step)] += duration
        return _assembled(seconds, calls, waited)

    def _part_at(self, event: HostEvent | None, phase: Phase) -> tuple[str, Kind]:
        """Return the part of a moment in which no collective is waited for."""
        if event is not None and event.is_fetching:
            return DATA_WAIT, "wait"
        if self.with_phases and phase is Phase.data_wait:
            return DATA_WAIT, "wait"
        if self.with_phases and phase is Phase.host_to_device:
            return TO_DEVICE, "operator"
        if event is not None and not event.is_annotation:
            return part_name(event.name), _kind(event.name)
        where = f"in {phase.name}" if self.with_phases else "of the script"
        return f"Python {where}", "host"

    def _calls(self) -> tuple[dict[str, Counter[str]], list[tuple[float, str]]]:
        """Return the shapes of each part's calls, and when which collective was begun."""
        calls: dict[str, Counter[str]] = defaultdict(Counter)
        collectives: list[tuple[float, str]] = []
        for event in self.events:
            index = int(np.searchsorted(self.phase_ends, event.start, side="right"))
            phase = Phase(int(self.phases[min(index, len(self.phases) - 1)]))
            if self._part_at(event, phase)[0] in (DATA_WAIT, TO_DEVICE):
                continue
            name = part_name(event.name)
            if _counts(event.name):
                calls[name][event.shapes] += 1
            if event.name.startswith("c10d::"):
                collectives.append((event.start, name))
        return calls, collectives

    def _flights(self, collectives: Sequence[tuple[float, str]]) -> tuple[Numbers, Numbers]:
        """Return from when how many collectives are begun and not over, both (changes,)."""
        if not collectives:
            return np.zeros(1), np.zeros(1)
        first = collectives[0][0]
        changes = [(start, 1) for start, _ in collectives]
        changes += [(end, -1) for end in self.collective_ends if end > first]
        changes.sort()
        moments = np.asarray([0.0, *(moment for moment, _ in changes)])
        counts = np.cumsum([0, *(change for _, change in changes)]).astype(np.float64)
        return moments, counts


def _last_before(moments: Numbers, at: Numbers) -> list[int]:
    """Return the index of the last of the ascending `moments` that is not after each of `at`."""
    indices: list[int] = np.maximum(np.searchsorted(moments, at, side="right") - 1, 0).tolist()
    return indices


def _assembled(
    seconds: Mapping[tuple[str, Kind], Numbers],
    calls: Mapping[str, Counter[str]],
    waited: Mapping[str, Numbers],
) -> list[StepPart]:
    """Return the parts with their calls and shapes."""
    by_name: dict[str, Numbers] = {}
    kinds: dict[str, Kind] = {}
    for (name, kind), of_steps in seconds.items():
        by_name[name] = by_name.get(name, 0.0) + of_steps
        kinds[name] = kind
    kinds.update(dict.fromkeys(waited, "collective"))
    parts = []
    for name, kind in kinds.items():
        of_part = calls.get(name, Counter())
        parts.append(
            StepPart(
                name=name,
                kind=kind,
                seconds=by_name[name].tolist() if name in by_name else (),
                calls=sum(of_part.values()),
                shapes=dict(of_part.most_common(SHAPES_KEPT)),
                waited=waited[name].tolist() if name in waited else (),
            )
        )
    return parts


# A GPU


def _device_part(event: str) -> str:
    """Return the part that a device's event belongs to.

    A kernel that Inductor has made is a part by its own name: how many there are says nothing of how
    many regions were compiled.
    """
    name = part_name(event)
    return event if name == COMPILED else name


def _divide_device(
    kernels: Sequence[tuple[float, float, str]],
    events: Sequence[Mapping[str, Any]],
    step_seconds: Numbers,
) -> list[StepPart]:
    """Return the parts of the device's time: kernels, collectives that nothing hides, idleness.

    Where several run at once, the one that computes counts rather than a collective.
    """
    ends_of_steps = np.cumsum(step_seconds)
    moments = [moment for start, end, _ in kernels for moment in (start, end)]
    cuts = np.unique(np.concatenate([[0.0], moments, ends_of_steps]))
    owners = np.full(len(cuts) - 1, NOBODY)
    # Collectives first, so that what computes overwrites them.
    for index in sorted(range(len(kernels)), key=lambda i: not COLLECTIVE.match(kernels[i][2])):
        start, end, _ = kernels[index]
        owners[np.searchsorted(cuts, start) : np.searchsorted(cuts, end)] = index
    steps = np.searchsorted(ends_of_steps, (cuts[:-1] + cuts[1:]) / 2)
    seconds: dict[tuple[str, Kind], Numbers] = {}
    for owner, step, duration in zip(
        owners.tolist(), steps.tolist(), np.diff(cuts).tolist(), strict=True
    ):
        part: tuple[str, Kind] = (DEVICE_IDLE, "wait")
        if owner != NOBODY:
            name = kernels[owner][2]
            part = (_device_part(name), "collective" if COLLECTIVE.match(name) else "kernel")
        seconds.setdefault(part, np.zeros(len(step_seconds)))[step] += duration
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    for _, _, name in kernels:
        calls[_device_part(name)][""] += 1
    for event in events:  # after which the device has nothing to do
        is_wait = part_name(event["name"]) == SYNCHRONIZATION and _counts(event["name"])
        if event.get("cat") == "cuda_runtime" and is_wait:
            calls[DEVICE_IDLE][""] += 1
    return _assembled(seconds, calls, {})
