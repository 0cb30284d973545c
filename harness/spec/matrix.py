"""From axes to points: the product of `matrix` and `zip`, with exclusions and inclusions.

A point takes the value of each axis from the last of these that sets it: the axis' default, an axis
of `matrix` with one value, `axes` of its workload, then the axes with several values and the zips (or,
for an included point, its rule).
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Union, get_args, get_origin

from harness.core.errors import did_you_mean
from harness.core.validation import Key, shown
from harness.spec.axes import AXIS_TYPES, Axes
from harness.spec.cell import same_value, setting_of
from harness.spec.document import Document
from harness.spec.environment import (
    PREFIX,
    Variables,
    axis_hint,
    problem_of_variable,
    variable_of,
    variable_value,
)
from harness.spec.stack import AXIS as STACK
from harness.spec.stack import check_name

Values = Mapping[str, Any]  # axis -> value
Options = Mapping[str, Sequence[Any]]  # axis -> the values it takes
SettingTypes = Mapping[str, Any]  # axis of a workload's setting -> its type
MAX_POINTS = 200_000  # of a sweep, those that are left out included; planning as many takes seconds
CONFLICT = "conflict"  # the rule of points whose axes make no sense together


@dataclass(frozen=True, kw_only=True)
class MatrixPoint:
    """One combination of a matrix: the value of every axis."""

    axes: Axes
    environment: Variables  # has every variable that the sweep names
    settings: Values  # of the workload, as axes: `options.hidden` -> value
    included_by: int | None = None  # the number of its rule of `include`

    @classmethod
    def of(cls, values: Values, included_by: int | None = None) -> MatrixPoint:
        """Return the point with these values; axes without one have their defaults."""
        own: dict[str, Any] = {}  # the harness's own axes
        environment: dict[str, str | None] = {}
        settings: dict[str, Any] = {}
        for axis, value in values.items():
            if axis in AXIS_TYPES:
                own[axis] = value
            elif setting_of(axis) is not None:
                settings[axis] = value
            else:
                environment[axis.removeprefix(PREFIX)] = value
        return cls(
            axes=Axes.of(own), environment=environment, settings=settings, included_by=included_by
        )

    @property
    def levels(self) -> dict[str, Any]:
        """Return the value of every axis by its name in a sweep file."""
        levels = self.axes.values
        for variable, value in self.environment.items():
            levels[f"{PREFIX}{variable}"] = value
        levels.update(self.settings)
        return levels


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

    constants: Values  # the axes of `matrix` with one value, which included points have too
    columns: Sequence[Sequence[Values]]  # factors of the product: alternatives, of the same axes
    exclude: Sequence[Options]  # here and in include, `workload` is allowed next to the axes
    include: Sequence[Options]
    # Variables that any axis of the sweep sets. Where a point sets none of them, it is unset: whether
    # the shell has it must not decide what one of the sweep's cells computes.
    variables: Sequence[str]
    sources: Mapping[str, str]  # of each axis, the line or the flag that sets it first
    unused: set[int] = field(default_factory=set)  # exclude rules that have matched nothing so far

    @property
    def varying(self) -> set[str]:
        """The axes with several values."""
        return {axis for column in self.columns for axis in column[0]}

    def sets(self, axis: str) -> bool:
        """Return whether the sweep sets an axis, for any of its points."""
        names = {*self.constants, *self.varying, *itertools.chain(*self.include)}
        return axis in names

    def points(
        self, workload: str, own: Values, setting_names: Collection[str]
    ) -> Iterator[MatrixPoint]:
        """Yield every combination for a workload, those that an exclude rule matches too.

        `own` are the axes that the workload sets, and `setting_names` those of its settings. The
        first axis of the product varies slowest. A rule of `include` is a separate small product.
        """
        unset = {f"{PREFIX}{variable}": None for variable in self.variables}
        fixed = {**unset, **self.constants, **own}
        for values in _expand(fixed, self.columns):
            yield MatrixPoint.of(values)
        known = {
            axis: value
            for axis, value in fixed.items()
            if setting_of(axis) is None or axis in setting_names
        }
        for number, rule in enumerate(self.include):
            if workload in rule.get("workload", [workload]):
                for values in _expand(known, _columns_of(rule)):
                    yield MatrixPoint.of(values, number)

    def count_points(self) -> int:
        """Return how many combinations one workload has at most, without making any."""
        count = math.prod(len(column) for column in self.columns)
        for rule in self.include:
            count += math.prod(len(column) for column in _columns_of(rule))
        return count

    def matching_exclusion(self, levels: Values) -> str | None:
        """Return the first exclude rule that matches a point, and note that it is used.

        A rule matches a point that has, for each axis of the rule, one of its values. `levels` are
        those of the point, its workload's label and settings included; a variable that is none of
        them is unset.
        """
        for number, rule in enumerate(self.exclude):
            if all(_has_one(levels, axis, values) for axis, values in rule.items()):
                self.unused.discard(number)
                return f"exclude[{number}]"
        return None


def _has_one(levels: Values, axis: str, values: Sequence[Any]) -> bool:
    """Return whether a point has one of some values of an axis."""
    if axis not in levels and variable_of(axis) is None:
        return False
    return any(same_value(levels.get(axis), value) for value in values)


def _expand(fixed: Values, columns: Sequence[Sequence[Values]]) -> Iterator[dict[str, Any]]:
    """Yield every combination of one alternative of each column, on top of what is fixed."""
    for alternatives in itertools.product(*columns):
        values = dict(fixed)
        for alternative in alternatives:
            values.update(alternative)
        yield values


def _columns_of(options: Options) -> list[list[Values]]:
    """Return a factor for each axis of some options, without the workloads that they hold for."""
    columns: list[list[Values]] = []
    for axis, values in options.items():
        if axis != "workload":
            columns.append([{axis: value} for value in values])
    return columns


def read_matrix(document: Document, workloads: Mapping[str, SettingTypes]) -> Matrix:
    """Return the `matrix`, `zip`, `exclude` and `include` keys of a sweep.

    `workloads` are the types of the settings of each of its workloads, by label. Raises BadInput at
    the key of an unknown axis, of a value that the axis does not allow, and of an axis that is set
    twice.
    """
    content = document.content
    constants: dict[str, Any] = {}
    columns: list[list[Values]] = []
    sources: dict[str, str] = {}
    for axis, values in content.get("matrix", {}).items():
        options = axis_values(document, ("matrix", axis), values, workloads)
        sources[axis] = document.source_of(("matrix", axis))
        if len(options) == 1:
            constants[axis] = options[0]
        else:
            columns += _columns_of({axis: options})
    for number, group in enumerate(content.get("zip", [])):
        for axis in group:
            if axis in sources:
                problem = "found a second time; allowed: an axis in one place"
                raise document.error(("zip", number, axis), problem)
            sources[axis] = document.source_of(("zip", number, axis))
        if group:  # an empty one would be a factor without alternatives
            columns.append(_read_zip(document, ("zip", number), group, workloads))
    exclude = _read_rules(document, "exclude", workloads)
    include = _read_rules(document, "include", workloads)
    for number, rule in enumerate(include):
        for axis in rule:
            sources.setdefault(axis, document.source_of(("include", number, axis)))
    names = [*sources, *(axis for e in content["workloads"].values() for axis in e.get("axes", {}))]
    variables = [variable for axis in names if (variable := variable_of(axis)) is not None]
    matrix = Matrix(
        constants=constants,
        columns=columns,
        exclude=exclude,
        include=include,
        variables=list(dict.fromkeys(variables)),
        sources=sources,
        unused=set(range(len(exclude))),
    )
    count = matrix.count_points() * len(workloads)
    if count > MAX_POINTS:
        problem = f"found {count:,} combinations of workloads and values of axes; allowed: at most {MAX_POINTS:,}"
        raise document.error(("matrix",), problem)
    return matrix


def _read_zip(
    document: Document, key: Key, group: Mapping[str, Any], workloads: Mapping[str, SettingTypes]
) -> list[Values]:
    """Return the alternatives of a zip, whose lists must be of one length; raises BadInput."""
    options = {
        axis: axis_values(document, (*key, axis), values, workloads)
        for axis, values in group.items()
    }
    lengths = {axis: len(values) for axis, values in options.items()}
    if len(set(lengths.values())) > 1:
        raise document.error(key, f"found lists of lengths {lengths}; allowed: equal lengths")
    rows = zip(*options.values(), strict=True)
    return [dict(zip(group, row, strict=True)) for row in rows]


def _read_rules(
    document: Document, name: str, workloads: Mapping[str, SettingTypes]
) -> list[Options]:
    """Return the rules of `exclude` or `include`, whichever `name` is, each value a list.

    Raises BadInput, also for an empty rule, which would match every point.
    """
    rules: list[Options] = []
    for number, rule in enumerate(document.content.get(name, [])):
        key = (name, number)
        options: dict[str, Sequence[Any]] = {}
        chosen = workloads
        if "workload" in rule:
            labels = _read_labels(document, (*key, "workload"), rule["workload"], workloads)
            options["workload"] = labels
            chosen = {label: workloads[label] for label in labels}
        for axis, value in rule.items():
            if axis != "workload":
                options[axis] = axis_values(document, (*key, axis), value, chosen)
        if not options:
            hint = did_you_mean("", ["workload", *AXIS_TYPES])
            raise document.error(key, f"found an empty rule; {hint}")
        rules.append(options)
    return rules


def _read_labels(document: Document, key: Key, value: Any, workloads: Collection[str]) -> list[str]:
    """Return the labels of workloads that a rule names: a label, or a list of some; raises BadInput."""
    labels = value if isinstance(value, list) and value else [value]
    for label in labels:
        if not isinstance(label, str) or label not in workloads:
            raise document.error(key, f"found {shown(label)}; {did_you_mean(label, workloads)}")
    return labels


def axis_values(
    document: Document, key: Key, values: Any, workloads: Mapping[str, SettingTypes]
) -> list[Any]:
    """Return the checked values of the axis that ends `key`, at least one; raises BadInput.

    `workloads` are those that the axis holds for. One value stands for a list of one. For a setting
    that is a list itself, a list without lists in it is one value.
    """
    takes_lists = _check_axis(document, key, workloads)
    if not isinstance(values, list):
        return [axis_value(document, key, values)]
    if not values:
        raise document.error(key, "found an empty list; allowed: at least one value")
    if takes_lists and not any(isinstance(value, list) for value in values):
        return [values]
    return [axis_value(document, (*key, index), value) for index, value in enumerate(values)]


def own_axis(
    document: Document, key: Key, value: Any, workloads: Mapping[str, SettingTypes]
) -> Any:
    """Return the checked value of an axis, which ends `key`, of one workload; raises BadInput."""
    _check_axis(document, key, workloads)
    if isinstance(value, list):
        problem = (
            f"found {shown(value)}; allowed: one value; several belong below matrix:"
            f" `matrix: {{{key[-1]}: {shown(value)}}}`"
        )
        raise document.error(key, problem)
    return axis_value(document, key, value)


def axis_value(document: Document, key: Key, value: Any) -> Any:
    """Return the checked value, at `key`, of an axis; raises BadInput.

    A setting's value is checked with all the settings of its workload.
    """
    axis = next(str(part) for part in reversed(key) if isinstance(part, str))
    if axis in AXIS_TYPES:
        checked = document.validate(AXIS_TYPES[axis], value, key)
        if axis == STACK:
            check_name(document, key, checked)
        return checked
    if variable_of(axis) is None:
        return value
    try:
        return variable_value(value)
    except ValueError as error:
        raise document.error(key, str(error)) from None


def _check_axis(document: Document, key: Key, workloads: Mapping[str, SettingTypes]) -> bool:
    """Return whether values of the axis that ends `key` are lists themselves.

    Raises BadInput for what is no axis, and for a setting that no workload has.
    """
    axis = str(key[-1])
    variable = variable_of(axis)
    if axis in AXIS_TYPES:
        return False
    if variable is not None:
        problem = problem_of_variable(variable)
        if problem is not None:
            raise document.error(key, problem)
        return False
    if setting_of(axis) is None:
        allowed = [*AXIS_TYPES, axis_hint(axis)]
        if key[0] in ("exclude", "include"):
            allowed.append("workload")
        raise document.error(key, f"unknown axis; {did_you_mean(axis, allowed)}")
    owners = [settings for settings in workloads.values() if axis in settings]
    if not owners:
        names = {name for settings in workloads.values() for name in settings}
        problem = f"found no workload with it among {', '.join(workloads)}"
        raise document.error(key, f"{problem}; {did_you_mean(axis, names)}")
    return any(_is_list(settings[axis]) for settings in owners)


def _is_list(kind: Any) -> bool:
    """Return whether values of a type are lists, possibly optional ones."""
    if get_origin(kind) in (Annotated, Union, types.UnionType):
        return any(_is_list(member) for member in get_args(kind))
    return get_origin(kind) in (tuple, list, Sequence) or kind in (tuple, list)
