"""The history of a sweep: a series for each cell and hardware, its changes, and what may be their cause.

A night is what one command has left: a results folder, an archive, or what one results folder has
delivered to MLflow. Of each, the trials of a cell that ran with the same code, versions and hardware are a
point. Points of different hardware are never in one series.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Literal

import numpy as np

from harness.analysis.questions import hardware_keys, throughput_difference
from harness.analysis.result import CellResult, of_trial, of_trials
from harness.core.errors import BadInput, did_you_mean
from harness.core.text import counted
from harness.records.differences import Difference, differences
from harness.records.record import Record
from harness.spec.cell import Cell
from harness.statistics.change import Change, find_changes, rank_evidence
from harness.statistics.interval import exp

Cause = Literal["code", "versions"]

NIGHTS_A_YEAR = 365
# Of the interval of a change's size: more than 95%, as its place was chosen by its size. It then holds
# about 95% of the time (`make bench-statistics`).
SIZE_CONFIDENCE = 0.99
CODE_FIELDS = ("repository.",)  # prefixes of an environment's fields; all others are versions


@dataclass(frozen=True, kw_only=True)
class Night:
    """The records that one command has left of a sweep, those of earlier code included."""

    records: Sequence[Record]
    # What the folder has besides: for each record that can't be read, which and why, and how many are
    # of cells that have left a race; a line each.
    left_out: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """What a night has measured of a cell."""

    night: int  # nights count from 0, in their order
    started: float  # seconds since the epoch
    commit: str | None  # of the user's repository
    result: CellResult
    value: float  # log of samples/s, or of their ratio to the control's

    @property
    def hardware(self) -> str:
        """Return the key of the hardware that it was measured on."""
        return " and ".join(hardware_keys(self.result))


@dataclass(frozen=True, kw_only=True)
class TrendChange:
    """A change of a series, with the points around it."""

    before: TrendPoint  # the last one that is certainly before it
    after: TrendPoint  # the first one that is certainly after it
    first: TrendPoint  # the most likely first one after it
    seen: TrendPoint  # the one with which it became certain
    is_new: bool  # whether that is of the last night
    is_control: bool  # whose code is the same every night
    change: Change

    @property
    def ratio(self) -> float:
        """Return throughput after the change over that before it."""
        return exp(self.change.estimate.value)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the interval of `ratio`."""
        low, high = self.change.estimate.interval(SIZE_CONFIDENCE)
        return exp(low), exp(high)

    @property
    def is_slower(self) -> bool:
        """Return whether throughput fell."""
        return self.change.estimate.value < 0

    @cached_property
    def causes(self) -> Sequence[Cause]:
        """Return what changed at the same time; nothing means that it is noise."""
        causes: list[Cause] = []
        has_other_commit = any(
            difference.field.startswith(CODE_FIELDS) for difference in self._differences
        )
        has_other_files = self.before.result.cell.id != self.after.result.cell.id
        if not self.is_control and (has_other_commit or has_other_files):
            causes.append("code")
        if self.version_changes:
            causes.append("versions")
        return causes

    @property
    def version_changes(self) -> Sequence[str]:
        """Return what else than code differs between both points, a line each."""
        lines = []
        for difference in self._differences:
            if not difference.field.startswith(CODE_FIELDS):
                lines.append(f"{difference.field}: {difference.a} → {difference.b}")
        return lines

    @cached_property
    def _differences(self) -> Sequence[Difference]:
        """The fields of the environment in which both points differ."""
        return differences(_environment(self.before), _environment(self.after))


def _environment(point: TrendPoint) -> dict[str, str]:
    """Return the environment of a point, several values of a field joined."""
    return {name: " and ".join(values) for name, values in point.result.environment.items()}


@dataclass(frozen=True, kw_only=True)
class TrendSeries:
    """The points of a cell on one kind of hardware, by date, with their changes."""

    cell: Cell  # as it was last
    hardware: str
    points: Sequence[TrendPoint]
    changes: Sequence[TrendChange]
    previous: TrendPoint | None  # the cell's last point before these, if that is of other hardware
    is_control: bool


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The history of a sweep."""

    name: str  # of the sweep
    series: Sequence[TrendSeries]
    nights: int
    control: str  # the workload that others are divided by; nothing without one
    min_effect: float
    threshold: float  # of the evidence of a change, in nights without one
    notes: Sequence[str] = ()  # what was left out, a line each

    @property
    def new_changes(self) -> Sequence[tuple[TrendSeries, TrendChange]]:
        """Return the changes that became certain with the last night, each with its series."""
        new = []
        for series in self.series:
            for change in series.changes:
                if change.is_new:
                    new.append((series, change))
        return new

    @property
    def new_slowdowns(self) -> Sequence[tuple[TrendSeries, TrendChange]]:
        """Return those of the new changes that made a cell slower and have a cause.

        The control computes the same every night, so that what changes there is the machine.
        """
        slowdowns = []
        for series, change in self.new_changes:
            if change.is_slower and change.causes and not series.is_control:
                slowdowns.append((series, change))
        return slowdowns

    @property
    def exit_code(self) -> int:
        """Return 1 for a new slowdown with a cause, 0 otherwise."""
        return 1 if self.new_slowdowns else 0

    @cached_property
    def nights_needed(self) -> int:
        """Return about how many nights it takes to see any change, however large it is."""
        count = 4
        while rank_evidence(np.arange(count, dtype=float))[count // 2 - 1] / 2 < self.threshold:
            count += 1
        return count


def make_trend(
    name: str,
    nights: Sequence[Sequence[Record]],
    *,
    control: str = "",
    min_effect: float = 0.01,
    notes: Iterable[str] = (),
) -> Trend:
    """Return the history of the sweep `name` from the records of its nights.

    A trial that several of them hold counts once. With a `control`, the label of a workload, the
    throughput of each other cell is divided by that of the control's cell with the same axes, or by that
    of its only cell. Raises BadInput if no trial was measured, or for a control that can't be one.
    """
    points, last_night, left_out = _points(nights)
    if not points:
        raise BadInput(f"{name}: found no measured trial; allowed: a sweep that has run")
    control_points: list[TrendPoint] = []
    if control:
        points, control_points, unpaired = _divide(points, control)
        left_out += unpaired
    # Each value is a look at a series, of which a night has one for each cell and control.
    points_by_night = Counter(point.night for point in (*points, *control_points))
    threshold = NIGHTS_A_YEAR * fmean(points_by_night.values())
    series = _series(points, threshold, min_effect, last_night, is_control=False)
    series += _series(control_points, threshold, min_effect, last_night, is_control=True)
    return Trend(
        name=name,
        series=series,
        nights=len(points_by_night),
        control=control,
        min_effect=min_effect,
        threshold=threshold,
        notes=[*notes, *left_out],
    )


def _points(nights: Sequence[Sequence[Record]]) -> tuple[list[TrendPoint], int, list[str]]:
    """Return all points by date, the last night, and what was left out, a line for each reason.

    The last night counts even if it measured nothing: what was new the night before is not new again.
    """
    # By the newest record of each, because a results folder may also hold records of earlier nights.
    started = [max((record.started for record in night), default=-math.inf) for night in nights]
    points: list[TrendPoint] = []
    known: set[tuple[str, float]] = set()
    unmeasured = last_night = 0
    for night, index in enumerate(sorted(range(len(nights)), key=started.__getitem__)):
        groups: dict[tuple[str, ...], list[Record]] = {}
        for record in nights[index]:
            identity = (record.trial.id, record.started)
            if identity in known:
                continue
            known.add(identity)
            last_night = night
            if record.status == "done" and record.summary and record.summary.throughput:
                groups.setdefault(_group(record), []).append(record)
            else:
                unmeasured += 1
        points += [_point(night, records) for records in groups.values()]
    left_out = []
    if unmeasured:
        left_out.append(f"left out {counted(unmeasured, 'trial')} without a measured throughput")
    return sorted(points, key=lambda point: point.started), last_night, left_out


def _group(record: Record) -> tuple[str, ...]:
    """Return what the trials of a point share: the cell with its code, versions and hardware."""
    result = of_trial(record)
    conditions = [" and ".join(values) for values in result.conditions.values()]
    return (record.trial.cell.id, _commit(record) or "", *conditions)


def _commit(record: Record) -> str | None:
    """Return the commit of the user's repository, None where it is not known."""
    if record.environment is None or record.environment.repository is None:
        return None
    return record.environment.repository.commit


def _point(night: int, records: Sequence[Record]) -> TrendPoint:
    """Return the point of trials of one cell, of which each was measured."""
    result = of_trials(records)
    assert result.throughput is not None
    return TrendPoint(
        night=night,
        started=min(record.started for record in records),
        commit=_commit(records[0]),
        result=result,
        value=math.log(result.throughput.mean),
    )


def _divide(
    points: Sequence[TrendPoint], control: str
) -> tuple[list[TrendPoint], list[TrendPoint], list[str]]:
    """Return the points divided by the control's of their night, the control's, and what is left out.

    Raises BadInput if no workload has the label `control`, or if it is the only one.
    """
    labels = {point.result.cell.workload.label for point in points}
    if control not in labels or len(labels) == 1:
        hint = did_you_mean(control, labels)
        raise BadInput(f"--control {control}: found no such workload next to others; {hint}")
    controls: dict[tuple[int, str], list[TrendPoint]] = {}
    for point in points:
        if point.result.cell.workload.label == control:
            controls.setdefault((point.night, point.hardware), []).append(point)
    divided = []
    without = 0
    for point in points:
        if point.result.cell.workload.label == control:
            continue
        match = _control_of(point, controls.get((point.night, point.hardware), ()))
        difference = None
        if match is not None:  # and if both are measured in one unit
            difference = throughput_difference(match.result, point.result, 0.0, {})
        if difference is None:
            without += 1
            continue
        divided.append(replace(point, value=difference.question.estimate.value))
    left_out = []
    if without:
        left_out.append(f"left out {counted(without, 'point')} without a control of the same night")
    return divided, [point for points in controls.values() for point in points], left_out


def _control_of(point: TrendPoint, controls: Sequence[TrendPoint]) -> TrendPoint | None:
    """Return the control's point with the same axes, or its only one; None for neither.

    A workload may lack an axis that the other has. If no control has all the same axes, the axes that
    both have must be equal, and only one cell of the control may have these.
    """
    levels = point.result.cell.levels
    for control in controls:
        if control.result.cell.levels == levels:
            return control
    matching = []
    for control in controls:
        control_levels = control.result.cell.levels
        shared = levels.keys() & control_levels.keys()
        if all(control_levels[axis] == levels[axis] for axis in shared):
            matching.append(control)
    candidates = matching or controls
    cells = {control.result.cell.settings_id for control in candidates}
    return candidates[0] if len(cells) == 1 else None


def _series(
    points: Sequence[TrendPoint],
    threshold: float,
    min_effect: float,
    last_night: int,
    *,
    is_control: bool,
) -> list[TrendSeries]:
    """Return a series for each cell and hardware, with its changes, as `find_changes` takes them."""
    by_cell: dict[str, dict[str, list[TrendPoint]]] = {}
    for point in points:
        by_hardware = by_cell.setdefault(point.result.cell.settings_id, {})
        by_hardware.setdefault(point.hardware, []).append(point)
    series = []
    for by_hardware in by_cell.values():
        of_cell = [point for members in by_hardware.values() for point in members]
        for hardware, members in by_hardware.items():
            earlier = [point for point in of_cell if point.started < members[0].started]
            found = find_changes(
                [point.value for point in members], threshold, -math.log1p(-min_effect)
            )
            changes = []
            for change in found:
                changes.append(_trend_change(change, members, last_night, is_control=is_control))
            series.append(
                TrendSeries(
                    cell=members[-1].result.cell,
                    hardware=hardware,
                    points=members,
                    changes=changes,
                    previous=max(earlier, key=lambda point: point.started, default=None),
                    is_control=is_control,
                )
            )
    return series


def _trend_change(
    change: Change, points: Sequence[TrendPoint], last_night: int, *, is_control: bool
) -> TrendChange:
    """Return a change of a series with its points."""
    seen = points[change.seen]
    return TrendChange(
        before=points[change.earliest - 1],
        after=points[change.latest],
        first=points[change.start],
        seen=seen,
        is_new=seen.night == last_night,
        is_control=is_control,
        change=change,
    )
