"""From axes to points: the product of `matrix` and `zip`, with exclusions and inclusions.

A point is the value of each axis that is set, flat, by its name in a sweep file. What a workload sets
itself goes before `matrix` and `zip`, and what a rule of `include` sets goes before both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_origin

from harness.core.errors import did_you_mean
from harness.core.validation import Key, Line, members_of, shown
from harness.sweep.axes import AXIS_TYPES, problem_of_variable, unknown_axis, variable_of
from harness.sweep.cell import is_setting, same_value
from harness.sweep.document import Document
from harness.sweep.sweepfile import SweepFile
from harness.sweep.workload import SweepWorkload

Values = Mapping[str, Any]  # axis -> value
Rule = Mapping[str, Sequence[Any]]  # axis -> the values it takes; `workload` -> labels
MAX_POINTS = 200_000  # of the product, those left out included; planning as many takes seconds
CONFLICT = "conflict"  # the rule of points whose axes make no sense together


@dataclass(frozen=True, kw_only=True)
class ExcludedPoint:
    """A point of the matrix that is not run, and why."""

    workload: str  # its label
    axes: Values  # of all axes
    rule: str  # `exclude[0]`, or CONFLICT
    reason: str


class Matrix:
    """The keys `matrix`, `zip`, `exclude` and `include` of a sweep, every value checked."""

    def __init__(
        self, document: Document, file: SweepFile, workloads: Sequence[SweepWorkload]
    ) -> None:
        """Read the keys.

        Raises BadInput at the key of an unknown axis, of a value that the axis does not allow, and of an
        axis that is set twice. Errors in the value of a setting name the line of the axis from now on.
        """
        # The axes with one value, which included points have too. A variable that only some points set
        # is None: whether the shell has it must not decide what the others compute.
        self.constants: dict[str, Any] = {}
        # The factors of the product: alternatives, of the same axes.
        self.columns: list[list[Values]] = []
        self.axes: dict[str, Key] = {}  # each axis that is set, and where it is set first
        groups: list[tuple[Key, Values]] = []
        for axis, values in file.matrix.items():
            groups.append((("matrix",), {axis: values}))
        for number, axes in enumerate(file.zip):
            groups.append((("zip", number), axes))
        for key, group in groups:
            for axis in group:
                if axis in self.axes:
                    problem = "found a second time; allowed: an axis in one place"
                    raise document.error((*key, axis), problem)
                self.axes[axis] = (*key, axis)
            rows = _read_group(document, key, group, workloads)
            if len(rows) == 1:
                self.constants |= rows[0]
            elif rows:
                self.columns.append(rows)
        self.exclude = _read_rules(document, "exclude", file.exclude, workloads)
        self.include = _read_rules(document, "include", file.include, workloads)
        for number, rule in enumerate(self.include):
            for axis in rule:
                self.axes.setdefault(axis, ("include", number, axis))
        count = len(workloads) * math.prod(map(len, self.columns))
        if count > MAX_POINTS:
            problem = f"found {count:,} combinations of workloads and values of axes"
            raise document.error(("matrix",), f"{problem}; allowed: at most {MAX_POINTS:,}")
        for workload in workloads:
            for axis in (*self.axes, *workload.entry.axes):
                if variable_of(axis) is not None:
                    self.constants.setdefault(axis, None)
            for axis, key in self.axes.items():
                place = (*workload.key, *axis.split(".", 1))
                document.sources.setdefault(place, document.source_of(key))

    @property
    def varying(self) -> set[str]:
        """The axes with several values."""
        return {axis for rows in self.columns for axis in rows[0]}

    def points(
        self, workload: SweepWorkload, own: Values
    ) -> Iterator[tuple[dict[str, Any], int | None]]:
        """Yield every combination for a workload, with the number of the rule that includes it, if any.

        `own` are the values that its entry sets. Included points take no setting from the sweep that
        the workload has not. The first axis varies slowest.
        """
        fixed = {"batch_size": workload.declaration.batch_size, **self.constants}
        for alternatives in product(*self.columns):
            values = dict(fixed)
            for alternative in alternatives:
                values.update(alternative)
            values.update(own)
            yield values, None
        for axis in self.constants:
            if is_setting(axis) and axis not in workload.setting_types:
                del fixed[axis]
        for number, rule in enumerate(self.include):
            axes = [axis for axis in rule if axis != "workload"]
            if workload.label in rule["workload"]:
                for row in product(*(rule[axis] for axis in axes)):
                    yield {**fixed, **own, **dict(zip(axes, row, strict=True))}, number

    def exclusion_of(self, levels: Values) -> str | None:
        """Return the first exclude rule that matches a point, as `exclude[0]`.

        A rule matches a point that has, for each axis of the rule, one of its values. `levels` are
        those of the point, its workload's label and settings included.
        """
        for number, rule in enumerate(self.exclude):
            if all(_has_one_of(levels, axis, values) for axis, values in rule.items()):
                return f"exclude[{number}]"
        return None


def _has_one_of(levels: Values, axis: str, values: Sequence[Any]) -> bool:
    """Return whether a point has an axis, with one of these values."""
    return axis in levels and any(same_value(levels[axis], value) for value in values)


def _read_group(
    document: Document, key: Key, group: Values, workloads: Sequence[SweepWorkload]
) -> list[Values]:
    """Return the alternatives of axes that vary together; raises BadInput for lists of several lengths."""
    options: dict[str, list[Any]] = {}
    for axis, values in group.items():
        options[axis] = read_values(document, (*key, axis), values, workloads)
    lengths = {axis: len(values) for axis, values in options.items()}
    if len(set(lengths.values())) > 1:
        raise document.error(key, f"found lists of lengths {lengths}; allowed: equal lengths")
    return [dict(zip(options, row, strict=True)) for row in zip(*options.values(), strict=True)]


def _read_rules(
    document: Document, name: str, rules: Sequence[Values], workloads: Sequence[SweepWorkload]
) -> list[Rule]:
    """Return the rules of `exclude` or `include`, whichever `name` is, each value a list.

    Raises BadInput for what is no workload, no axis or none of its values.
    """
    all_labels = [workload.label for workload in workloads]
    parsed: list[Rule] = []
    for number, rule in enumerate(rules):
        key = (name, number)
        labels = rule.get("workload", all_labels)
        if not isinstance(labels, list):
            labels = [labels]
        for label in labels:
            if label not in all_labels:
                problem = f"found {shown(label)}; {did_you_mean(label, all_labels)}"
                raise document.error((*key, "workload"), problem)
        chosen = [workload for workload in workloads if workload.label in labels]
        options: dict[str, Sequence[Any]] = {"workload": labels}
        for axis, values in rule.items():
            if axis != "workload":
                options[axis] = read_values(document, (*key, axis), values, chosen)
        parsed.append(options)
    return parsed


def read_values(
    document: Document, key: Key, values: Any, workloads: Sequence[SweepWorkload]
) -> list[Any]:
    """Return the checked values of the axis that ends `key`, at least one.

    `workloads` are those that the axis holds for. One value stands for a list of one. For a setting
    that is a list itself, a list without lists in it is one value. A setting's value is checked with
    all the settings of its workload. Raises BadInput, also for what is no axis.
    """
    axis = str(key[-1])
    settings: dict[str, Any] = {}
    for workload in workloads:
        settings |= workload.setting_types
    problem = _problem_of_axis(axis, settings)
    if problem is not None:
        raise document.error(key, problem)
    if not isinstance(values, list):
        return [_read_value(document, key, axis, values)]
    if not values:
        raise document.error(key, "found an empty list; allowed: at least one value")
    members = [get_origin(member) or member for member in members_of(settings.get(axis))]
    has_lists = any(isinstance(value, list) for value in values)
    if not has_lists and {tuple, list}.intersection(members):
        return [values]
    return [_read_value(document, (*key, index), axis, value) for index, value in enumerate(values)]


def _problem_of_axis(axis: str, settings: Values) -> str | None:
    """Return the problem of a name that is no axis, or of a setting that no workload has."""
    variable = variable_of(axis)
    if variable is not None:
        return problem_of_variable(variable)
    if axis in AXIS_TYPES or axis in settings:
        return None
    if is_setting(axis):
        return f"found no workload with it; {did_you_mean(axis, settings)}"
    return unknown_axis(axis, "workload")


def _read_value(document: Document, key: Key, axis: str, value: Any) -> Any:
    """Return the checked value, at `key`, of an axis; raises BadInput."""
    if variable_of(axis) is not None:
        # Whether `1.10` or `on` was written can't be told of other types any more.
        text = document.validate(Line | int | None, value, key)
        return None if text is None else str(text)
    if axis not in AXIS_TYPES:
        return value
    checked = document.validate(AXIS_TYPES[axis], value, key)
    stacks = document.content.get("stacks") or {}
    if axis == "stack" and checked is not None and checked not in stacks:
        hint = did_you_mean(checked, [*stacks, "null"])
        raise document.error(key, f"found {checked!r}; {hint}, as the key stacks declares")
    return checked
