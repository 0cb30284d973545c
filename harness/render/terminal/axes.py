"""Shows `harness axes`: what a sweep can vary.

All that is shown comes from the declarations in `harness.spec.axes`, so that the list is complete
by itself when an axis is added.
"""

from __future__ import annotations

import json
from typing import Any, get_args

from rich.table import Table
from rich.text import Text

from harness.render.terminal.console import TerminalConsole
from harness.spec.axes import AXIS_TYPES, DEFAULTS, axis_choices, axis_help
from harness.spec.environment import ALLOWED_VALUES, PREFIX
from workloads.options import Between

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


def show() -> None:
    """Print each axis with its values, its default, its effect and its requirements."""
    # Not `make_table`: here texts are sentences, which wrap to the width of the terminal.
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
    TerminalConsole().print(table)


def as_yaml(value: Any) -> str:
    """Return a value as a sweep file has it: `null`, `true`, `0.1`, `fp32`."""
    return json.dumps(value).strip('"')


def allowed_values(axis: str) -> str:
    """Return the choices of an axis, or the range of its numbers: `1, …`, `1e-08 to 10`.

    The range is an annotation of its type, which may be nested, as in
    `Annotated[int, Between(1)] | None`. So the arguments of the type are searched, then those of
    the arguments, until there are none.
    """
    choices = axis_choices(axis)
    if choices:
        return ", ".join(choices)
    types: list[Any] = [AXIS_TYPES[axis]]
    while types:
        arguments: list[Any] = []
        for outer in types:
            arguments += get_args(outer)
        for argument in arguments:
            if isinstance(argument, Between):
                return describe_range(argument)
        types = arguments
    return "a number"


def describe_range(bounds: Between) -> str:
    """Return a range of numbers, without an end where there is no upper bound."""
    if bounds.high is None:
        return f"{bounds.low:.12g}, …"
    return f"{bounds.low:.12g} to {bounds.high:.12g}"
