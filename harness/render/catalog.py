"""Shows `harness axes` and `harness workloads`: what a sweep can vary, and what it can train.

All that is shown comes from the declarations in `harness.spec.axes` and from the classes of axes
and settings that packages declare, which sweep files are checked by. So a new one is in the list
without a change here.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import rich.table
from msgspec import Meta
from rich.text import Text

from harness.core.validation import bounds_in
from harness.render.console import TerminalConsole, show_table
from harness.render.table import Table
from harness.spec.axes import AXIS_TYPES, DEFAULTS, HELP, axis_choices
from harness.spec.cell import SOURCE, axis_value
from harness.spec.environment import ALLOWED_VALUES, PREFIX
from workloads.catalog import Declaration

# Axes whose names are not the harness's own: the name, its values, its effect.
OPEN_AXES = (
    (
        f"{PREFIX}NAME",
        ALLOWED_VALUES,
        "an environment variable that ranks begin with",
    ),
    (
        "options.NAME, data.NAME",
        "what the workload allows: see harness workloads",
        "an option of the workload, or a setting of its data",
    ),
)
PLAIN_TYPES = {
    bool: "false, true",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "null",
}


def show_axes() -> None:
    """Print each axis with its values, its default, its effect and its requirements."""
    # Not a `Table`: here texts are sentences, which wrap to the width of the terminal.
    table = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for axis in AXIS_TYPES:
        allowed = Text(allowed_values(axis))
        if axis in DEFAULTS:
            allowed.append(f"  default {axis_value(DEFAULTS[axis])}", style="dim")
        table.add_row(axis, Text.assemble(allowed, "\n", HELP[axis]))
    for axis, allowed_text, does in OPEN_AXES:
        table.add_row(axis, f"{allowed_text}\n{does}")
    TerminalConsole().print(table)


def allowed_values(axis: str) -> str:
    """Return the choices of an axis, or the range of its numbers: `1, …`, `1e-08 to 10`.

    The range is an annotation of its type, which may be nested, as in
    `Annotated[int, Between(1)] | None`.
    """
    choices = axis_choices(axis)
    if choices:
        return ", ".join(choices)
    for bounds in bounds_in(AXIS_TYPES[axis]):
        return describe_range(bounds)
    return "a name"


def describe_type(kind: Any) -> str:
    """Return what a type allows, in words: `a list of 1, …`, `tiny, small, base or null`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        for bounds in arguments[1:]:
            if isinstance(bounds, Meta) and bounds.ge is not None:
                return describe_range(bounds)
        return describe_type(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(member) for member in arguments)
    if origin is Literal:
        return ", ".join(axis_value(value) for value in arguments)
    if origin in (tuple, list) and arguments:
        return f"a list of {describe_type(arguments[0])}"
    return PLAIN_TYPES.get(kind, getattr(kind, "__name__", str(kind)))


def describe_range(bounds: Meta) -> str:
    """Return a range of numbers, without an end where there is no upper bound."""
    if bounds.le is None:
        return f"{bounds.ge:.12g}, …"
    return f"{bounds.ge:.12g} to {bounds.le:.12g}"


def show_workloads(workloads: Mapping[str, Declaration]) -> None:
    """Print a line for each workload."""
    console = TerminalConsole()
    table = Table(["workload", "batch_size", "options", "data sources"], ["batch_size"])
    for name, declaration in workloads.items():
        options = ", ".join(field.name for field in fields(declaration.options))
        sources = ", ".join(_sources(declaration))
        table.add_row(name, str(declaration.batch_size), options, sources)
    show_table(console, table)
    console.print("\nharness workloads NAME, or file.py:Class, shows what each setting allows")


def show_workload(name: str, declaration: Declaration) -> None:
    """Print one workload with all its settings, named as the axes that they may be."""
    console = TerminalConsole()
    console.print_text(f"{name}  {declaration.path}, batch_size {declaration.batch_size}")
    # Not a `Table`: what is allowed wraps to the width of the terminal, as in `harness axes`.
    table = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    _add_settings(table, "options", declaration.options)
    for source, settings in _sources(declaration).items():
        if source:
            table.add_row(f"data.{SOURCE}", source)
        _add_settings(table, "data", settings)
    console.print(table)


def _sources(declaration: Declaration) -> dict[str, Any]:
    """Return the Settings classes of a workload's data by their source, `""` for data without."""
    members = [member for member in get_args(declaration.data) if is_dataclass(member)]
    return {str(getattr(kind, SOURCE, "")): kind for kind in members or [declaration.data]}


def _add_settings(table: rich.table.Table, section: str, kind: Any) -> None:
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
        allowed = Text(describe_type(hints[declared.name]))
        table.add_row(f"{section}.{declared.name}", allowed.append(text, style="dim"))
