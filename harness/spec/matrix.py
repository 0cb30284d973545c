"""From axes to cells: the cartesian product, zipped axes, exclusions, inclusions, and combinations without sense."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.core.errors import did_you_mean
from harness.spec.axes import AXIS_TYPES, Axes
from harness.spec.document import Document, Key

Values = Mapping[str, Any]  # axis -> value
Options = Mapping[str, Sequence[Any]]  # axis -> the values it takes


@dataclass(frozen=True, kw_only=True)
class ExcludedPoint:
    """A point of the matrix that is not run, and why."""

    workload: str
    axes: Values
    rule: str  # `exclude[0]`, or `conflict` for a combination that makes no sense
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The axes part of a sweep, every value checked."""

    fixed: Values
    product: Options
    zipped: Sequence[Options]
    exclude: Sequence[Options]  # here `workload` is allowed beside the axes
    include: Sequence[Options]
    unused: set[int] = field(default_factory=set)  # exclude rules that have matched nothing so far

    def varies(self, axis: str) -> bool:
        """Whether the product or a zip decides the axis."""
        return axis in self.product or any(axis in group for group in self.zipped)

    def sets(self, axis: str) -> bool:
        return axis in self.fixed or self.varies(axis)

    def points(self, workload: str, own: Values) -> Iterator[tuple[Axes, str | None]]:
        """Every combination for a workload with `own` fixed axes, and the exclude rule that it falls under, if any."""
        columns = [[{axis: value} for value in values] for axis, values in self.product.items()]
        columns += [
            [dict(zip(group, row, strict=True)) for row in zip(*group.values(), strict=True)]
            for group in self.zipped
            if group
        ]
        for choices in itertools.product(*columns):
            point = dict(self.fixed) | dict(own)
            for choice in choices:
                point |= choice
            axes = _axes(point)
            yield axes, self._excluded(workload, axes)

    def inclusions(self, workload: str, own: Values) -> Iterator[tuple[int, Axes]]:
        """The further combinations for a workload, each with the number of its include rule."""
        for number, rule in enumerate(self.include):
            if workload in rule.get("workload", [workload]):
                axes = {axis: values for axis, values in rule.items() if axis != "workload"}
                for row in itertools.product(*axes.values()):
                    yield (
                        number,
                        _axes(dict(self.fixed) | dict(own) | dict(zip(axes, row, strict=True))),
                    )

    def _excluded(self, workload: str, axes: Axes) -> str | None:
        rank_batch_size = axes.batch_size / axes.world_size
        complete = asdict(axes) | {"workload": workload, "rank_batch_size": rank_batch_size}
        for number, rule in enumerate(self.exclude):
            if all(complete[axis] in values for axis, values in rule.items()):
                self.unused.discard(number)
                return f"exclude[{number}]"
        return None


def _axes(point: Values) -> Axes:
    values = dict(point)
    if rank_batch_size := values.pop("rank_batch_size", None):
        values["batch_size"] = rank_batch_size * values.get("world_size", 1)
    return Axes(**values)


def read_matrix(document: Document, workloads: Sequence[str]) -> Matrix:
    """The `axes`, `matrix`, `zip`, `exclude` and `include` keys of a sweep; raises BadInput."""
    content = document.content
    fixed = {
        axis: axis_value(document, ("axes", axis), value)
        for axis, value in content.get("axes", {}).items()
    }
    product = {
        axis: axis_values(document, ("matrix", axis), value)
        for axis, value in content.get("matrix", {}).items()
    }
    zipped: list[Options] = []
    for number, group in enumerate(content.get("zip", [])):
        columns = {
            axis: axis_values(document, ("zip", number, axis), value)
            for axis, value in group.items()
        }
        lengths = {axis: len(values) for axis, values in columns.items()}
        if len(set(lengths.values())) > 1:
            raise document.error(
                ("zip", number), f"found lists of lengths {lengths}; allowed: equal lengths"
            )
        zipped.append(columns)
    seen: set[str] = set()
    groups = [(("zip", number), group) for number, group in enumerate(zipped)]
    for place, axes in [(("axes",), fixed), (("matrix",), product), *groups]:
        for axis in axes:
            if axis in seen:
                raise document.error(
                    (*place, axis), "found a second time; allowed: an axis in one place"
                )
            seen.add(axis)
    exclude, include = (
        [
            _rule(document, (key, number), rule, workloads)
            for number, rule in enumerate(content.get(key, []))
        ]
        for key in ("exclude", "include")
    )
    unused = set(range(len(exclude)))
    return Matrix(
        fixed=fixed, product=product, zipped=zipped, exclude=exclude, include=include, unused=unused
    )


def axis_values(document: Document, key: Key, value: Any) -> list[Any]:
    """The checked values of the axis that ends `key`: a list that is not empty."""
    values: list[Any] = document.validate(list[_axis_type(document, key)], value, key)  # type: ignore[misc]
    if not values:
        raise document.error(key, "found an empty list; allowed: at least one value")
    return values


def axis_value(document: Document, key: Key, value: Any) -> Any:
    return document.validate(_axis_type(document, key), value, key)


def _axis_type(document: Document, key: Key) -> Any:
    if key[-1] not in AXIS_TYPES:
        rules = ["workload"] if key[0] in ("exclude", "include") else []
        raise document.error(key, f"unknown axis; {did_you_mean(key[-1], [*AXIS_TYPES, *rules])}")
    return AXIS_TYPES[str(key[-1])]


def _rule(
    document: Document, key: Key, rule: Mapping[str, Any], workloads: Sequence[str]
) -> Options:
    """A rule's values, each a list: one value stands for a list of one."""
    checked: dict[str, Sequence[Any]] = {}
    for axis, value in rule.items():
        place = (*key, axis)
        if axis == "workload":
            checked[axis] = _labels(document, place, value, workloads)
        elif isinstance(value, list):
            checked[axis] = axis_values(document, place, value)
        else:
            checked[axis] = [axis_value(document, place, value)]
    if not checked:
        raise document.error(
            key, f"found an empty rule; {did_you_mean('', ['workload', *AXIS_TYPES])}"
        )
    return checked


def _labels(document: Document, key: Key, value: Any, workloads: Sequence[str]) -> list[str]:
    labels = value if isinstance(value, list) else [value]
    unknown = [label for label in labels if label not in workloads]
    if unknown or not labels:
        found = unknown[0] if unknown else "an empty list"
        raise document.error(key, f"found {found!r}; {did_you_mean(found, workloads)}")
    return labels
