"""From axes to points: the product of `matrix` and `zip`, with exclusions and inclusions.

A point is the value of each axis that is set, flat, by its name in a sweep file. It takes it from the
last of these that sets it: an axis of `matrix` with one value, the workload, then the axes with
several values and the zips (or, for an included point, its rule).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin

from harness.core.errors import did_you_mean
from harness.core.validation import Key, members_of, shown
from harness.sweep.axes import AXIS_TYPES
from harness.sweep.cell import same_value, setting_of
from harness.sweep.document import Document
from harness.sweep.environment import VariableValue, axis_hint, problem_of_variable, variable_of
from harness.sweep.sweepfile import SweepFile

Values = Mapping[str, Any]  # axis -> value
Rule = Mapping[str, Sequence[Any]]  # axis -> the values it takes; `workload` -> labels
Types = Mapping[str, Values]  # label of a workload -> axis of each of its settings -> its type
Point = tuple[dict[str, Any], int | None]  # with the number of the rule that includes it, if any
MAX_POINTS = 200_000  # of a sweep, those that are left out included; planning as many takes seconds
CONFLICT = "conflict"  # the rule of points whose axes make no sense together


@dataclass(frozen=True, kw_only=True)
class ExcludedPoint:
    """A point of the matrix that is not run, and why."""

    workload: str  # its label
    axes: Values  # of all axes
    rule: str  # `exclude[0]`, or CONFLICT
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The axes part of a sweep, every value checked."""

    # The axes with one value, which included points have too. A variable that only some points set is
    # None: whether the shell has it must not decide what the others compute.
    constants: Values
    columns: Sequence[
        Sequence[Values]
    ]  # the factors of the product: alternatives, of the same axes
    exclude: Sequence[Rule]
    include: Sequence[Rule]
    sources: Mapping[str, str]  # of each axis, the line or the flag that sets it first

    @property
    def varying(self) -> set[str]:
        """The axes with several values."""
        return {axis for column in self.columns for axis in column[0]}

    def points(self, label: str, own: Values, types: Values) -> Iterator[Point]:
        """Yield every combination for a workload.

        `own` are the axes and settings that the workload sets, and `types` has those that it has, of
        which included points take no others from the sweep. The first axis varies slowest.
        """
        fixed = {**self.constants, **own}
        for values in _product(fixed, self.columns):
            yield values, None
        for axis in self.constants:
            if setting_of(axis) is not None and axis not in types:
                del fixed[axis]
        for number, rule in enumerate(self.include):
            if label in rule["workload"]:
                for values in _product(fixed, _columns_of(rule)):
                    yield values, number

    def exclusion_of(self, levels: Values) -> str | None:
        """Return the first exclude rule that matches a point, as `exclude[0]`.

        A rule matches a point that has, for each axis of the rule, one of its values. `levels` are
        those of the point, its workload's label and settings included.
        """
        for number, rule in enumerate(self.exclude):
            if all(_has_one_of(levels, axis, values) for axis, values in rule.items()):
                return f"exclude[{number}]"
        return None

    def unused_rules(self, excluded: Sequence[ExcludedPoint]) -> list[str]:
        """Return the exclude rules that have matched no point."""
        used = {point.rule for point in excluded}
        rules = [f"exclude[{number}]" for number in range(len(self.exclude))]
        return [rule for rule in rules if rule not in used]


def _has_one_of(levels: Values, axis: str, values: Sequence[Any]) -> bool:
    """Return whether a point has an axis, with one of these values."""
    return axis in levels and any(same_value(levels[axis], value) for value in values)


def _product(fixed: Values, columns: Sequence[Sequence[Values]]) -> Iterator[dict[str, Any]]:
    """Yield every combination of the alternatives of all columns, over what is fixed."""
    for alternatives in itertools.product(*columns):
        values = dict(fixed)
        for alternative in alternatives:
            values.update(alternative)
        yield values


def _columns_of(rule: Rule) -> list[list[Values]]:
    """Return a factor of the product for each axis of a rule."""
    axes = {axis: values for axis, values in rule.items() if axis != "workload"}
    return [[{axis: value} for value in values] for axis, values in axes.items()]


def read_matrix(document: Document, file: SweepFile, workloads: Types) -> Matrix:
    """Return the `matrix`, `zip`, `exclude` and `include` keys of a sweep.

    `workloads` are the types of the settings of each of its workloads, by label. Raises BadInput at
    the key of an unknown axis, of a value that the axis does not allow, and of an axis that is set
    twice.
    """
    sources: dict[str, str] = {}
    groups = []
    for axis, values in file.matrix.items():
        groups.append(_read_group(document, ("matrix",), {axis: values}, workloads, sources))
    for number, axes in enumerate(file.zip):
        groups.append(_read_group(document, ("zip", number), axes, workloads, sources))
    exclude = _read_rules(document, "exclude", file.exclude, workloads)
    include = _read_rules(document, "include", file.include, workloads)
    for number, rule in enumerate(file.include):
        for axis in rule:
            sources.setdefault(axis, document.source_of(("include", number, axis)))
    columns = [rows for rows in groups if len(rows) > 1]
    count = len(workloads) * math.prod(map(len, columns))
    count += sum(math.prod(map(len, rule.values())) for rule in include)
    if count > MAX_POINTS:
        problem = f"found {count:,} combinations of workloads and values of axes; allowed: at most {MAX_POINTS:,}"
        raise document.error(("matrix",), problem)
    own_axes = itertools.chain.from_iterable(entry.axes for entry in file.workloads.values())
    names = [axis for axis in (*sources, *own_axes) if variable_of(axis) is not None]
    constants: dict[str, Any] = dict.fromkeys(names)
    for rows in groups:
        if len(rows) == 1:
            constants.update(rows[0])
    return Matrix(
        constants=constants, columns=columns, exclude=exclude, include=include, sources=sources
    )


def _read_group(
    document: Document, key: Key, group: Values, workloads: Types, sources: dict[str, str]
) -> list[Values]:
    """Return the alternatives of axes that vary together, and note in `sources` where each is set.

    Raises BadInput for lists of several lengths, and for an axis that is set already.
    """
    options: dict[str, list[Any]] = {}
    for axis, values in group.items():
        options[axis] = read_values(document, (*key, axis), values, workloads)
        if axis in sources:
            problem = "found a second time; allowed: an axis in one place"
            raise document.error((*key, axis), problem)
        sources[axis] = document.source_of((*key, axis))
    lengths = {axis: len(values) for axis, values in options.items()}
    if len(set(lengths.values())) > 1:
        raise document.error(key, f"found lists of lengths {lengths}; allowed: equal lengths")
    return [dict(zip(options, row, strict=True)) for row in zip(*options.values(), strict=True)]


def _read_rules(
    document: Document, name: str, rules: Sequence[Values], workloads: Types
) -> list[Rule]:
    """Return the rules of `exclude` or `include`, whichever `name` is, each value a list.

    Raises BadInput, also for an empty rule, which would match every point.
    """
    parsed: list[Rule] = []
    for number, rule in enumerate(rules):
        key = (name, number)
        if not rule:
            hint = did_you_mean("", ["workload", *AXIS_TYPES])
            raise document.error(key, f"found an empty rule; {hint}")
        labels = rule.get("workload", list(workloads))
        labels = labels if isinstance(labels, list) and labels else [labels]
        for label in labels:
            if not isinstance(label, str) or label not in workloads:
                problem = f"found {shown(label)}; {did_you_mean(label, workloads)}"
                raise document.error((*key, "workload"), problem)
        types = {label: workloads[label] for label in labels}
        options: dict[str, Sequence[Any]] = {"workload": labels}
        for axis, values in rule.items():
            if axis != "workload":
                options[axis] = read_values(document, (*key, axis), values, types)
        parsed.append(options)
    return parsed


def read_values(document: Document, key: Key, values: Any, workloads: Types) -> list[Any]:
    """Return the checked values of the axis that ends `key`, at least one.

    `workloads` are those that the axis holds for. One value stands for a list of one. For a setting
    that is a list itself, a list without lists in it is one value. A setting's value is checked with
    all the settings of its workload. Raises BadInput, also for what is no axis.
    """
    axis = str(key[-1])
    types = [settings[axis] for settings in workloads.values() if axis in settings]
    problem = _problem_of_axis(axis, workloads)
    if problem is not None:
        raise document.error(key, problem)
    if not isinstance(values, list):
        return [_read_value(document, key, axis, values)]
    if not values:
        raise document.error(key, "found an empty list; allowed: at least one value")
    has_lists = any(isinstance(value, list) for value in values)
    if any(map(_is_list, types)) and not has_lists:
        return [values]
    return [_read_value(document, (*key, index), axis, value) for index, value in enumerate(values)]


def _problem_of_axis(axis: str, workloads: Types) -> str | None:
    """Return the problem of a name that is no axis, or of a setting that no workload has."""
    variable = variable_of(axis)
    if variable is not None:
        return problem_of_variable(variable)
    settings = set(itertools.chain(*workloads.values()))
    if axis in AXIS_TYPES or axis in settings:
        return None
    if setting_of(axis) is None:
        hint = did_you_mean(axis, [*AXIS_TYPES, axis_hint(axis), "workload"])
        return f"unknown axis; {hint}"
    return f"found no workload with it among {', '.join(workloads)}; {did_you_mean(axis, settings)}"


def _read_value(document: Document, key: Key, axis: str, value: Any) -> Any:
    """Return the checked value, at `key`, of an axis; raises BadInput."""
    if variable_of(axis) is not None:
        text = document.validate(VariableValue, value, key)
        return None if text is None else str(text)
    if axis not in AXIS_TYPES:
        return value
    checked = document.validate(AXIS_TYPES[axis], value, key)
    stacks = document.content.get("stacks") or {}
    if axis == "stack" and checked is not None and checked not in stacks:
        hint = did_you_mean(checked, [*stacks, "null"])
        raise document.error(key, f"found {checked!r}; {hint}, as the key stacks declares")
    return checked


def _is_list(kind: Any) -> bool:
    """Return whether values of a type are lists, possibly optional ones."""
    return any((get_origin(member) or member) in (tuple, list) for member in members_of(kind))
