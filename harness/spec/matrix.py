"""From axes to points: the product of `matrix` and `zip`, with exclusions and inclusions.

A point is the value of each axis that is set, flat, by its name in a sweep file. It takes it from the
last of these that sets it: an axis of `matrix` with one value, the workload, then the axes with
several values and the zips (or, for an included point, its rule).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from harness.core.errors import did_you_mean
from harness.core.validation import UNIONS, Key, shown
from harness.spec.axes import AXIS_TYPES
from harness.spec.cell import same_value, setting_of
from harness.spec.document import Document
from harness.spec.environment import (
    axis_hint,
    problem_of_variable,
    variable_of,
    variable_value,
)
from harness.spec.sweepfile import SweepFile

Values = Mapping[str, Any]  # axis -> value
Options = Mapping[str, Sequence[Any]]  # axis -> the values it takes
SettingTypes = Mapping[str, Any]  # axis of a workload's setting -> its type
MAX_POINTS = 200_000  # of a sweep, those that are left out included; planning as many takes seconds
CONFLICT = "conflict"  # the rule of points whose axes make no sense together


class Point(NamedTuple):
    """One combination of a matrix for one workload."""

    values: dict[str, Any]  # of the axes that the sweep or the workload sets
    included_by: int | None = None  # the number of its rule of `include`


class Product(NamedTuple):
    """The product of a sweep, or of a rule of `include`."""

    labels: Sequence[str]  # of the workloads that have it
    columns: Sequence[Sequence[Values]]  # its factors: alternatives, of the same axes
    included_by: int | None = None


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

    constants: Values  # the axes with one value, which included points have too
    products: Sequence[Product]  # the sweep's own, then those that are included
    exclude: Sequence[Options]  # in which `workload` has labels
    sources: Mapping[str, str]  # of each axis, the line or the flag that sets it first
    # Variables that any axis of the sweep sets. Where a point sets none of them, it is unset: whether
    # the shell has it must not decide what one of the sweep's cells computes.
    unset: Values
    unused: set[int] = field(default_factory=set)  # exclude rules that have matched nothing so far

    @property
    def varying(self) -> set[str]:
        """The axes with several values."""
        return {axis for column in self.products[0].columns for axis in column[0]}

    def points(self, label: str, own: Values, setting_names: Collection[str]) -> Iterator[Point]:
        """Yield every combination for a workload, those that an exclude rule matches too.

        `own` are the axes that the workload sets, and `setting_names` those of its settings, of which
        included points take no others from the sweep. The first axis of a product varies slowest.
        """
        fixed = {**self.unset, **self.constants, **own}
        for _, columns, included_by in [each for each in self.products if label in each.labels]:
            for alternatives in itertools.product(*columns):
                values = dict(fixed)
                for alternative in alternatives:
                    values.update(alternative)
                yield Point(values, included_by)
            for axis in list(fixed):
                if setting_of(axis) is not None and axis not in setting_names:
                    del fixed[axis]

    def matching_exclusion(self, levels: Values) -> str | None:
        """Return the first exclude rule that matches a point, and note that it is used.

        A rule matches a point that has, for each axis of the rule, one of its values. `levels` are
        those of the point, its workload's label and settings included; a variable that is none of
        them is unset.
        """
        for number, rule in enumerate(self.exclude):
            for axis, values in rule.items():
                if axis not in levels and variable_of(axis) is None:
                    break
                if not any(same_value(levels.get(axis), value) for value in values):
                    break
            else:
                self.unused.discard(number)
                return f"exclude[{number}]"
        return None


def _columns_of(rule: Options) -> list[list[Values]]:
    """Return a factor of the product for each axis of a rule."""
    axes = {axis: values for axis, values in rule.items() if axis != "workload"}
    return [[{axis: value} for value in values] for axis, values in axes.items()]


def read_matrix(
    document: Document, file: SweepFile, workloads: Mapping[str, SettingTypes]
) -> Matrix:
    """Return the `matrix`, `zip`, `exclude` and `include` keys of a sweep.

    `workloads` are the types of the settings of each of its workloads, by label. Raises BadInput at
    the key of an unknown axis, of a value that the axis does not allow, and of an axis that is set
    twice.
    """
    constants: dict[str, Any] = {}
    columns: list[list[Values]] = []
    sources: dict[str, str] = {}
    groups: list[tuple[Key, dict[str, Any]]] = []
    for axis, value in file.matrix.items():
        groups.append((("matrix",), {axis: value}))
    for number, axes in enumerate(file.zip):
        groups.append((("zip", number), axes))
    for key, group in groups:
        rows = _read_group(document, key, group, workloads)
        for axis in group:
            if axis in sources:
                problem = "found a second time; allowed: an axis in one place"
                raise document.error((*key, axis), problem)
            sources[axis] = document.source_of((*key, axis))
        if len(rows) == 1:
            constants.update(rows[0])
        elif rows:
            columns.append(rows)
    exclude = _read_rules(document, "exclude", file.exclude, workloads)
    products = [Product(list(workloads), columns)]
    for number, rule in enumerate(_read_rules(document, "include", file.include, workloads)):
        for axis in rule:
            sources.setdefault(axis, document.source_of(("include", number, axis)))
        products.append(Product(rule["workload"], _columns_of(rule), number))
    count = sum(len(each.labels) * math.prod(map(len, each.columns)) for each in products)
    if count > MAX_POINTS:
        problem = f"found {count:,} combinations of workloads and values of axes; allowed: at most {MAX_POINTS:,}"
        raise document.error(("matrix",), problem)
    own_axes = itertools.chain.from_iterable(entry.axes for entry in file.workloads.values())
    names = [name for name in (*sources, *own_axes) if variable_of(name) is not None]
    return Matrix(
        constants=constants,
        products=products,
        exclude=exclude,
        sources=sources,
        unset=dict.fromkeys(names),
        unused=set(range(len(exclude))),
    )


def _read_group(
    document: Document, key: Key, group: Values, workloads: Mapping[str, SettingTypes]
) -> list[Values]:
    """Return the alternatives of a zip, whose lists must be of one length; raises BadInput."""
    options = {}
    for axis, values in group.items():
        options[axis] = read_values(document, (*key, axis), values, workloads)
    lengths = {axis: len(values) for axis, values in options.items()}
    if len(set(lengths.values())) > 1:
        raise document.error(key, f"found lists of lengths {lengths}; allowed: equal lengths")
    return [dict(zip(options, row, strict=True)) for row in zip(*options.values(), strict=True)]


def _read_rules(
    document: Document,
    name: str,
    rules: Sequence[Values],
    workloads: Mapping[str, SettingTypes],
) -> list[Options]:
    """Return the rules of `exclude` or `include`, whichever `name` is, each value a list.

    Raises BadInput, also for an empty rule, which would match every point.
    """
    parsed: list[Options] = []
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
        chosen = {label: workloads[label] for label in labels}
        options: dict[str, Sequence[Any]] = {"workload": labels}
        for axis, value in rule.items():
            if axis != "workload":
                options[axis] = read_values(document, (*key, axis), value, chosen)
        parsed.append(options)
    return parsed


def read_values(
    document: Document, key: Key, values: Any, workloads: Mapping[str, SettingTypes]
) -> list[Any]:
    """Return the checked values of the axis that ends `key`, at least one.

    `workloads` are those that the axis holds for. One value stands for a list of one. For a setting
    that is a list itself, a list without lists in it is one value. A setting's value is checked with
    all the settings of its workload. Raises BadInput, also for what is no axis.
    """
    axis = str(key[-1])
    types = [settings[axis] for settings in workloads.values() if axis in settings]
    variable = variable_of(axis)
    if variable is not None:
        problem = problem_of_variable(variable)
    else:
        problem = None if types or axis in AXIS_TYPES else _unknown_axis(axis, workloads)
    if problem is not None:
        raise document.error(key, problem)
    if not isinstance(values, list):
        return [_read_value(document, key, axis, values)]
    if not values:
        raise document.error(key, "found an empty list; allowed: at least one value")
    has_lists = any(isinstance(value, list) for value in values)
    if any(map(_is_list, types)) and not has_lists:
        return [values]
    checked = []
    for index, value in enumerate(values):
        checked.append(_read_value(document, (*key, index), axis, value))
    return checked


def _unknown_axis(axis: str, workloads: Mapping[str, SettingTypes]) -> str:
    """Return the problem of a name that is no axis, or of a setting that no workload has."""
    if setting_of(axis) is None:
        hint = did_you_mean(axis, [*AXIS_TYPES, axis_hint(axis), "workload"])
        return f"unknown axis; {hint}"
    hint = did_you_mean(axis, set(itertools.chain(*workloads.values())))
    return f"found no workload with it among {', '.join(workloads)}; {hint}"


def _read_value(document: Document, key: Key, axis: str, value: Any) -> Any:
    """Return the checked value, at `key`, of an axis; raises BadInput."""
    if variable_of(axis) is not None:
        try:
            return variable_value(value)
        except ValueError as error:
            raise document.error(key, str(error)) from None
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
    if get_origin(kind) in (Annotated, *UNIONS):
        return any(map(_is_list, get_args(kind)))
    return (get_origin(kind) or kind) in (tuple, list, Sequence)
