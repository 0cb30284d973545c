"""Shows `harness axes`: what a sweep can vary.

All that is shown comes from the declarations in `harness.spec.axes` and from the classes of axes that
packages declare, so that a new axis is in the list without a change here.
"""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta
from rich.table import Table
from rich.text import Text

from harness.core.errors import one_line
from harness.core.validation import bounds_in
from harness.render.terminal.console import TerminalConsole
from harness.spec.axes import AXIS_TYPES, DEFAULTS, axis_choices, axis_help
from harness.spec.environment import ALLOWED_VALUES, PREFIX
from workloads.catalog import installed_axes, load_axis

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
    (
        "custom.NAME",
        "what the axis allows",
        "an axis of your own, a class that the sweep's key custom names: see harness guide sweeps",
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


def show() -> None:
    """Print each axis with its values, its default, its effect and its requirements."""
    # Not a `harness.render.table.Table`: here texts are sentences, which wrap to the width of the terminal.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for axis in AXIS_TYPES:
        about = axis_help(axis)
        allowed = Text(allowed_values(axis))
        if axis in DEFAULTS:
            allowed.append(f"  default {as_yaml(DEFAULTS[axis])}", style="dim")
        needs = f" (needs {about.needs})" if about.needs else ""
        table.add_row(axis, Text.assemble(allowed, "\n", about.does, needs))
    for axis, allowed_text, does in OPEN_AXES:
        table.add_row(axis, f"{allowed_text}\n{does}")
    for name, uses in installed_axes().items():
        table.add_row(f"custom.{name}", describe_installed(uses))
    TerminalConsole().print(table)


def describe_installed(uses: str) -> Text:
    """Return the values, the default and the effect of an axis that an installed package declares.

    One whose class can't be loaded says why.
    """
    try:
        axis = load_axis(uses, Path.cwd())
    except ValueError as error:
        return Text(f"of {uses}, which can't be loaded: {one_line(error)}", style="yellow")
    allowed = Text(describe_type(axis.Value))
    allowed.append(f"  default {as_yaml(axis.default)}", style="dim")
    does = (axis.__doc__ or f"of {uses}").strip().partition("\n")[0]
    return Text.assemble(allowed, "\n", does)


def as_yaml(value: Any) -> str:
    """Return a value as a sweep file has it: `null`, `true`, `0.1`, `fp32`."""
    return json.dumps(value).strip('"')


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
    return "a number"


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
        return ", ".join(as_yaml(value) for value in arguments)
    if origin in (tuple, list) and arguments:
        return f"a list of {describe_type(arguments[0])}"
    return PLAIN_TYPES.get(kind, getattr(kind, "__name__", str(kind)))


def describe_range(bounds: Meta) -> str:
    """Return a range of numbers, without an end where there is no upper bound."""
    if bounds.le is None:
        return f"{bounds.ge:.12g}, …"
    return f"{bounds.ge:.12g} to {bounds.le:.12g}"
