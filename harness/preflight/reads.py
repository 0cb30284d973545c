"""Finds inputs that a workload's code reads on its own, which change a result and no cell's id.

Python reports opened files to audit hooks, except those that native code opens.
"""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from harness.core.variables import LIBRARY_VARIABLE, PUBLIC_VARIABLES
from harness.preflight.outcome import Outcome, noted, passed
from harness.preflight.probe import listed
from harness.spec.cell import Cell
from harness.spec.code import describe_dynamic_files
from workloads.base import Workload
from workloads.code import is_installed

CODE_SUFFIXES = (".py", ".pyc", ".so")
MACHINE = ("/dev/", "/etc/", "/proc/", "/run/", "/sys/", "/usr/")  # folders of what belongs to it


class OpenedFiles:
    """Collects the files that some code opens to read, from now on until this process ends."""

    def __init__(self, code: Iterable[Path]) -> None:
        """Watch what the files of `code` open, or what they call opens."""
        self._opened: set[str] = set()
        self._written: set[str] = set()
        self._code = {os.path.realpath(path) for path in code}
        self._is_code: dict[str, bool] = {}  # by the name that a frame has
        sys.addaudithook(self._on_event)

    @property
    def paths(self) -> set[Path]:
        """Return the files that the code has opened and this process has not written."""
        return {Path(path) for path in self._opened - self._written}

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an opened file."""
        if event != "open":
            return
        path, _, flags = arguments
        if not isinstance(path, str | bytes):
            return  # a file that is open already
        if flags & (os.O_WRONLY | os.O_CREAT):
            self._written.add(os.path.realpath(os.fsdecode(path)))
        elif self._is_called_by_code():
            self._opened.add(os.path.realpath(os.fsdecode(path)))

    def _is_called_by_code(self) -> bool:
        """Return whether a function of the code is being run."""
        frame = inspect.currentframe()
        while frame is not None:
            name = frame.f_code.co_filename
            if name not in self._is_code:
                self._is_code[name] = os.path.realpath(name) in self._code
            if self._is_code[name]:
                return True
            frame = frame.f_back
        return False


def check_reads(cell: Cell, workload: Workload, opened: Collection[Path]) -> Outcome:
    """Return which files, variables, modules and models decide a result and no id.

    `opened` are the files that the code of the workload has opened.
    """
    files = [*workload.options.files(), *workload.data.files()]
    known = {Path(os.path.realpath(path)) for path in files}
    reads = [f"the file {path}" for path in sorted(set(opened) - known) if _decides(path)]
    code = cell.workload.code
    for name in code.variables if code else ():
        is_recorded = name in PUBLIC_VARIABLES or LIBRARY_VARIABLE.match(name)
        if not is_recorded and name not in cell.environment:
            reads.append(f"the variable {name}")
    reads += [f"the module {name}" for name in describe_dynamic_files(cell.workload)]
    reads += [*workload.options.unpinned(), *workload.data.unpinned()]
    if not reads:
        return passed("the code was seen to read nothing but what its settings name")
    return noted(
        f"no cell's id has {listed(reads, limit=10)}",
        "name files by settings of type Path, variables as axes (env.NAME), modules by import"
        " statements, and models with their revision: results of other content get the same id",
    )


def _decides(path: Path) -> bool:
    """Return whether a file may decide a result: no code, which is found by its imports."""
    if path.suffix in CODE_SUFFIXES or not path.is_file() or is_installed(path.parent):
        return False
    return not str(path).startswith((*MACHINE, sysconfig.get_path("data") + os.sep))
