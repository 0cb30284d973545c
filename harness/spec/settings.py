"""A workload's options and data settings as axes: `options.NAME` and `data.NAME`.

Their values have the types of the workload's own `Options` and `Data`. A sweep may have workloads
with and without such a setting: points of those without are left out, as are points with an axis
that does nothing.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from harness.core.errors import did_you_mean
from harness.core.validation import Key, choose
from harness.spec.custom import NO_CUSTOM_AXES, CustomAxes
from harness.spec.document import Document
from harness.spec.setting_axis import CUSTOM, SECTIONS, SOURCE, Setting, setting_of
from workloads.catalog import Declaration


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings:
    """Which settings a workload of a sweep has, and what its entry in the file says of them."""

    declaration: Declaration
    options: Mapping[str, Any]  # as written
    data: Mapping[str, Any]
    custom: CustomAxes = NO_CUSTOM_AXES  # of the sweep, which every workload has

    def written(self, section: str) -> Mapping[str, Any]:
        """Return a section of the entry as written."""
        return {"options": self.options, "data": self.data}.get(section, {})

    def names(self) -> list[str]:
        """Return the axes of all settings, those of every source of its data too."""
        axes: dict[str, None] = {}  # an ordered set
        for section in SECTIONS:
            for member in self._members(section):
                axes.update(dict.fromkeys(f"{section}.{key.name}" for key in fields(member)))
        return list(axes)

    def type_of(self, setting: Setting) -> Any:
        """Return the annotated type of a setting; raises KeyError for one that there is not.

        The type of `data.source` is any, as each source allows its own name only.
        """
        kind, _ = self._field(setting)
        if setting == Setting("data", SOURCE):
            return Any
        return get_type_hints(kind, include_extras=True)[setting.name]

    def has(self, setting: Setting) -> bool:
        """Return whether the workload has a setting."""
        return f"{setting.section}.{setting.name}" in self.names()

    def value(self, setting: Setting) -> Any:
        """Return what a setting is without an axis: as written, else the default, None without."""
        written = self.written(setting.section)
        if setting.name in written:
            return plain(written[setting.name])
        if not self.has(setting):
            return None
        _, declared = self._field(setting)
        if declared.default is not MISSING:
            return plain(declared.default)
        if declared.default_factory is not MISSING:
            return plain(declared.default_factory())
        return None

    def _field(self, setting: Setting) -> tuple[type, Field[Any]]:
        """Return the class that has a setting, and its field."""
        for member in self._members(setting.section):
            for declared in fields(member):
                if declared.name == setting.name:
                    return member, declared
        raise KeyError(setting.name)

    def _members(self, section: str) -> Iterator[Any]:
        """Yield the classes that declare a section, the one that the entry chooses first."""
        if section == "options":
            yield self.declaration.options
            return
        if section == CUSTOM:
            yield self.custom.settings
            return
        kind = self.declaration.data
        members = [member for member in get_args(kind) if is_dataclass(member)] or [kind]
        try:
            chosen = choose(kind, self.data)
        except ValueError:  # an unknown source, which planning reports
            chosen = members[0]
        yield chosen
        yield from [member for member in members if member is not chosen]


def checked_values(
    document: Document, key: Key, values: Any, workloads: Mapping[str, WorkloadSettings]
) -> list[Any]:
    """Return the values of the setting that ends `key`, checked by each workload that has it.

    For a setting that is a list itself, a list without lists in it is one value. Raises BadInput,
    also if none of the workloads has such a setting.
    """
    axis_types = _types(document, key, workloads)
    listed: list[Any] = document.validate(list[Any], values, key)
    if not listed:
        raise document.error(key, "found an empty list; allowed: at least one value")
    holds_lists = any(isinstance(value, list) for value in listed)
    if not holds_lists and any(_is_list(kind) for kind in axis_types):
        return [checked_value(document, key, listed, workloads)]
    for kind in axis_types:
        document.validate(list[kind], listed, key)  # type: ignore[valid-type]
    return [plain(value) for value in listed]


def checked_value(
    document: Document, key: Key, value: Any, workloads: Mapping[str, WorkloadSettings]
) -> Any:
    """Return one value of the setting that ends `key`; raises BadInput as `checked_values` does."""
    for kind in _types(document, key, workloads):
        document.validate(kind, value, key)
    return plain(value)


def _types(document: Document, key: Key, workloads: Mapping[str, WorkloadSettings]) -> list[Any]:
    """Return the type of a setting at each workload that has it; raises BadInput without any."""
    axis = str(key[-1])
    setting = setting_of(axis)
    assert setting is not None
    owners = [workload for workload in workloads.values() if workload.has(setting)]
    if not owners:
        allowed = {name for workload in workloads.values() for name in workload.names()}
        problem = f"found no workload with it among {', '.join(workloads)}"
        raise document.error(key, f"{problem}; {did_you_mean(axis, allowed)}")
    return [workload.type_of(setting) for workload in owners]


def _is_list(kind: Any) -> bool:
    """Return whether values of a type are lists, possibly optional ones."""
    if get_origin(kind) in (Annotated, Union, types.UnionType):
        return any(_is_list(member) for member in get_args(kind))
    return get_origin(kind) in (tuple, list, Sequence) or kind in (tuple, list)


def plain(value: Any) -> Any:
    """Return a value of a setting as JSON can hold it."""
    return json.loads(json.dumps(value, default=_text))


def _text(value: Any) -> str:
    """Return a path as text."""
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no value of a setting")
