"""From axes to points: the product of `matrix` and `zip`, with exclusions and inclusions.

A point is the value of each axis that is set, flat, by its name in a sweep file. What a workload sets
itself goes before `matrix` and `zip`, and what a rule of `include` sets goes before both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_origin

from harness.core.errors import did_you_mean
from harness.core.validation import Key, Line, dotted, members_of
from harness.sweep.axes import AXIS_TYPES, PREFIX, problem_of_variable, unknown_axis
from harness.sweep.cell import Cell, Values, is_setting, same_value
from harness.sweep.document import Document
from harness.sweep.sweepfile import MAX_TRIALS, SweepFile
from harness.sweep.workload import SweepWorkload

Rule = Mapping[str, Sequence[Any]]  # axis -> the values it takes; `workload` -> labels
CONFLICT = "conflict"  # the rule of points whose axes make no sense together


@dataclass(frozen=True, kw_only=True)
class ExcludedPoint:
    """A point of the matrix that is not run, and why.

    A point of the product with a conflict is left out, since products contain unintended points.
    """

    workload: str  # its label
    axes: Values  # of all axes, and of the settings
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
        self.document = document
        self.workloads = workloads
        # The axes with one value, which included points have too. A variable that only some points set
        # is None: whether the shell has it must not decide what the others compute.
        self.constants: dict[str, Any] = {}
        # The factors of the product: alternatives, of the same axes.
        self.columns: list[Sequence[Values]] = []
        self.axes: dict[str, Key] = {}  # each axis that is set, and where it is set first
        for axis, values in file.matrix.items():
            self._add(("matrix",), {axis: values})
        for number, axes in enumerate(file.zip):
            self._add(("zip", number), axes)
        seeds = max(len(workload.entry.seeds or file.seeds) for workload in workloads)
        trials = math.prod(map(len, self.columns)) * len(workloads) * seeds * file.repeats
        if trials > MAX_TRIALS:
            problem = f"found {trials:,} combinations of workloads, axes, seeds and repeats"
            raise document.error(("matrix",), f"{problem}; allowed: at most {MAX_TRIALS:,}")
        self.exclude = self._read_rules("exclude", file.exclude)
        self.include = self._read_rules("include", file.include)
        for key, rule in self.include.items():
            for axis in rule:
                self.axes.setdefault(axis, (*key, axis))
        for workload in workloads:
            for axis in (*self.axes, *workload.entry.axes):
                if axis.startswith(PREFIX):
                    self.constants.setdefault(axis, None)
            for axis, key in self.axes.items():
                setting_key = (*workload.key, *axis.split(".", 1))
                document.sources.setdefault(setting_key, document.source_of(key))

    def _add(self, key: Key, group: Values) -> None:
        """Read axes that vary together.

        Raises BadInput for lists of several lengths, and for an axis that each workload sets itself.
        """
        columns = {}
        for axis, values in group.items():
            if axis in self.axes:
                problem = "found a second time; allowed: an axis in one place"
                raise self.document.error((*key, axis), problem)
            self.axes[axis] = (*key, axis)
            columns[axis] = self._read_values((*key, axis), values, self.workloads)
            if not any(workload.takes(axis) for workload in self.workloads):
                problem = "found what the workloads set themselves; allowed: one of the two"
                raise self.document.error((*key, axis), problem)
        lengths = {axis: len(values) for axis, values in columns.items()}
        if len(set(lengths.values())) > 1:
            problem = f"found lists of lengths {lengths}; allowed: equal lengths"
            raise self.document.error(key, problem)
        rows = []
        for row in zip(*columns.values(), strict=True):
            rows.append(dict(zip(columns, row, strict=True)))
        if len(rows) == 1:
            self.constants |= rows[0]
        elif rows:
            self.columns.append(rows)

    def points(self, workload: SweepWorkload) -> Iterator[tuple[dict[str, Any], Key]]:
        """Yield every combination for a workload, with the key of the rule that includes it, or ().

        Included points take no setting from the sweep that the workload has not. The first axis varies
        slowest.
        """
        own = workload.entry.settings
        for axis, value in workload.entry.axes.items():
            key = (*workload.key, "axes", axis)
            own[axis] = self._read_value(key, axis, value, workload.setting_types)
        fixed = {"batch_size": workload.declaration.batch_size, **self.constants}
        for alternatives in product(*self.columns):
            values = dict(fixed)
            for alternative in alternatives:
                values.update(alternative)
            values.update(own)
            yield values, ()
        for axis in self.constants:
            if is_setting(axis) and axis not in workload.setting_types:
                del fixed[axis]
        for key, rule in self.include.items():
            for row in product(*rule.values()):
                values = dict(zip(rule, row, strict=True))
                if values.pop("workload") == workload.label:
                    yield {**fixed, **own, **values}, key

    def exclusion_of(self, cell: Cell, point: Values) -> str | None:
        """Return the first exclude rule that matches the cell of a point, as `exclude[0]`.

        A rule matches if the cell has, for each axis of the rule, one of its values.
        """
        if not self.exclude:
            return None
        workload = cell.workload
        levels = {**workload.settings, **cell.axes.values, **point, "workload": workload.label}
        for key, rule in self.exclude.items():
            if all(_has_one_of(levels, axis, values) for axis, values in rule.items()):
                return dotted(key)
        return None

    def _read_rules(self, name: str, rules: Sequence[Values]) -> dict[Key, Rule]:
        """Return the rules of `exclude` or `include`, whichever `name` is, by their keys.

        Raises BadInput for what is no workload, no axis or none of its values.
        """
        all_labels = [workload.label for workload in self.workloads]
        label_type: Any = Literal.__getitem__(tuple(all_labels))
        parsed: dict[Key, Rule] = {}
        for number, rule in enumerate(rules):
            key = (name, number)
            labels = rule.get("workload", all_labels)
            if not isinstance(labels, list):
                labels = [labels]
            self.document.validate(list[label_type], labels, (*key, "workload"))
            chosen = [workload for workload in self.workloads if workload.label in labels]
            values_of: dict[str, Sequence[Any]] = {"workload": labels}
            for axis, values in rule.items():
                if axis != "workload":
                    values_of[axis] = self._read_values((*key, axis), values, chosen)
            parsed[key] = values_of
        return parsed

    def _read_values(
        self, key: Key, values: Any, workloads: Sequence[SweepWorkload]
    ) -> Sequence[Any]:
        """Return the checked values of the axis that ends `key`, at least one.

        `workloads` are those that the axis holds for. One value stands for a list of one. For a setting
        that is a list itself, a list without lists in it is one value. A setting's value is checked with
        all the settings of its workload. Raises BadInput, also for what is no axis.
        """
        axis = str(key[-1])
        settings: dict[str, Any] = {}
        for workload in workloads:
            settings |= workload.setting_types
        if not isinstance(values, list):
            return [self._read_value(key, axis, values, settings)]
        if not values:
            raise self.document.error(key, "found an empty list; allowed: at least one value")
        kinds = [get_origin(kind) or kind for kind in members_of(settings.get(axis))]
        has_lists = any(isinstance(value, list) for value in values)
        if not has_lists and {tuple, list}.intersection(kinds):
            return [values]
        checked = []
        for number, value in enumerate(values):
            checked.append(self._read_value((*key, number), axis, value, settings))
        return checked

    def _read_value(self, key: Key, axis: str, value: Any, settings: Values) -> Any:
        """Return the checked value, at `key`, of an axis, which may be one of the settings of workloads.

        Raises BadInput, also for what is no axis.
        """
        if axis in settings:
            return value
        if axis.startswith(PREFIX):
            problem = problem_of_variable(axis.removeprefix(PREFIX))
            if problem is not None:
                raise self.document.error(key, problem)
            # Whether `1.10` or `on` was written can't be told of other types any more.
            text = self.document.validate(Line | int | None, value, key)
            return None if text is None else str(text)
        if is_setting(axis):
            raise self.document.error(
                key, f"found no workload with it; {did_you_mean(axis, settings)}"
            )
        if axis not in AXIS_TYPES:
            raise self.document.error(key, unknown_axis(axis, "workload"))
        checked = self.document.validate(AXIS_TYPES[axis], value, key)
        stacks = self.document.content.get("stacks") or {}
        if axis == "stack" and checked not in (None, *stacks):
            hint = did_you_mean(checked, [*stacks, "null"])
            raise self.document.error(key, f"found {checked!r}; {hint}, as the key stacks declares")
        return checked


def _has_one_of(levels: Values, axis: str, values: Sequence[Any]) -> bool:
    """Return whether a point has an axis, with one of these values."""
    return axis in levels and any(same_value(levels[axis], value) for value in values)
