"""Shows `harness axes` and `harness workloads`: what a sweep can vary, and what it can train.

All that is shown comes from the declarations in `harness.sweep.axes` and from the classes of options and
data that workloads declare, which sweep files are checked by: a new one needs no change here.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from harness.sweep.axes import AXIS_TYPES, DEFAULTS, HELP
from harness.sweep.cell import SOURCE, axis_value
from harness.sweep.environment import ALLOWED_VALUES, PREFIX
from harness.view.value import Styled, Value
from harness.view.view import Table, View
from workloads.catalog import Declaration

PLAIN_TYPES = {
    bool: "false, true",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "null",
}


def axes_view() -> View:
    """Return each axis with its values, its default, its effect and its requirements."""
    table = Table(["axis", "values"])
    for axis, kind in AXIS_TYPES.items():
        default = f"  default {axis_value(DEFAULTS[axis])}" if axis in DEFAULTS else ""
        table.add_row(axis, [_describe_type(kind), Styled(default, "quiet"), f"\n{HELP[axis]}"])
    # Axes whose names are not the harness's own.
    table.add_row(f"{PREFIX}NAME", f"{ALLOWED_VALUES}\nan environment variable of the ranks")
    table.add_row("options.NAME, data.NAME", "an option or data setting: see harness workloads")
    return View(tables=[table])


def _describe_type(kind: Any) -> str:
    """Return what a type allows, in words: `a list of 1, …`, `tiny, small, base or null`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        for bounds in arguments[1:]:
            if isinstance(bounds, Meta) and bounds.ge is not None:
                end = ", …" if bounds.le is None else f" to {bounds.le:.12g}"
                return f"{bounds.ge:.12g}{end}"
        return _describe_type(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(map(_describe_type, arguments))
    if origin is Literal:
        return ", ".join(map(axis_value, arguments))
    if origin in (tuple, list) and arguments:
        return f"a list of {_describe_type(arguments[0])}"
    return PLAIN_TYPES.get(kind, getattr(kind, "__name__", str(kind)))


def workloads_view(workloads: Mapping[str, Declaration]) -> View:
    """Return a row for each workload."""
    columns = ["workload", "batch_size", "options", "data sources"]
    table = Table(columns, {"batch_size": "count"})
    for name, declaration in workloads.items():
        options = ", ".join(field.name for field in fields(declaration.options))
        sources = ", ".join(_sources(declaration))
        table.add_row(name, declaration.batch_size, options, sources)
    more = "harness workloads NAME, or file.py:Class, shows what each setting allows"
    return View(tables=[table], lines=[more])


def workload_view(name: str, declaration: Declaration) -> View:
    """Return one workload with all its settings, named as the axes that they may be."""
    table = Table(["setting", "allowed"])
    _add_settings(table, "options", declaration.options)
    for source, settings in _sources(declaration).items():
        if source:
            table.add_row(f"data.{SOURCE}", source)
        _add_settings(table, "data", settings)
    heading = f"{name}  {declaration.path}, batch_size {declaration.batch_size}"
    return View(heading=[heading], tables=[table])


def _sources(declaration: Declaration) -> dict[str, Any]:
    """Return the Settings classes of a workload's data by their source, `""` for data without."""
    members = [member for member in get_args(declaration.data) if is_dataclass(member)]
    return {str(getattr(kind, SOURCE, "")): kind for kind in members or [declaration.data]}


def _add_settings(table: Table, section: str, kind: Any) -> None:
    """Add a row for each field of a Settings class: what it allows, and its default."""
    hints = get_type_hints(kind, include_extras=True)
    for declared in fields(kind):
        if declared.name == SOURCE:
            continue
        default = declared.default
        if declared.default_factory is not MISSING:
            default = declared.default_factory()
        text = "  required"
        if default is not MISSING:
            shown = json.loads(json.dumps(default, default=str))
            text = f"  default {axis_value(shown) or repr('')}"
        allowed: Value = [_describe_type(hints[declared.name]), Styled(text, "quiet")]
        table.add_row(f"{section}.{declared.name}", allowed)
