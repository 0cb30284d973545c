"""Shows `harness workloads`: what a sweep can train, with the options and the data of each.

All of it comes from the classes that declare the settings, and is what sweep files are checked by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import rich.table
from rich.text import Text

from harness.render.table import Table
from harness.render.terminal.axes import as_yaml, describe_type
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.table import show as show_table
from harness.spec.cell import SOURCE
from harness.spec.workload import plain
from workloads.catalog import Declaration


@dataclass(frozen=True, kw_only=True)
class SettingHelp:
    """One key that a sweep file may set."""

    name: str
    allowed: str  # its values, in words
    required: bool  # whether it has no default
    default: Any = None  # as a sweep file has it


@dataclass(frozen=True, kw_only=True)
class WorkloadHelp:
    """What a sweep file may set for a workload."""

    uses: str  # its name in a sweep file
    path: str  # package.module:Class, or the file
    batch_size: int  # unless a sweep sets it
    options: Sequence[SettingHelp]
    data: Mapping[str, Sequence[SettingHelp]]  # by source; `""` for data without sources


def describe(uses: str, declaration: Declaration) -> WorkloadHelp:
    """Return what a workload declares, its settings in the order of their classes."""
    data: dict[str, Sequence[SettingHelp]] = {}
    kind = declaration.data
    for member in [member for member in get_args(kind) if is_dataclass(member)] or [kind]:
        source = ""
        settings = []
        for setting in _settings(member):
            if setting.name == SOURCE:
                source = str(setting.default)
            else:
                settings.append(setting)
        data[source] = settings
    return WorkloadHelp(
        uses=uses,
        path=declaration.path,
        batch_size=declaration.batch_size,
        options=_settings(declaration.options),
        data=data,
    )


def _settings(kind: Any) -> list[SettingHelp]:
    """Return the fields of a Settings class."""
    hints = get_type_hints(kind, include_extras=True)
    settings = []
    for declared in fields(kind):
        default = declared.default
        if declared.default_factory is not MISSING:
            default = declared.default_factory()
        required = default is MISSING
        settings.append(
            SettingHelp(
                name=declared.name,
                allowed=describe_type(hints[declared.name]),
                required=required,
                default=None if required else plain(default),
            )
        )
    return settings


def show_all(workloads: Sequence[WorkloadHelp], installed: Sequence[str], *, as_json: bool) -> None:
    """Print a line for each workload, and the names of those that other packages have."""
    if as_json:
        content = [asdict(workload) for workload in workloads]
        print(json.dumps({"workloads": content, "installed": list(installed)}, indent=1))
        return
    console = TerminalConsole()
    table = Table(["workload", "batch_size", "options", "data sources"], ["batch_size"])
    for workload in workloads:
        options = ", ".join(option.name for option in workload.options)
        sources = ", ".join(workload.data)
        table.add_row(workload.uses, str(workload.batch_size), options, sources)
    show_table(console, table)
    for name in installed:
        console.print(f"{name}  of another package", markup=False)
    console.print("\nharness workloads NAME, or file.py:Class, shows what each setting allows")


def show_workload(workload: WorkloadHelp, *, as_json: bool) -> None:
    """Print one workload with all its settings, named as the axes that they may be."""
    if as_json:
        print(json.dumps(asdict(workload), indent=1))
        return
    console = TerminalConsole()
    title = f"{workload.uses}  {workload.path}, batch_size {workload.batch_size}"
    console.print(title, markup=False, soft_wrap=True)
    # Not a `Table`: what is allowed wraps to the width of the terminal, as in `harness axes`.
    table = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    _add_rows(table, "options", workload.options)
    for source, settings in workload.data.items():
        if source:
            table.add_row("data.source", source)
        _add_rows(table, "data", settings)
    console.print(table)


def _add_rows(table: rich.table.Table, section: str, settings: Sequence[SettingHelp]) -> None:
    """Add a row for each setting of a section."""
    for setting in settings:
        default = f"  default {as_yaml(setting.default) or repr('')}"
        if setting.required:
            default = "  required"
        allowed = Text(setting.allowed)
        table.add_row(f"{section}.{setting.name}", allowed.append(default, style="dim"))
