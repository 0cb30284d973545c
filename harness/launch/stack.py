"""Finds out whether ranks can run under a stack, before anything starts, and how they are started.

A stack needs little: Python, torch, and the few packages that a worker loads. The harness itself is
not among them: ranks import the one that starts them, whatever is installed there. So a difference
between two stacks is never one of the harness.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.import_path import ROOT, WORKLOADS, module_command
from harness.core.packages import pins
from harness.core.paths import cache_folder
from harness.core.processes import run_command
from harness.records.format import FileFormat, decode_text
from harness.sweep.cell import Cell, Stack

if TYPE_CHECKING:  # ranks load this module too, and nothing that reads sweep files
    from harness.sweep.sweep import Sweep

# Prints what an interpreter has. It may be too old for the harness, so the program imports nothing of it, nor
# of the working directory. Of two distributions of one name, the first is the one that is imported.
PROBE = """
import json, sys
sys.path = [entry for entry in sys.path if entry]
from importlib import metadata
packages = {}
for distribution in metadata.distributions():
    packages.setdefault(str(distribution.metadata["Name"]), distribution.version)
version = list(sys.version_info[:3])
print(json.dumps({"python": version, "packages": packages}))
"""
TIMEOUT = 120.0  # seconds; a container may have to be unpacked
MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 11)
# A variable of this interpreter that would lead another one to the wrong standard library.
PYTHON_HOME = "PYTHONHOME"
REPORT_FORMAT = FileFormat(name="description of a stack")


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """What PROBE prints."""

    python: Sequence[int]  # the version
    packages: Mapping[str, str]  # name -> version, of all distributions


@dataclass(frozen=True, kw_only=True)
class ReadyStack:
    """A stack under which ranks can run here."""

    name: str
    python: str  # the interpreter, as the prefix finds it
    prefix: Sequence[str]  # none: the interpreter is started as it is
    python_path: str  # PYTHONPATH, by which ranks find the harness
    packages: Mapping[str, str]  # name -> version, of all distributions

    @property
    def pins(self) -> str:
        """Return a line `NAME==VERSION` for each distribution, as `pip install -r` takes it."""
        return pins(self.packages)

    @property
    def installed(self) -> str:
        """Return the SHA-256 of `pins`, by which records refer to them."""
        return hashlib.sha256(self.pins.encode()).hexdigest()

    def with_environment(self, environment: Mapping[str, str]) -> Self:
        """Return the stack with the PYTHONPATH of a profile's variables, if they have one."""
        if "PYTHONPATH" not in environment:
            return self
        entries = [harness_path(), environment["PYTHONPATH"]]
        return replace(self, python_path=os.pathsep.join(filter(None, entries)))

    def module_command(self, module: str) -> list[str]:
        """Return the command that runs a module of the harness under the stack."""
        command = module_command(self.python, module)
        if not self.prefix:
            return command
        # In addition to `variables`: a container may set its own PYTHONPATH.
        return [*self.prefix, "env", f"PYTHONPATH={self.python_path}", *command]

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with what the interpreter imports from."""
        passed_on = {name: value for name, value in variables.items() if name != PYTHON_HOME}
        return {**passed_on, "PYTHONPATH": self.python_path}


def ready_stacks(sweep: Sweep, cells: Iterable[Cell]) -> dict[str, ReadyStack]:
    """Return the stacks of some cells by name, once it is certain that ranks can run there.

    Raises BadInput, which names the sweep's file, the stack and what is missing.
    """
    ready: dict[str, ReadyStack] = {}
    for cell in cells:
        if cell.stack is not None and cell.axes.stack not in ready:
            stack = ready_stack(cell, sweep.base_folder, str(sweep.source))
            ready[stack.name] = stack
    return ready


def ready_stack(cell: Cell, base: Path, source: str) -> ReadyStack:
    """Return the stack of a cell that has one, once its interpreter has said what it is and has.

    `base` is the folder that its path is relative to. Raises BadInput, which begins with `source`.
    """
    assert cell.stack is not None
    return make_ready(str(cell.axes.stack), cell.stack, base, source)


def make_ready(name: str, stack: Stack, base: Path, source: str) -> ReadyStack:
    """Return a stack by its name, as `ready_stack` does."""
    context = f"{source}: stacks.{name}"
    *prefix, python = stack.command
    if "/" in python and not prefix:
        # A link stays a link: by it an interpreter knows that it is that of a virtual environment.
        python = str(base / Path(python).expanduser())
    report = _probe([*prefix, python, "-c", PROBE], context)
    torch = report.packages.get("torch", "none")
    if tuple(report.python) < MIN_PYTHON:
        raise BadInput(
            f"{context}: found Python {_dotted(report.python)}; allowed: {_dotted(MIN_PYTHON)} or later"
        )
    if _version(torch) < MIN_TORCH:
        raise BadInput(f"{context}: found torch {torch}; allowed: {_dotted(MIN_TORCH)} or later")
    return ReadyStack(
        name=name,
        python=python,
        prefix=stack.prefix,
        python_path=os.pathsep.join(filter(None, [harness_path(), os.environ.get("PYTHONPATH")])),
        packages=report.packages,
    )


def _probe(command: Sequence[str], context: str) -> ProbeReport:
    """Return what the interpreter says of itself; raises BadInput if it can't say it."""
    variables = {name: value for name, value in os.environ.items() if name != PYTHON_HOME}
    try:
        done = run_command(command, timeout=TIMEOUT, variables=variables)
    except (OSError, HarnessError) as error:
        raise BadInput(f"{context}: {command[0]}: {error}") from None
    printed = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        return decode_text(ProbeReport, printed.encode(), "its description", REPORT_FORMAT)
    except BadInput:
        reason = one_line((done.stderr.strip().splitlines() or [printed])[-1], 200)
        raise BadInput(
            f"{context}: found {reason!r} where it starts Python; allowed: an interpreter, after a prefix"
            " that runs the command after it and prints nothing at its end"
        ) from None


def _version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 11, 0) of `2.11.0+cu128`."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _dotted(version: Sequence[int]) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def harness_path() -> str:
    """Return a folder that other interpreters can import this harness from, and nothing else.

    A checkout has nothing that hides a package. The folder of an installed harness has all packages
    of its interpreter, torch too, so it gets links to the harness alone.
    """
    if not any(ROOT.glob("*.dist-info")):
        return str(ROOT)
    digest = hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]
    folder = cache_folder() / "import-path" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("harness", WORKLOADS, "clusters"):
        link = folder / name
        if not link.is_symlink() and (ROOT / name).is_dir():
            temporary = folder / f".{name}.{os.getpid()}"
            temporary.symlink_to(ROOT / name)
            temporary.rename(link)
    return str(folder)


def bound_command(command: Sequence[str]) -> list[str]:
    """Return what runs a command so that it ends with this process, however that ends."""
    return [*module_command(sys.executable, "harness.launch.bound"), *command]
