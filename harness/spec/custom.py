"""Axes that users have written: `custom.NAME`, for a class that the sweep's key `custom` names.

A package may declare axes as entry points of the group `harness.axes`, which need no such key. The
values are checked as settings of a workload are, and are part of a cell's identity in the same way,
with the code of the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import did_you_mean
from harness.spec.cell import CUSTOM, WorkloadRef, setting_of
from harness.spec.environment import problem_of_variable
from workloads.axis import CustomAxis
from workloads.catalog import installed_axes, load_axis

if TYPE_CHECKING:  # ranks have axes too, and load no library that reads sweep files
    from harness.spec.document import Document


@dataclass(frozen=True)
class CustomAxes:
    """The axes of a sweep that its user has written."""

    uses: Mapping[str, str] = field(default_factory=dict)  # name -> file.py:Class
    classes: Mapping[str, type[CustomAxis]] = field(default_factory=dict)  # by the same names

    @property
    def variables(self) -> list[str]:
        """The environment variables that any of the axes sets."""
        return [name for axis in self.classes.values() for name in axis.variables]


NO_CUSTOM_AXES = CustomAxes()


def read_custom_axes(document: Document, base_folder: Path) -> CustomAxes:
    """Return the axes that a sweep's keys name as `custom.NAME`.

    Raises BadInput for a name that neither the key `custom` nor a package declares, for a class that
    can't be loaded, and for a variable that no axis may set.
    """
    declared: dict[str, str] = dict(document.content.get(CUSTOM, {}))
    mentioned = set()  # anywhere in the sweep
    for key in document.sources:
        setting = setting_of(str(key[-1])) if key else None
        if setting is not None and setting.section == CUSTOM:
            mentioned.add(setting.name)
    undeclared = mentioned - set(declared)
    names = [*declared, *sorted(undeclared)]
    if undeclared:
        declared = {**installed_axes(), **declared}
    classes = {}
    for name in names:
        key = (CUSTOM, name)
        if name not in declared:
            raise document.error(key, f"found no such axis; {did_you_mean(name, declared)}")
        try:
            classes[name] = load_axis(declared[name], base_folder)
        except ValueError as error:
            raise document.error(key, str(error)) from None
        for variable in classes[name].variables:
            problem = problem_of_variable(variable)
            if problem is not None:
                raise document.error(key, f"variables: {variable}: {problem}")
    return CustomAxes({name: declared[name] for name in classes}, classes)


def custom_axes_of(reference: WorkloadRef, base_folder: Path) -> CustomAxes:
    """Return the axes that a cell of another time has; raises ValueError for one that is gone."""
    classes = {name: load_axis(uses, base_folder) for name, uses in reference.custom_uses.items()}
    return CustomAxes(reference.custom_uses, classes)


def active_axes(reference: WorkloadRef, base_folder: Path) -> dict[str, CustomAxis]:
    """Return the axes that a cell has at another value than the default, by their names."""
    active = {}
    for name, value in reference.identity.get(CUSTOM, {}).items():
        axis = load_axis(reference.custom_uses[name], base_folder)
        active[f"{CUSTOM}.{name}"] = axis(value)
    return active
