"""From axes to points: the cartesian product, zipped axes, exclusions and inclusions.

A point takes the value of each axis from the last of these that sets it: the axis' default, `axes`
of the sweep, `axes` of its workload, then the product and the zips (or, for an included point, its
rule). Checks make sure that no axis is set twice among the sweep's own keys.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Union, get_args, get_origin

from harness.core.errors import did_you_mean
from harness.core.validation import Key, shown
from harness.spec.axes import AXIS_TYPES, Axes
from harness.spec.cell import setting_of
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
from harness.spec.workload import SweepWorkload, plain

Values = Mapping[str, Any]  # axis -> value
Options = Mapping[str, Sequence[Any]]  # axis -> the values it takes
Columns = Sequence[Sequence[Values]]  # factors of a product: alternatives, values of the same axes
MAX_POINTS = 200_000  # of a sweep, those that are left out included; planning as many takes seconds
CONFLICT = "conflict"  # the rule of points whose axes make no sense together


@dataclass(frozen=True, kw_only=True)
class MatrixPoint:
    """One combination of a matrix: the value of every axis."""

    axes: Axes
    environment: Variables  # has every variable that the sweep names
    settings: Values  # of the workload, as axes: `options.hidden` -> value

    @classmethod
    def of(cls, values: Values) -> MatrixPoint:
        """Return the point with these values; axes without one have their defaults.

        `rank_batch_size` becomes `batch_size`.
        """
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
        rank_batch_size = own.pop("rank_batch_size", None)
        axes = Axes.of(own)
        if rank_batch_size is not None:  # it replaces the workload's own batch size
            axes = replace(axes, batch_size=rank_batch_size * axes.world_size)
        return cls(axes=axes, environment=environment, settings=settings)

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

    fixed: Values  # the key `axes`: one value for all points
    product: Options  # the key `matrix`: every combination of the values
    zipped: Sequence[Options]  # the key `zip`: lists of equal length, walked through side by side
    exclude: Sequence[Options]  # here and in include, `workload` is allowed next to the axes
    include: Sequence[Options]
    # Variables that any axis of the sweep sets. Where a point sets none of them, it is unset: whether
    # the shell has it must not decide what one of the sweep's cells computes.
    variables: Sequence[str] = ()
    workloads: Mapping[str, SweepWorkload] = field(default_factory=dict)  # by label
    # The settings in `exclude` as each workload's entry has them, by label, where no point decides them.
    excluded_settings: Mapping[str, Values] = field(default_factory=dict)
    # The axes of the product to which `--set` gives one value. It holds for included points too.
    set_for_all: Values = field(default_factory=dict)
    unused: set[int] = field(default_factory=set)  # exclude rules that have matched nothing so far

    def varies(self, axis: str) -> bool:
        """Return whether the product or a zip decides the axis."""
        return axis in self.product or any(axis in group for group in self.zipped)

    def sets(self, axis: str) -> bool:
        """Return whether the axis is set for all workloads."""
        return axis in self.fixed or self.varies(axis)

    def points(self, axes_of_workload: Values) -> Iterator[MatrixPoint]:
        """Yield every combination for a workload, those that an exclude rule matches too.

        The first axis of the product varies slowest.
        """
        return self._expand(axes_of_workload, self._columns())

    def _expand(self, axes_of_workload: Values, columns: Columns) -> Iterator[MatrixPoint]:
        """Yield every combination of one alternative of each column."""
        unset = {f"{PREFIX}{variable}": None for variable in self.variables}
        fixed = {**unset, **self.fixed, **axes_of_workload}
        for alternatives in itertools.product(*columns):
            values = dict(fixed)
            for alternative in alternatives:
                # An include rule may have the one, where all other points have the other.
                if "batch_size" in alternative:
                    values.pop("rank_batch_size", None)
                values.update(alternative)
            yield MatrixPoint.of(values)

    def count_points(self, workload: str) -> int:
        """Return how many combinations a workload has, inclusions too, without making any."""
        count = math.prod(len(column) for column in self._columns())
        for rule in self.include:
            if workload in rule.get("workload", [workload]):
                count += math.prod(len(values) for values in _options_of(rule).values())
        return count

    def _columns(self) -> Columns:
        """Return the factors of the product.

        An axis of `matrix` is a separate factor, and all axes of a zip are one factor together.
        """
        columns = _columns_of(self.product)
        for group in self.zipped:
            rows = zip(*group.values(), strict=True)
            alternatives = [dict(zip(group, row, strict=True)) for row in rows]
            if group:  # an empty one would be a factor without alternatives
                columns.append(alternatives)
        return columns

    def inclusions(
        self, workload: str, axes_of_workload: Values
    ) -> Iterator[tuple[int, MatrixPoint]]:
        """Yield the further combinations for a workload, each with the number of its include rule.

        A rule is a separate small product, on top of the axes that are the same for all points. A
        rule that names workloads holds for those only.
        """
        values = dict(axes_of_workload)
        setting_names = self.workloads[workload].setting_names()
        for axis, value in self.set_for_all.items():
            if setting_of(axis) is None or axis in setting_names:
                values[axis] = value
        for number, rule in enumerate(self.include):
            if workload not in rule.get("workload", [workload]):
                continue
            for point in self._expand(values, _columns_of(_options_of(rule))):
                yield number, point

    def matching_exclusion(self, workload: str, point: MatrixPoint) -> str | None:
        """Return the first exclude rule that matches a point, and note that it is used.

        A rule matches a point that has, for each axis of the rule, one of its values. A variable
        that the sweep sets nowhere is unset.
        """
        if not self.exclude:
            return None
        axes = point.axes
        levels = {**self.excluded_settings[workload], **point.levels, "workload": workload}
        # A fraction where the batch can't be shared out evenly, so that no rule matches it.
        levels["rank_batch_size"] = axes.batch_size / axes.world_size
        for number, rule in enumerate(self.exclude):
            if all(levels.get(axis) in values for axis, values in rule.items()):
                self.unused.discard(number)
                return f"exclude[{number}]"
        return None


def _columns_of(options: Options) -> list[Sequence[Values]]:
    """Return a factor for each axis."""
    return [[{axis: value} for value in values] for axis, values in options.items()]


def _options_of(rule: Options) -> Options:
    """Return the axes of a rule, without the workloads that it holds for."""
    return {axis: values for axis, values in rule.items() if axis != "workload"}


def read_matrix(document: Document, workloads: Mapping[str, SweepWorkload]) -> Matrix:
    """Return the `axes`, `matrix`, `zip`, `exclude` and `include` keys of a sweep.

    `workloads` are those of the sweep, by the labels that rules may name. Raises BadInput at the
    key of an unknown axis, of a value that the axis does not allow, and of an axis that is set
    twice.
    """
    content = document.content
    fixed: dict[str, Any] = {}
    for axis, value in content.get("axes", {}).items():
        fixed[axis] = axis_value(document, ("axes", axis), value, workloads)
    product: dict[str, list[Any]] = {}
    set_for_all: dict[str, Any] = {}
    for axis, values in content.get("matrix", {}).items():
        product[axis] = axis_values(document, ("matrix", axis), values, workloads)
        if len(product[axis]) == 1 and _is_set_by_name(document, axis):
            set_for_all[axis] = product[axis][0]
    zipped: list[Options] = []
    for number, group in enumerate(content.get("zip", [])):
        zipped.append(_read_zip(document, ("zip", number), group, workloads))
    _check_axes_are_set_once(document, fixed, product, zipped)
    exclude = _read_rules(document, "exclude", workloads)
    include = _read_rules(document, "include", workloads)
    for number, rule in enumerate(include):
        if "batch_size" in rule and "rank_batch_size" in rule:
            problem = "found batch_size and rank_batch_size; allowed: one of them"
            raise document.error(("include", number), problem)
    axes_of_workloads = [entry.get("axes", {}) for entry in content["workloads"].values()]
    groups = [fixed, *axes_of_workloads, product, *zipped, *include]
    matrix = Matrix(
        fixed=fixed,
        product=product,
        zipped=zipped,
        exclude=exclude,
        include=include,
        variables=_variables(groups),
        workloads=workloads,
        excluded_settings=_excluded_settings(exclude, workloads),
        set_for_all=set_for_all,
        unused=set(range(len(exclude))),
    )
    _check_size(document, matrix)
    return matrix


def _is_set_by_name(document: Document, axis: str) -> bool:
    """Return whether `--set AXIS=VALUE` sets an axis of `matrix`, rather than `--set matrix.AXIS`."""
    flag, _, assignment = document.source_of(("matrix", axis)).partition(" ")
    return flag == "--set" and assignment.partition("=")[0].strip() == axis


def _variables(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the variables that are axes in any of the groups, each once, in their order."""
    variables: dict[str, None] = {}  # an ordered set
    for group in groups:
        for axis in group:
            variable = variable_of(axis)
            if variable is not None:
                variables[variable] = None
    return list(variables)


def _excluded_settings(
    rules: Sequence[Options], workloads: Mapping[str, SweepWorkload]
) -> Mapping[str, Values]:
    """Return the settings in exclude rules as each workload's entry has them, by label."""
    values: dict[str, dict[str, Any]] = {label: {} for label in workloads}
    for axis in {axis for rule in rules for axis in rule}:
        if setting_of(axis) is not None:
            for label, workload in workloads.items():
                values[label][axis] = workload.value_in_entry(axis)
    return values


def _check_size(document: Document, matrix: Matrix) -> None:
    """Raise BadInput for more points than can be planned, before any of them is made."""
    count = sum(map(matrix.count_points, matrix.workloads))
    if count <= MAX_POINTS:
        return
    problem = (
        f"found {count:,} combinations of workloads and values of axes; allowed: at most"
        f" {MAX_POINTS:,}"
    )
    raise document.error(("matrix",), problem)


def _read_zip(
    document: Document,
    key: Key,
    group: Mapping[str, Any],
    workloads: Mapping[str, SweepWorkload],
) -> Options:
    """Return the axes of a zip, whose lists must be of one length; raises BadInput."""
    columns = {
        axis: axis_values(document, (*key, axis), values, workloads)
        for axis, values in group.items()
    }
    lengths = {axis: len(values) for axis, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise document.error(key, f"found lists of lengths {lengths}; allowed: equal lengths")
    return columns


def _check_axes_are_set_once(
    document: Document, fixed: Values, product: Options, zipped: Sequence[Options]
) -> None:
    """Raise BadInput for an axis that two of `axes`, `matrix` and the zips set.

    Which of them counts would depend on an order that nobody sees in the file.
    """
    groups: list[tuple[Key, Mapping[str, Any]]] = [(("axes",), fixed), (("matrix",), product)]
    groups += [(("zip", number), group) for number, group in enumerate(zipped)]
    set_before: set[str] = set()
    for key, axes in groups:
        for axis in axes:
            if axis in set_before:
                problem = "found a second time; allowed: an axis in one place"
                raise document.error((*key, axis), problem)
            set_before.add(axis)


def _read_rules(
    document: Document, name: str, workloads: Mapping[str, SweepWorkload]
) -> list[Options]:
    """Return the rules of `exclude` or `include`, whichever `name` is; raises BadInput."""
    rules: list[Options] = []
    for number, rule in enumerate(document.content.get(name, [])):
        rules.append(_read_rule(document, (name, number), rule, workloads))
    return rules


def _read_rule(
    document: Document,
    key: Key,
    rule: Mapping[str, Any],
    workloads: Mapping[str, SweepWorkload],
) -> Options:
    """Return a rule's values, each a list: one value stands for a list of one.

    Raises BadInput, also for an empty rule, which would match every point.
    """
    options: dict[str, Sequence[Any]] = {}
    if "workload" in rule:
        labels = _read_labels(document, (*key, "workload"), rule["workload"], workloads)
        options["workload"] = labels
        workloads = {label: workloads[label] for label in labels}
    for axis, value in rule.items():
        axis_key = (*key, axis)
        if axis == "workload":
            continue
        if isinstance(value, list):
            options[axis] = axis_values(document, axis_key, value, workloads)
        else:
            options[axis] = [axis_value(document, axis_key, value, workloads)]
    if not options:
        hint = did_you_mean("", ["workload", *AXIS_TYPES])
        raise document.error(key, f"found an empty rule; {hint}")
    return options


def _read_labels(document: Document, key: Key, value: Any, workloads: Collection[str]) -> list[str]:
    """Return the labels of workloads that a rule names: a label, or a list of some.

    Raises BadInput for an empty list and for a label that the sweep does not have.
    """
    labels: list[str] = [value]
    if isinstance(value, list):
        labels = value
    if not labels:
        problem = "an empty list"
        raise document.error(key, f"found {problem!r}; {did_you_mean(problem, workloads)}")
    for label in labels:
        if label not in workloads:
            raise document.error(key, f"found {label!r}; {did_you_mean(label, workloads)}")
    return labels


def axis_values(
    document: Document, key: Key, values: Any, workloads: Mapping[str, SweepWorkload]
) -> list[Any]:
    """Return the checked values of the axis that ends `key`, at least one; raises BadInput.

    `workloads` are those that the axis holds for. One value stands for a list of one. For a setting
    that is a list itself, a list without lists in it is one value.
    """
    axis_types = _axis_types(document, key, workloads)
    takes_lists = any(_is_list(kind) for kind in axis_types)
    if isinstance(values, str | int | float) and not takes_lists:
        return [_checked(document, key, axis_types, values, key)]
    listed: list[Any] = document.validate(list[Any], values, key)
    if not listed:
        raise document.error(key, "found an empty list; allowed: at least one value")
    holds_lists = any(isinstance(value, list) for value in listed)
    if not holds_lists and takes_lists:
        return [_checked(document, key, axis_types, listed, key)]
    checked = []
    for index, value in enumerate(listed):
        checked.append(_checked(document, key, axis_types, value, (*key, index)))
    return checked


def axis_value(
    document: Document, key: Key, value: Any, workloads: Mapping[str, SweepWorkload]
) -> Any:
    """Return the checked value of the axis that ends `key`; raises BadInput."""
    axis_types = _axis_types(document, key, workloads)
    is_variable = variable_of(str(key[-1])) is not None
    takes_lists = any(_is_list(kind) or kind is Any for kind in axis_types)
    if isinstance(value, list) and (is_variable or not takes_lists):
        problem = (
            f"found {shown(value)}; allowed: one value; several belong below matrix:"
            f" `matrix: {{{key[-1]}: {shown(value)}}}`"
        )
        raise document.error(key, problem)
    return _checked(document, key, axis_types, value, key)


def _axis_types(document: Document, key: Key, workloads: Mapping[str, SweepWorkload]) -> list[Any]:
    """Return the type of the axis that ends `key`, a setting's at each workload that has it.

    Raises BadInput for what is no axis, and for a setting that no workload has.
    """
    axis = str(key[-1])
    variable, setting = variable_of(axis), setting_of(axis)
    if axis in AXIS_TYPES:
        return [AXIS_TYPES[axis]]
    if variable is not None:
        problem = problem_of_variable(variable)
        if problem is not None:
            raise document.error(key, problem)
        return [Any]
    if setting is None:
        allowed = [*AXIS_TYPES, axis_hint(axis)]
        if key[0] in ("exclude", "include"):
            allowed.append("workload")
        raise document.error(key, f"unknown axis; {did_you_mean(axis, allowed)}")
    owners = [workload for workload in workloads.values() if axis in workload.setting_names()]
    if not owners:
        names = {name for workload in workloads.values() for name in workload.setting_names()}
        problem = f"found no workload with it among {', '.join(workloads)}"
        raise document.error(key, f"{problem}; {did_you_mean(axis, names)}")
    return [workload.type_of(setting) for workload in owners]


def _is_list(kind: Any) -> bool:
    """Return whether values of a type are lists, possibly optional ones."""
    if get_origin(kind) in (Annotated, Union, types.UnionType):
        return any(_is_list(member) for member in get_args(kind))
    return get_origin(kind) in (tuple, list, Sequence) or kind in (tuple, list)


def _checked(
    document: Document, axis_key: Key, axis_types: Sequence[Any], value: Any, key: Key
) -> Any:
    """Return the checked value, at `key`, of the axis that ends `axis_key`; raises BadInput."""
    axis = str(axis_key[-1])
    for kind in axis_types:
        checked = document.validate(kind, value, key)
    if setting_of(axis) is not None:
        return plain(value)
    if axis == STACK:
        check_name(document, key, value)
    if variable_of(axis) is None:
        return checked
    try:
        return variable_value(value)
    except ValueError as error:
        raise document.error(key, str(error)) from None
