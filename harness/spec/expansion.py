"""Combinations of the alternatives that a matrix has, and functions of them that are evaluated once.

Points of a large matrix have most of what decides about them in common: a rule that reads the
strategy and the world size has as many answers as these two have combinations, however many
learning rates they are combined with. `PointMemo` notes what a function reads of a point, and
evaluates it once for each combination of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from harness.spec.axes import AXES, DEFAULTS, Axes
from harness.spec.environment import PREFIX, Variables, variable_of
from harness.spec.setting_axis import setting_of

Values = Mapping[str, Any]  # axis -> value
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)  # equal if it is the same object: fast as a key
class Alternative:
    """Values of some axes, told apart by what they set."""

    axes: Values
    environment: Variables
    settings: Values  # of the workload, as axes: `options.hidden` -> value

    @classmethod
    def of(cls, values: Values) -> Alternative:
        """Return the alternative with these values."""
        axes: dict[str, Any] = {}
        environment: dict[str, str | None] = {}
        settings: dict[str, Any] = {}
        for axis, value in values.items():
            variable = variable_of(axis)
            if variable is not None:
                environment[variable] = value
            elif setting_of(axis) is not None:
                settings[axis] = value
            else:
                axes[axis] = value
        return cls(axes=axes, environment=environment, settings=settings)

    def names(self) -> Iterator[str]:
        """Yield the names of all axes that it has a value of."""
        yield from self.axes
        for variable in self.environment:
            yield f"{PREFIX}{variable}"
        yield from self.settings


Choices = tuple[Alternative, ...]  # one of each column


class Expansion:
    """Every combination of one alternative of each column, over values that all of them have.

    An axis is in one column at most, and all alternatives of a column have the same axes.
    """

    def __init__(
        self, fixed: Values, columns: Sequence[Sequence[Values]], variables: Sequence[str]
    ) -> None:
        """Prepare the combinations; `variables` are those that any axis of the sweep sets.

        Axes that nothing sets have their defaults, and variables are unset.
        """
        self.columns = [[Alternative.of(values) for values in column] for column in columns]
        self.fixed = Alternative.of({**{f"{PREFIX}{name}": None for name in variables}, **fixed})
        self.column_of: dict[str, int] = {}  # by axis
        for number, column in enumerate(self.columns):
            for axis in column[0].names():
                self.column_of[axis] = number
        # In the order of the class, with the batch size, which alone has no default.
        self.base: dict[str, Any] = {name: DEFAULTS.get(name) for name in AXES}
        self.base.update(self.fixed.axes)
        self.has_rank_batch_size = "rank_batch_size" in {**self.fixed.axes, **self.column_of}

    def __iter__(self) -> Iterator[Point]:
        """Yield the combinations; the first column varies slowest."""
        for choices in itertools.product(*self.columns):
            yield Point(self, choices)

    def columns_behind(self, axis: str) -> set[int]:
        """Return the columns that decide the value of an axis at a point."""
        names = {axis}
        if axis == "batch_size" and self.has_rank_batch_size:
            names |= {"rank_batch_size", "strategy", "world_size", "tensor_parallel"}
        return {self.column_of[name] for name in names if name in self.column_of}


class Point(Mapping[str, Any]):
    """One combination: the value of every axis by its name in a sweep file, made when it is read."""

    __slots__ = ("choices", "expansion")  # a sweep may have two hundred thousand

    def __init__(self, expansion: Expansion, choices: Choices) -> None:
        self.expansion = expansion
        self.choices = choices

    @property
    def axes(self) -> Axes:
        """Return the harness's own axes, `rank_batch_size` turned into `batch_size`."""
        values = self.expansion.base.copy()
        for choice in self.choices:
            values.update(choice.axes)
        if not self.expansion.has_rank_batch_size:
            return Axes.of_checked(values)
        # It replaces the workload's own batch size, which is there as well.
        values["batch_size"] = values.pop("rank_batch_size")
        values["batch_size"] *= Axes.of_checked(values).data_parallel_size
        return Axes.of_checked(values)

    @property
    def environment(self) -> Variables:
        """Return a value of each variable that the sweep names anywhere."""
        variables = dict(self.expansion.fixed.environment)
        for choice in self.choices:
            variables.update(choice.environment)
        return variables

    @property
    def settings(self) -> Values:
        """Return the settings of the workload that the sweep has as axes."""
        settings = dict(self.expansion.fixed.settings)
        for choice in self.choices:
            settings.update(choice.settings)
        return settings

    def __getitem__(self, axis: str) -> Any:
        if axis in AXES:
            return getattr(self.axes, axis)
        variable = variable_of(axis)
        return self.settings[axis] if variable is None else self.environment[variable]

    def __iter__(self) -> Iterator[str]:
        yield from AXES
        for variable in self.environment:
            yield f"{PREFIX}{variable}"
        yield from self.settings

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __deepcopy__(self, _: dict[int, Any]) -> dict[str, Any]:
        """Return the values alone: `dataclasses.asdict` copies what it does not know so."""
        values = self.axes.values
        for variable, value in self.environment.items():
            values[f"{PREFIX}{variable}"] = value
        return values | dict(self.settings)


class PointMemo(Generic[T]):
    """A function of points that is evaluated once for each combination of what it reads of them.

    The function must depend on nothing else of a point. What it reads may differ from point to
    point. Whenever it reads an axis that it has not read before, earlier results are dropped: they
    were stored without the value of that axis.
    """

    def __init__(self, expansion: Expansion, function: Callable[[Point], T]) -> None:
        self._expansion = expansion
        self._function = function
        self._columns: set[int] = set()  # that the function has read so far
        self._key: Callable[[Choices], Any] = lambda _: ()
        self._results: dict[Any, T] = {}

    def __call__(self, point: Point) -> T:
        """Return the result for a point, and raise what the function raises."""
        key = self._key(point.choices)
        if key in self._results:
            return self._results[key]
        watched = _WatchedPoint(point)
        result = self._function(watched)
        self._store(point, result, watched.columns_read())
        return result

    def _store(self, point: Point, result: T, columns: set[int]) -> None:
        """Store the result for a point of which these columns were read."""
        if not columns <= self._columns:
            self._columns |= columns
            self._key = itemgetter(*sorted(self._columns))
            self._results.clear()
        self._results[self._key(point.choices)] = result


class _WatchedPoint(Point):
    """A point that notes which of its axes are read."""

    __slots__ = ("_read",)

    def __init__(self, point: Point) -> None:
        super().__init__(point.expansion, point.choices)
        self._read: set[str] = set()

    def columns_read(self) -> set[int]:
        """Return the columns that the values read so far depend on."""
        columns: set[int] = set()
        for axis in self._read:
            columns |= self.expansion.columns_behind(axis)
        return columns

    @property
    def axes(self) -> Axes:
        axes = _WatchedAxes.of_checked(super().axes.values)
        object.__setattr__(axes, "read", self._read)
        return axes

    @property
    def environment(self) -> Variables:
        variables = super().environment
        self._read.update(f"{PREFIX}{name}" for name in variables)
        return variables

    @property
    def settings(self) -> Values:
        settings = super().settings
        self._read.update(settings)
        return settings


class _WatchedAxes(Axes):
    """Axes that note which of them are read."""

    __slots__ = ("read",)
    read: set[str]

    def __new__(cls, **_: Any) -> _WatchedAxes:
        """Return an object to be filled; `dataclasses.replace` makes one too, of values it read."""
        axes = super().__new__(cls)
        object.__setattr__(axes, "read", set())
        return axes

    def __getattribute__(self, name: str) -> Any:
        if name in AXES:
            self.read.add(name)
        elif name == "__dict__":  # of whoever takes all at once
            self.read.update(AXES)
        return super().__getattribute__(name)

    @property
    def values(self) -> dict[str, Any]:
        """Return the values as a dictionary that notes which of them are read."""
        return _WatchedValues(object.__getattribute__(self, "__dict__"), self.read)


class _WatchedValues(dict[str, Any]):
    """The value of every axis by its name, for rules of workloads, which may use it in any way."""

    __slots__ = ("_read",)

    def __init__(self, values: Values, read: set[str]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, axis: str) -> Any:
        self._read.add(axis)
        return super().__getitem__(axis)

    def __getattribute__(self, name: str) -> Any:
        # `get`, `items`, `copy` and all others; keys alone are the same at every point.
        if name not in ("_read", "keys"):
            self._read.update(AXES)
        return super().__getattribute__(name)

    def __iter__(self) -> Iterator[str]:
        # Without a method of this name, `dict(values)` and `{**values}` copy what is underneath,
        # past `__getitem__`.
        return super().__iter__()

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __eq__(self, other: object) -> bool:
        return dict(self) == other

    __hash__ = None
